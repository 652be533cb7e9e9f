package door

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"

	"borg/identity"
	"borg/proto/door/entrance"
)

// authInfo is who is on the other end of a connection.
type authInfo struct {
	credentials.CommonAuthInfo
	name identity.Name
	// Of the certificate that was shown; zero on a socket of this machine.
	issued, expires time.Time
	// Fingerprint of that certificate.
	shown []byte
	// Another authority of the cell's choice says who it is.
	foreign bool
	// Calls under way on this connection; nil: they are not counted.
	calls *atomic.Int32
	// What the caller has here, on all of its connections; nil: it is not counted.
	here *present
	// What is read from this connection goes through it; nil: a socket.
	in *readingConn
	// Follows what comes; nil: a master's, or a socket.
	flow *inflow
	// Ends this connection; nil: a slow caller keeps it.
	hangUp func()
}

// conns is how many connections the caller has.
func (a *authInfo) conns() int64 {
	if a.here == nil {
		return 1
	}
	return a.here.conns.Load()
}

// rest has nothing read from the connection for so long.
func (a *authInfo) rest(d time.Duration) {
	if a.in != nil {
		a.in.rest(d)
	}
}

// AuthType implements credentials.AuthInfo.
func (authInfo) AuthType() string { return "borg" }

func infoOf(level credentials.SecurityLevel, name identity.Name) authInfo {
	return authInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: level}, name: name}
}

// fromTLS is who a verified handshake has shown.
func fromTLS(info credentials.AuthInfo) (authInfo, error) {
	tls, ok := info.(credentials.TLSInfo)
	if !ok || len(tls.State.PeerCertificates) == 0 {
		return authInfo{}, fmt.Errorf("no certificate was shown")
	}
	leaf := tls.State.PeerCertificates[0]
	name, err := identity.NameOf(leaf)
	if err != nil {
		return authInfo{}, err
	}
	return ofCertificate(leaf, name), nil
}

func ofCertificate(leaf *x509.Certificate, name identity.Name) authInfo {
	a := infoOf(credentials.PrivacyAndIntegrity, name)
	a.issued, a.expires, a.shown = leaf.NotBefore, leaf.NotAfter, identity.Fingerprint(leaf.Raw)
	return a
}

// callerOn is who called own, by the same rules as in the handshake.
func callerOn(own *identity.Source, info credentials.AuthInfo) (authInfo, error) {
	tls, ok := info.(credentials.TLSInfo)
	if !ok || own.Foreign == nil || len(tls.State.PeerCertificates) == 0 {
		return fromTLS(info)
	}
	name, foreign, err := own.WhoCalls(tls.State.PeerCertificates, time.Now())
	if err != nil || !foreign {
		return fromTLS(info)
	}
	who := ofCertificate(tls.State.PeerCertificates[0], name)
	who.foreign = true
	return who, nil
}

// serverCredentials proves who calls: by TLS, or on a socket of this machine by
// the user that the other process runs as.
type serverCredentials struct {
	credentials.TransportCredentials
	own    *identity.Source
	log    *refusals
	crowd  *crowd
	config *Config
}

func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if socket, ok := raw.(*net.UnixConn); ok {
		if err := sameUser(socket); err != nil {
			c.log.refused("a process of this machine", err)
			return nil, nil, err
		}
		// Only a master's own processes listen on sockets, for their master.
		own := c.own.Name()
		return buffered(raw, nil), infoOf(credentials.PrivacyAndIntegrity, identity.Name{Cell: own.Cell, Role: identity.Master, ID: own.ID}), nil
	}
	conn, who, err := c.shake(raw)
	if err != nil {
		c.log.refused(raw.RemoteAddr().String(), err)
		return nil, nil, err
	}
	return c.config.watch(conn, who), who, nil
}

// called returns the identity that listens at the connection's local address, and its credentials.
func (c *serverCredentials) called(raw net.Conn) (*identity.Source, credentials.TransportCredentials, error) {
	if c.config.IdentityAt == nil {
		return c.own, c.TransportCredentials, nil
	}
	own := c.config.IdentityAt(raw.LocalAddr())
	if own == nil {
		return nil, nil, fmt.Errorf("nobody listens at %s", raw.LocalAddr())
	}
	return own, credentials.NewTLS(c.crowd.passes.inTurn(own.ServerTLS())), nil
}

// shake learns the name of the caller.
func (c *serverCredentials) shake(raw net.Conn) (net.Conn, authInfo, error) {
	guest := c.crowd.hall.Enter(raw, shaking.atDoors)
	defer guest.Leave()
	own, tls, err := c.called(raw)
	if err != nil {
		return nil, authInfo{}, err
	}
	if plaintext {
		name, err := plainHandshake(raw, own.Name(), true)
		who := infoOf(credentials.PrivacyAndIntegrity, name)
		// As if with a certificate that was just issued: masters pass on since when
		// their callers have theirs.
		who.issued, who.expires = time.Now(), time.Now().Add(identity.Life)
		return buffered(raw, nil), who, err
	}
	conn, info, err := tls.ServerHandshake(guest)
	if !guest.Leave() {
		return nil, authInfo{}, entrance.ErrDropped
	}
	if err != nil {
		return nil, authInfo{}, err
	}
	who, err := callerOn(own, info)
	var counted net.Conn
	if err == nil {
		guest.Welcome(paysFor(who.name))
		c.crowd.passes.give(info, who.name)
		who.in = reading(conn, who.name)
		counted, who.here, who.flow, err = c.crowd.admit(who.in, who.name)
	}
	if err != nil {
		conn.Close()
		return nil, authInfo{}, err
	}
	who.calls = new(atomic.Int32)
	if who.here != nil {
		who.hangUp = func() { counted.Close() }
	}
	return counted, who, nil
}

func (c *serverCredentials) Clone() credentials.TransportCredentials {
	return &serverCredentials{c.TransportCredentials.Clone(), c.own, c.log, c.crowd, c.config}
}

// revokedEvery is how often a connection is checked for revocation. It bounds how long one stays
// open after its certificate was revoked. Calls and messages are refused at once.
const revokedEvery = 2 * time.Second

// watchedConn is closed when its other end is revoked.
type watchedConn struct {
	net.Conn
	look func() (revoked bool)

	mu sync.Mutex
	// Nil when closed; guarded by mu.
	timer *time.Timer
}

func (c *Config) watch(conn net.Conn, who authInfo) net.Conn {
	if c.Revoked == nil {
		return conn
	}
	w := &watchedConn{Conn: conn, look: func() bool { return c.revoked(&who) }}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(revokedEvery, w.lookAgain)
	return w
}

func (w *watchedConn) lookAgain() {
	if w.look() {
		w.Close()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Reset(revokedEvery)
	}
}

func (w *watchedConn) Close() error {
	w.mu.Lock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	w.mu.Unlock()
	return w.Conn.Close()
}

// refusals tells an operator of connections that were refused, once a second at
// most: anybody on the network can cause them.
type refusals struct {
	log *slog.Logger
	// Hears of each; may be nil.
	tell func(Refusal)

	mu sync.Mutex
	// Guarded by mu.
	toldAt time.Time
	// Not told of since; guarded by mu.
	untold int
}

func (r *refusals) refused(from string, err error) {
	// A connection that only probes the door, as a load balancer does, is not logged.
	if strings.Contains(err.Error(), "EOF") || strings.Contains(err.Error(), "connection reset") {
		return
	}
	// Who was dropped may be anybody; the metric counts them.
	if r.tell != nil && !errors.Is(err, entrance.ErrDropped) {
		// Whom a certificate names that is not believed is in the error, and no more.
		r.tell(Refusal{Addr: from, Err: err})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log == nil {
		return
	}
	if now := time.Now(); now.Sub(r.toldAt) < time.Second {
		r.untold++
		return
	} else {
		r.toldAt = now
	}
	r.log.Warn("connection refused", "from", from, "err", err, "others", r.untold)
	r.untold = 0
}

// clientCredentials shows one's certificate and looks at that of the other end.
type clientCredentials struct {
	credentials.TransportCredentials
	own  *identity.Source
	want identity.Name
}

func (c *clientCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if socket, ok := raw.(*net.UnixConn); ok {
		if err := sameUser(socket); err != nil {
			return nil, nil, err
		}
		return raw, infoOf(credentials.PrivacyAndIntegrity, c.want), nil
	}
	if plaintext {
		name, err := plainHandshake(raw, c.own.Name(), false)
		return raw, infoOf(credentials.PrivacyAndIntegrity, name), err
	}
	own := c.own.Current()
	if own.Expired(time.Now()) {
		return nil, nil, fmt.Errorf("our own certificate, of %s, expired at %s", own.Name, own.Expires().UTC().Format(time.RFC3339))
	}
	done := func(bool) {}
	if c.want.Role == identity.Borglet {
		var err error
		if done, err = shakeInTurn(ctx); err != nil {
			return nil, nil, err
		}
	}
	conn, info, err := c.showing(raw).ClientHandshake(ctx, authority, raw)
	done(err == nil)
	if err != nil {
		return nil, nil, err
	}
	c.keepPass(raw, info)
	who, err := fromTLS(info)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return &tellingConn{Conn: reading(conn, who.name), who: who.name, own: own}, who, nil
}

func (c *clientCredentials) Clone() credentials.TransportCredentials {
	return &clientCredentials{c.TransportCredentials.Clone(), c.own, c.want}
}

// tellingConn puts into words that the other end refused us. In TLS 1.3 a client
// hears of it only after its own side of the handshake is done: as a bare alert
// when it reads, or as a connection that is gone when it writes.
type tellingConn struct {
	net.Conn
	who identity.Name
	own *identity.Credential
	// Something was read: we were let in.
	heard atomic.Bool
}

func (c *tellingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, c.tell(err)
}

func (c *tellingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && !c.heard.Load() {
		// The connection is lost; what it was lost for may still be there to read.
		_ = c.Conn.SetReadDeadline(time.Now().Add(alertPatience))
		if _, alert := c.Conn.Read(make([]byte, 1)); isAlert(alert) {
			err = alert
		}
	}
	return n, c.tell(err)
}

// alertPatience bounds the wait for a word on why a connection was closed.
const alertPatience = 500 * time.Millisecond

func isAlert(err error) bool {
	return err != nil && strings.Contains(err.Error(), "remote error: tls: ")
}

func (c *tellingConn) tell(err error) error {
	if !isAlert(err) {
		return err
	}
	return fmt.Errorf("%s refused our certificate, of %s, valid from %s to %s: its log says why; are the clocks right, and is the certificate of this cell? (%w)",
		c.who.Words(), c.own.Name, c.own.IssuedAt().UTC().Format(time.RFC3339), c.own.Expires().UTC().Format(time.RFC3339), err)
}

// sameUser refuses the other end of a socket unless it runs as the same user, or
// as root.
func sameUser(socket *net.UnixConn) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("ask who is on the other end of a socket: %w", failed)
	}
	if own := uint32(os.Geteuid()); peer.Uid != own && peer.Uid != 0 {
		return fmt.Errorf("process %d of user %d is on the other end of a socket that is for user %d", peer.Pid, peer.Uid, own)
	}
	return nil
}
