package door

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"borg/identity"
	"borg/proto/door/entrance"
)

const (
	// maxHTTPConns bounds the connections of one listener for pages or packages that have no whole
	// request under way. With one more, the oldest of the address that has most is closed.
	maxHTTPConns = 256
	// maxHTTPAnswers bounds those that have one, in the same way. Answers are made within
	// milliseconds, so the oldest one is read slowly.
	maxHTTPAnswers = 256
)

// lobby is a listener for HTTP. It always accepts new connections and closes old ones in their
// place, so that clients that send nothing, half a request, or do not read keep nobody out.
type lobby struct {
	net.Listener
	waiting, answered *entrance.Hall
	// Connections are without TLS.
	plain bool
	// Who listens. Set by serve.
	own *identity.Source
}

func newLobby(l net.Listener) *lobby {
	return &lobby{
		Listener: l,
		waiting:  entrance.NewHall(entrance.Limits{Host: maxHTTPConns, All: maxHTTPConns}),
		answered: entrance.NewHall(entrance.Limits{Host: maxHTTPAnswers, All: maxHTTPAnswers}),
	}
}

func (l *lobby) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	guest := l.waiting.Enter(conn, shaking.atDoors)
	if l.plain {
		guest.Plain()
	}
	return guest, nil
}

// moved is the ConnState of the server.
func (l *lobby) moved(conn net.Conn, to http.ConnState) {
	secure, _ := conn.(*tls.Conn)
	if secure != nil {
		conn = secure.NetConn()
	}
	guest, ok := conn.(*entrance.Guest)
	if !ok || to == http.StateNew {
		return
	}
	shook := secure != nil && guest.InHandshake()
	if !guest.Leave() {
		// It was dropped. Its handler may still run; it takes nobody's place for that.
		return
	}
	if shook {
		l.welcome(guest, secure.ConnectionState())
	}
	switch to {
	case http.StateActive:
		l.answered.Take(guest)
	case http.StateIdle:
		l.waiting.Take(guest)
	}
}

// welcome pays back the handshake of a member of the cell, as at the door for gRPC.
func (l *lobby) welcome(guest *entrance.Guest, state tls.ConnectionState) {
	if !state.HandshakeComplete {
		return
	}
	if who, _, err := l.own.WhoCalls(state.PeerCertificates, time.Now()); err == nil {
		guest.Welcome(paysFor(who))
	}
}

// serve serves the connections of the lobby, over TLS if the server has a TLSConfig.
func (l *lobby) serve(server *http.Server, own *identity.Source) error {
	server.ConnState, l.own = l.moved, own
	if l.plain = server.TLSConfig == nil; l.plain {
		return server.Serve(l)
	}
	// Browsers show no passes.
	server.TLSConfig = newPasses().inTurn(server.TLSConfig)
	return server.ServeTLS(l, "", "")
}
