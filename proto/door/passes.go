package door

import (
	"container/list"
	"crypto/tls"
	"encoding/hex"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/credentials"

	"borg/identity"
	"borg/proto/door/entrance"
)

const (
	// maxPasses bounds the passes that a server remembers, of some 200 bytes each; the oldest is
	// forgotten.
	maxPasses = 16384
	// maxPassesHeld bounds the passes that a process holds as a client.
	maxPassesHeld = 64
	// passPrefix begins the ALPN protocol name that carries a pass in the first message of a
	// handshake.
	passPrefix = entrance.PassMark
	// passLabel is the label under which a pass is derived from a connection's secret.
	passLabel = "EXPORTER-borg-pass"
	passBytes = 16
	// helloAgain is the group of which a crowded guest must send a key. Clients support it, and
	// those of Go, OpenSSL and the browsers do not send a key of it unless asked to.
	helloAgain = tls.CurveP256
)

// passes let a server recognize a client before it has computed anything for it. Both ends of a
// connection derive a pass from the connection's secret, so none is sent. The client shows it, in
// the clear, when it connects again. A pass counts once and grants only an earlier turn: an
// eavesdropper could gain a place in line with it, and nothing else.
//
// A server keeps by pass the user that is charged; a client keeps by server the pass.
type passes struct {
	mu sync.Mutex
	// Guarded by mu, like order.
	of map[string]*list.Element
	// Of heldPass, the oldest one first.
	order list.List
	most  int
}

// heldPass is a key and its value.
type heldPass struct{ pass, by string }

func newPasses() *passes { return &passes{of: map[string]*list.Element{}, most: maxPasses} }

// put stores a value under a key, and drops the oldest one if there are too many.
func (p *passes) put(key, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.of[key]; e != nil {
		p.order.Remove(e)
	} else if len(p.of) >= p.most {
		first := p.order.Front()
		delete(p.of, first.Value.(heldPass).pass)
		p.order.Remove(first)
	}
	p.of[key] = p.order.PushBack(heldPass{key, value})
}

// has reports whether there is a value under a key.
func (p *passes) has(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[key] != nil
}

// take removes a value and returns it.
func (p *passes) take(key string) (value string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.of[key]
	if e == nil {
		return "", false
	}
	delete(p.of, key)
	return p.order.Remove(e).(heldPass).by, true
}

// passOf derives the pass of a connection; both ends derive the same.
func passOf(info credentials.AuthInfo) (pass string, ok bool) {
	of, ok := info.(credentials.TLSInfo)
	if !ok {
		return "", false
	}
	secret, err := of.State.ExportKeyingMaterial(passLabel, nil, passBytes)
	return hex.EncodeToString(secret), err == nil
}

// give remembers the pass of a client's connection.
func (p *passes) give(info credentials.AuthInfo, who identity.Name) {
	if pass, ok := passOf(info); ok {
		p.put(pass, paysFor(who))
	}
}

// paysFor returns the user that is charged for a caller's handshakes, a task's user for a task. It
// is empty for masters and schedulers, which are not charged because the cell depends on them.
func paysFor(name identity.Name) string {
	if name.Role == identity.Master || name.Role == identity.Scheduler {
		return ""
	}
	return chargedUser(name)
}

// inTurn makes handshakes on a server wait for their first turns. A guest with a pass waits here,
// when its first message has been read; others wait before that (Guest.Read).
//
// A crowded guest is asked to say hello again, with a key of a group for which few clients send one
// at first. Most of a flood's connections say the same hello and no more, so they cost reading
// that, and neither a key exchange nor a signature.
func (p *passes) inTurn(config *tls.Config) *tls.Config {
	again := config.Clone()
	again.CurvePreferences = []tls.CurveID{helloAgain}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		guest, ok := hello.Conn.(*entrance.Guest)
		if !ok {
			return nil, nil
		}
		for _, proto := range hello.SupportedProtos {
			if pass, ok := strings.CutPrefix(proto, passPrefix); ok {
				if by, ok := p.take(pass); ok {
					guest.Vouch(by)
				}
				break
			}
		}
		if err := guest.Begin(); err != nil || !guest.Crowded() || !slices.Contains(hello.SupportedCurves, helloAgain) {
			return nil, err
		}
		return again, nil
	}
	return config
}

// shown are the passes that this process holds as a client of masters, by passAt.
var shown = &passes{of: map[string]*list.Element{}, most: maxPassesHeld}

// passAt is the key of a client's pass: who it is and which server it calls.
func (c *clientCredentials) passAt(raw net.Conn) string {
	return c.own.Name().String() + " " + raw.RemoteAddr().String()
}

// showing returns the credentials for a new connection, with a pass if there is one.
func (c *clientCredentials) showing(raw net.Conn) credentials.TransportCredentials {
	if c.want.Role != identity.Master {
		return c.TransportCredentials
	}
	pass, ok := shown.take(c.passAt(raw))
	if !ok {
		return c.TransportCredentials
	}
	config := c.own.ClientTLS(c.want)
	config.NextProtos = append(slices.Clone(config.NextProtos), passPrefix+pass)
	return credentials.NewTLS(config)
}

// keepPass stores the pass of a connection for the next one to the same server.
func (c *clientCredentials) keepPass(raw net.Conn, info credentials.AuthInfo) {
	if c.want.Role != identity.Master {
		return
	}
	if pass, ok := passOf(info); ok {
		shown.put(c.passAt(raw), pass)
	}
}
