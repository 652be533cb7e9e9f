package entrance

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// PassMark occurs in the first 512 bytes of a guest's first message, and in what is read of it
// first, if the guest shows a pass.
const PassMark = "borg-pass/"

const (
	// maxHelloBytes bounds the first record of a handshake. Clients of ours send less than
	// 2 KiB.
	maxHelloBytes = 4 << 10
	// maxGuestBytes bounds what a guest may send in all: a hello, and a chain of certificates.
	maxGuestBytes = 16 << 10
	// maxHallBytes bounds what the guests of a hall have sent; with more, a guest may send
	// crampedGuestBytes.
	maxHallBytes      = 16 << 20
	crampedGuestBytes = 4 << 10

	recordHeadBytes = 5
)

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

	// Bytes that it has sent. Guarded by hall.mu.
	bytes int64
	// Head of its first record, and how much of it has come. Only the goroutine of the
	// handshake uses them.
	head  [recordHeadBytes]byte
	headN int
	// Bytes that came before its first turn. Likewise.
	early int
	// The first bytes had the mark of a pass. Likewise.
	marked bool

	// It has shown a pass. user is the one that pays for it; empty if it is not charged. Only the
	// goroutine of the handshake uses both.
	vouched bool
	user    string
	// Dropped to make room for another one. Guarded by turns.mu, as is all until wake.
	dropped bool
	// Where it waits, and the account that pays for it; nil until it waits for the first time.
	at    place
	pays  *account
	grant grant
	// What that account was charged for it.
	spent time.Duration
	// It had its last turn as a crowded guest.
	crowded bool
	queued  *list.List
	inQueue *list.Element
	// Receives once for each wait: true with a turn, false if dropped.
	wake chan bool

	// The caller of the handshake has given it up or has its result, though it may still
	// compute. Set with mu held.
	over atomic.Bool
	mu   sync.Mutex
	// It has a turn now, and since when. Guarded by mu.
	turn  bool
	since time.Time
	// This end has sent something; the next read is the other end's answer. Only the
	// goroutine of the handshake uses it.
	asked bool
	// The answer had its turn before others. Likewise.
	hurried bool
	// It has had its first turn. Likewise.
	begun bool
	// There is no handshake.
	plain bool
}

// Plain marks a connection without a handshake, which needs no turns. It must be called before
// anything is read.
func (g *Guest) Plain() { g.plain = true }

// Vouch records that the guest has shown a pass. The handshake is charged to the user, or to
// nobody if user is empty. It must be called before Begin.
func (g *Guest) Vouch(user string) { g.vouched, g.user = true, user }

// Welcome records that the handshake has shown a member of the cell. It is charged to the user, or
// to nobody if user is empty. It must be called after Leave.
func (g *Guest) Welcome(user string) { g.turns.welcome(g, user) }

// Begin waits for the first turn, unless the guest has had it. The error is ErrDropped.
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

// Crowded reports whether the guest has its turn as one of a crowd. It must be called during a turn.
func (g *Guest) Crowded() bool { return g.crowded }

// hold records that the guest has a turn, or returns the turn if the handshake has ended.
func (g *Guest) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.turn, g.since = true, time.Now(); g.over.Load() {
		g.leaveTurn()
	}
}

// InHandshake reports whether the guest has not left yet.
func (g *Guest) InHandshake() bool { return !g.over.Load() }

// Leave ends the handshake; from now on the connection is used directly. It reports false if the
// guest was dropped.
func (g *Guest) Leave() bool {
	g.mu.Lock()
	g.over.Store(true)
	g.leaveTurn()
	g.mu.Unlock()
	g.hall.mu.Lock()
	defer g.hall.mu.Unlock()
	return g.hall.remove(g)
}

// leaveTurn returns the turn, if the guest has one. The caller holds mu.
func (g *Guest) leaveTurn() {
	if g.turn {
		g.turn = false
		g.turns.give(g, time.Since(g.since))
	}
}

// drop closes the connection, without waiting for the other end.
func (g *Guest) drop() {
	hangUp(g.Conn)
	g.turns.drop(g)
}

// Refuse closes a connection that does not become a guest.
func Refuse(conn net.Conn) {
	dropped.Add(1)
	hangUp(conn)
}

// RefuseSocket is Refuse for a socket that no connection has been made of.
func RefuseSocket(socket int) {
	dropped.Add(1)
	// As in hangUp.
	_ = unix.SetsockoptLinger(socket, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	unix.Close(socket)
}

// hangUp closes a connection, without waiting for the other end.
func hangUp(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		// The kernel keeps nothing of it. This fails only if it is closed already.
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}

// away is leaveTurn with mu.
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
	n, err := g.read(b)
	if err != nil {
		return n, err
	}
	// Only once, so that a guest that sends byte by byte does not go before others each time.
	answered := g.asked && !g.hurried
	g.hurried = g.hurried || answered
	if !g.turns.take(g, answered) {
		return n, ErrDropped
	}
	g.hold()
	return n, nil
}

// first reads what comes before the first turn. If the first bytes show no pass nothing more is
// done, not even to read on, before the guest has a turn: most guests of a flood are dropped before
// that. With a pass the whole first record is read without a turn; crypto/tls takes it in pieces.
func (g *Guest) first(b []byte) (int, error) {
	before := g.early
	n, err := g.read(b)
	if err != nil || g.plain {
		return n, err
	}
	g.early += n
	if before == 0 {
		g.marked = bytes.Contains(b[:n], []byte(PassMark))
	}
	if g.marked && (g.headN < recordHeadBytes || before < recordHeadBytes+g.recordBytes()) {
		return n, nil
	}
	return n, g.Begin()
}

// recordBytes returns the length of the first record, whose head has come.
func (g *Guest) recordBytes() int { return int(binary.BigEndian.Uint16(g.head[3:])) }

// read reads what is within the bounds of a handshake. crypto/tls makes room for a whole
// record when it has read the head of it, and takes messages of 64 KiB and more.
func (g *Guest) read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if n == 0 || g.plain {
		return n, err
	}
	if g.headN < recordHeadBytes {
		g.headN += copy(g.head[g.headN:], b[:n])
		if g.headN == recordHeadBytes && g.recordBytes() > maxHelloBytes {
			return n, ErrTooLarge
		}
	}
	if !g.hall.receive(g, int64(n)) {
		return n, ErrTooLarge
	}
	return n, err
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
