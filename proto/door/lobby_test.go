package door_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"borg/identity"
	"borg/proto/door"
)

const (
	// maxHTTPConns and a few more.
	lobbyFull = 256 + 40
	lobbyPage = "figures"
)

// lobbyServer serves one page until the test ends, at an address.
func lobbyServer(t *testing.T, addr string) (dial func() net.Conn) {
	t.Helper()
	l, err := door.ListenHTTP(addr)
	if err != nil {
		t.Fatal(err)
	}
	pages := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, lobbyPage) })
	serveUntilEnd(t, func(ctx context.Context) error {
		return l.ServeHTTP(ctx, door.Config{Identity: source(t, identity.Master, "1")}, pages)
	})
	network, at := "tcp", strings.Trim(l.URL()[strings.Index(l.URL(), "//")+2:], "/")
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, at = "unix", path
	}
	at = strings.Replace(at, "[::]", "127.0.0.1", 1)
	return func() net.Conn {
		c, err := net.Dial(network, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func serveUntilEnd(t *testing.T, serve func(ctx context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
}

// lobbyTLS is a connection of somebody who has a certificate.
func lobbyTLS(t *testing.T, raw net.Conn, who *identity.Source, proto string) net.Conn {
	t.Helper()
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proto}, Certificates: []tls.Certificate{*who.Current().TLS()}})
	if err := c.Handshake(); err != nil {
		t.Fatalf("an honest handshake: %v", err)
	}
	return c
}

// ending is what is left to say after half of a request, and what comes of it.
func ending(c net.Conn, rest string) error {
	if _, err := io.WriteString(c, rest); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && string(body) != lobbyPage {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}

const halfRequest, otherHalf = "GET /metrics HTTP/1.1\r\nHost: 127.0", ".0.1:80\r\n\r\n"

// TestHalfSentRequestsKeepNobodyOut: with more connections than a listener for pages has, which say nothing, begin a
// handshake, send half of a request, or one and half of the next, the oldest are closed, and each newcomer is served at once.
func TestHalfSentRequestsKeepNobodyOut(t *testing.T) {
	who := source(t, identity.User, "alice")
	hello := string(helloBytes())
	for _, at := range []struct{ name, addr string }{
		{"plain", "127.0.0.1:0"}, {"tls", "0.0.0.0:0"}, {"socket", "unix:" + t.TempDir() + "/pages"},
	} {
		secure := at.name == "tls"
		for _, attack := range []struct {
			name  string
			begin func(t *testing.T, c net.Conn) net.Conn
		}{
			{"nothing", func(_ *testing.T, c net.Conn) net.Conn { return c }},
			{"a hello", func(_ *testing.T, c net.Conn) net.Conn { _, _ = io.WriteString(c, hello[:len(hello)-1]); return c }},
			{"half a request", func(t *testing.T, c net.Conn) net.Conn {
				if secure {
					c = lobbyTLS(t, c, who, "http/1.1")
				}
				_, _ = io.WriteString(c, halfRequest)
				return c
			}},
			{"one and a half", func(t *testing.T, c net.Conn) net.Conn {
				if secure {
					c = lobbyTLS(t, c, who, "http/1.1")
				}
				if err := ending(c, halfRequest+otherHalf); err != nil {
					t.Fatalf("a request before half of one: %v", err)
				}
				_, _ = io.WriteString(c, halfRequest)
				return c
			}},
			{"nothing in http/2", func(t *testing.T, c net.Conn) net.Conn {
				if secure {
					c = lobbyTLS(t, c, who, "h2")
					_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
				}
				return c
			}},
		} {
			t.Run(at.name+" "+attack.name, func(t *testing.T) {
				dial := lobbyServer(t, at.addr)
				var conns []net.Conn
				for range lobbyFull {
					conns = append(conns, attack.begin(t, dial()))
				}
				honest := dial()
				if secure {
					honest = lobbyTLS(t, honest, who, "http/1.1")
				}
				for range 3 {
					if err := ending(honest, halfRequest+otherHalf); err != nil {
						t.Fatalf("a newcomer: %v", err)
					}
				}
				// What it says, if anything, ends.
				if _, err := io.Copy(io.Discard, conns[0]); err != nil && strings.Contains(err.Error(), "timeout") {
					t.Errorf("the oldest: %v", err)
				}
				if strings.Contains(attack.name, "half") {
					if err := ending(conns[lobbyFull-1], otherHalf); err != nil {
						t.Errorf("the newest is not served when it ends its request: %v", err)
					}
				}
			})
		}
	}
}
