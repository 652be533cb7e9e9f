package entrance

import (
	"bytes"
	"container/list"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// PassMark is what the first message of a guest has in it who shows that it was here before, within its first 512 bytes.
const PassMark = "borg-pass/"

// Guest is a connection during its handshake. It has a turn while it computes and
// leaves it to others while it waits for the other end.
type Guest struct {
	net.Conn
	hall  *Hall
	turns *Turns
	// Key of its address.
	host string

	// In its host; nil: it has left or was dropped. Guarded by hall.mu.
	place *list.Element

	// It has shown that it was here before, for a user; empty: one that pays for nothing. The same goroutine as in asked.
	vouched bool
	user    string
	// Dropped to make room for another one. Guarded by turns.mu, as is all until wake.
	dropped bool
	// Where it waits, and who pays for it; nil: it has waited for no turn so far.
	at    place
	pays  *account
	grant grant
	// What was spent for it, by who pays.
	spent time.Duration
	// Its last turn was one of the crowd.
	crowded bool
	queued  *list.List
	inQueue *list.Element
	// Hears once for each wait: true with a turn, false when dropped.
	wake chan bool

	// The handshake has ended for whoever made it, though it may still compute. Set with
	// mu.
	over atomic.Bool
	mu   sync.Mutex
	// It has a turn now, and since when. Guarded by mu.
	turn  bool
	since time.Time
	// This end has sent something; the next read is the other end's answer. Only the
	// goroutine of the handshake uses it.
	asked bool
	// The answer had its turn before others. The same holds.
	hurried bool
	// It has had its first turn. The same holds.
	begun bool
	// It makes no handshake.
	plain bool
}

// Plain notes, before anything is read, that there is no handshake: it needs no turns.
func (g *Guest) Plain() { g.plain = true }

// Vouch notes, before it begins, that the guest has shown that it was here before, and by whom it is paid: by a
// user, or, if that is empty, by nobody.
func (g *Guest) Vouch(user string) { g.vouched, g.user = true, user }

// Welcome notes, after it has left, that the handshake has shown somebody who is known, and who pays for it: a user, or, if that is
// empty, nobody.
func (g *Guest) Welcome(user string) { g.turns.welcome(g, user) }

// Begin waits for the first turn, if it has not had that. The error is ErrDropped.
func (g *Guest) Begin() error {
	if g.begun {
		return nil
	}
	g.begun = true
	if !g.turns.take(g, false) {
		return ErrDropped
	}
	g.hold()
	return nil
}

// hold notes that it has a turn, or gives it back when the handshake has ended.
func (g *Guest) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.turn, g.since = true, time.Now(); g.over.Load() {
		g.leaveTurn()
	}
}

// Leave ends the handshake. The connection is used as it is from now on. It reports false
// when the guest was dropped.
func (g *Guest) Leave() bool {
	g.mu.Lock()
	g.over.Store(true)
	g.leaveTurn()
	g.mu.Unlock()
	g.hall.mu.Lock()
	defer g.hall.mu.Unlock()
	return g.hall.remove(g)
}

// leaveTurn gives the turn back, if it has one. The caller holds mu.
func (g *Guest) leaveTurn() {
	if g.turn {
		g.turn = false
		g.turns.give(g, time.Since(g.since))
	}
}

// drop closes the connection, without waiting for the other end.
func (g *Guest) drop() {
	if tcp, ok := g.Conn.(*net.TCPConn); ok {
		// Nothing of it is kept in the kernel. That fails only if it is closed already.
		_ = tcp.SetLinger(0)
	}
	g.Conn.Close()
	g.turns.drop(g)
}

// away leaves the turn, if there is one.
func (g *Guest) away() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveTurn()
}

// Read implements net.Conn. It waits for a turn before it returns what has come.
func (g *Guest) Read(b []byte) (int, error) {
	if g.over.Load() {
		return g.Conn.Read(b)
	}
	if !g.begun {
		return g.first(b)
	}
	g.away()
	n, err := g.Conn.Read(b)
	if err != nil {
		return n, err
	}
	// Once: bytes that come one by one do not go before others each time.
	answered := g.asked && !g.hurried
	g.hurried = g.hurried || answered
	if !g.turns.take(g, answered) {
		return n, ErrDropped
	}
	g.hold()
	return n, nil
}

// first reads what the other end says first. Without a mark in it nothing is done for it before it has a turn, not even to read on:
// of a flood most are dropped before.
func (g *Guest) first(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if err != nil || g.plain || bytes.Contains(b[:n], []byte(PassMark)) {
		return n, err
	}
	return n, g.Begin()
}

// Write implements net.Conn. What is computed between a write and the next read is
// little, and needs no turn.
func (g *Guest) Write(b []byte) (int, error) {
	if g.over.Load() {
		return g.Conn.Write(b)
	}
	g.away()
	g.asked = true
	return g.Conn.Write(b)
}
