package door

import (
	"crypto/tls"
	"net"
	"net/http"

	"borg/proto/door/entrance"
)

const (
	// maxHTTPConns bounds the connections of one listener for pages or packages that have no request under way, because they
	// have said nothing, or half of one. With one more the oldest of the address that has most is closed.
	maxHTTPConns = 256
	// maxHTTPAnswers bounds those that have one, in the same way. Answers are made within milliseconds: who is oldest reads
	// slowly.
	maxHTTPAnswers = 256
)

// lobby is a listener for requests over HTTP. Newcomers always come in, so who says nothing, sends half of a request or does
// not read its answer keeps nobody out.
type lobby struct {
	net.Listener
	waiting, answered *entrance.Hall
	// Nobody makes a handshake.
	plain bool
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

// moved hears what becomes of a connection, from whoever serves it.
func (l *lobby) moved(conn net.Conn, to http.ConnState) {
	secure, ok := conn.(*tls.Conn)
	if ok {
		conn = secure.NetConn()
	}
	guest, ok := conn.(*entrance.Guest)
	if !ok || to == http.StateNew {
		return
	}
	guest.Leave()
	switch to {
	case http.StateActive:
		l.answered.Take(guest)
	case http.StateIdle:
		l.waiting.Take(guest)
	}
}

// serve has a server take its connections from here, over TLS if it has a configuration for it.
func (l *lobby) serve(server *http.Server) error {
	server.ConnState = l.moved
	if l.plain = server.TLSConfig == nil; l.plain {
		return server.Serve(l)
	}
	// Browsers show no passes.
	server.TLSConfig = newPasses().inTurn(server.TLSConfig)
	return server.ServeTLS(l, "", "")
}
