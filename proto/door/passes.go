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
	// maxPasses bounds those that a door keeps, each some 200 bytes; the oldest is forgotten.
	maxPasses = 16384
	// maxPassesHeld bounds those that a process holds for the doors it calls.
	maxPassesHeld = 64
	// passPrefix begins the name of a protocol by which a pass is shown in the first message of a handshake.
	passPrefix = entrance.PassMark
	// passLabel tells the secret of a pass from others that are made of a connection's.
	passLabel = "EXPORTER-borg-pass"
	passBytes = 16
)

// passes are what a door knows its callers by before it has computed anything for them. Both ends of a connection
// derive one from its secret, so nothing is sent. Who calls shows it the next time in the clear, and it counts once:
// whoever sees it gains at most a place in line, and nothing is believed for it.
type passes struct {
	mu sync.Mutex
	// Guarded by mu, like order: by pass.
	of map[string]*list.Element
	// Of heldPass, the oldest one first.
	order list.List
	most  int
}

// heldPass is one that is kept: by a door, for whoever pays; by who calls, for a door.
type heldPass struct{ pass, by string }

func newPasses() *passes { return &passes{of: map[string]*list.Element{}, most: maxPasses} }

// put keeps a value by a key.
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

// take returns what was put, once.
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

// passOf is the pass of a connection, at both ends.
func passOf(info credentials.AuthInfo) (pass string, ok bool) {
	of, ok := info.(credentials.TLSInfo)
	if !ok {
		return "", false
	}
	secret, err := of.State.ExportKeyingMaterial(passLabel, nil, passBytes)
	return hex.EncodeToString(secret), err == nil
}

// give has the caller of a connection known the next time.
func (p *passes) give(info credentials.AuthInfo, who identity.Name) {
	if pass, ok := passOf(info); ok {
		p.put(pass, paysFor(who))
	}
}

// paysFor is who pays for the handshakes of a caller: tasks are their user's, and masters and schedulers, on
// whom the cell depends, pay nothing.
func paysFor(name identity.Name) string {
	if name.Role == identity.Master || name.Role == identity.Scheduler {
		return ""
	}
	return chargedUser(name)
}

// inTurn has handshakes wait for their turns: those with a pass when their first message has been read, so that it
// counts, and all others before. Connections are guests.
func (p *passes) inTurn(config *tls.Config) *tls.Config {
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
		return nil, guest.Begin()
	}
	return config
}

// shown are the passes that this process has for the doors of masters, by who has them and where.
var shown = &passes{of: map[string]*list.Element{}, most: maxPassesHeld}

// passAt is by what a pass is kept.
func (c *clientCredentials) passAt(raw net.Conn) string {
	return c.own.Name().String() + " " + raw.RemoteAddr().String()
}

// showing is how the caller proves who he is, with a pass if there is one.
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

// keepPass keeps the pass of a connection for the next one to that door.
func (c *clientCredentials) keepPass(raw net.Conn, info credentials.AuthInfo) {
	if c.want.Role != identity.Master {
		return
	}
	if pass, ok := passOf(info); ok {
		shown.put(c.passAt(raw), pass)
	}
}
