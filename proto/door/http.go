package door

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
)

const (
	// A browser has this long for the head of a request, and for all of it.
	httpHeadTimeout = 5 * time.Second
	httpReadTimeout = 10 * time.Second
	// An answer takes this long at most, its making included.
	httpWriteTimeout = 30 * time.Second
	httpIdleTimeout  = time.Minute
	// What is under way when the program ends has so long.
	httpEndTimeout = 250 * time.Millisecond
)

// Page is a kind of what programs show of themselves over HTTP.
type Page string

const (
	// StatusPage tells what goes on, with names of jobs, machines and users.
	StatusPage Page = "status"
	// MetricsPage is figures, without a name of anybody.
	MetricsPage Page = "metrics"
	// BlobsPage is parts of packages, by digest.
	BlobsPage Page = "packages"
)

// pageAccess is which roles may look at which pages: who may read the cell may
// read what its programs say of it. A task sees figures, so that the cell can
// watch itself. Machines fetch packages from each other.
var pageAccess = map[Page][]identity.Role{
	StatusPage:  {identity.User, identity.Master},
	MetricsPage: {identity.User, identity.Master, identity.Task},
	BlobsPage:   {identity.Borglet},
}

// HTTPListener listens for browsers and for what collects metrics.
type HTTPListener struct {
	listener *lobby
	// How callers are told apart: certificates, the user of a process, or not at
	// all, which is for this machine alone.
	tls, plain bool
}

// ListenHTTP opens addr for pages. An address of this machine alone ("127.0.0.1:P",
// "[::1]:P") is served in plain text, to every process here, as profiles are; on a
// socket ("unix:PATH") to processes of the same user; on any other address over TLS
// to those whose certificates are good.
func ListenHTTP(addr string) (*HTTPListener, error) {
	l, err := Listen(addr)
	if err != nil {
		return nil, err
	}
	return pagesOver(addr, l), nil
}

// AwaitHTTP is ListenHTTP for a program that must come up although somebody else has addr, as
// Await is Listen for it.
func AwaitHTTP(addr string, told func(err error)) (*HTTPListener, error) {
	l, err := Await(addr, told)
	if err != nil {
		return nil, err
	}
	return pagesOver(addr, l), nil
}

// pagesOver serves pages over a listener on addr.
func pagesOver(addr string, l net.Listener) *HTTPListener {
	h := &HTTPListener{}
	switch {
	case strings.HasPrefix(addr, "unix:"):
		l = sameUserListener{l}
	case IsLoopback(addr):
		h.plain = true
	default:
		h.tls = true
	}
	h.listener = newLobby(l)
	return h
}

// URL is where the pages are.
func (l *HTTPListener) URL() string {
	scheme := "http://"
	if l.tls {
		scheme = "https://"
	}
	return scheme + l.listener.Addr().String() + "/"
}

// Close closes a listener that is not served.
func (l *HTTPListener) Close() error { return l.listener.Close() }

// IsLoopback tells addresses that only this machine reaches. A name is none: it
// may lead elsewhere tomorrow.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip, parsed := netip.ParseAddr(host)
	return err == nil && parsed == nil && ip.IsLoopback()
}

// pageOf says what kind of page is asked for. How pages look and that the program
// answers is no secret either.
func pageOf(path string) Page {
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "metrics", "healthz", "style.css":
		return MetricsPage
	}
	return StatusPage
}

// ServeHTTP serves pages until ctx ends.
func (l *HTTPListener) ServeHTTP(ctx context.Context, config Config, pages http.Handler) error {
	g := &pageGuard{config: config, listener: l, pages: pages, pace: newPagePace()}
	server := &http.Server{
		Handler: g, ReadHeaderTimeout: httpHeadTimeout, ReadTimeout: httpReadTimeout,
		WriteTimeout: httpWriteTimeout, IdleTimeout: httpIdleTimeout, MaxHeaderBytes: maxHeaderBytes,
		// Its own words are about connections that were refused or hung up.
		ErrorLog:    log.New(refusedConns{&refusals{log: config.Logger, tell: config.Refused}}, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		// Answers under way are let go, but not waited for long.
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpEndTimeout)
		defer cancel()
		if server.Shutdown(patience) != nil {
			server.Close()
		}
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	if l.tls {
		server.TLSConfig = config.Identity.ServerTLS()
		server.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
	}
	if err := l.listener.serve(server, config.Identity); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve pages on %s: %w", l.listener.Addr(), err)
	}
	return nil
}

// pageGuard lets requests in that may be answered.
type pageGuard struct {
	config   Config
	listener *HTTPListener
	pages    http.Handler
	pace     *pagePace
}

func (g *pageGuard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	// Nothing on these pages runs, is loaded from elsewhere, or is shown inside of
	// others.
	head.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("X-Frame-Options", "DENY")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, fmt.Sprintf("%s changes nothing here: pages are only read. To change the cell: borgcfg help", r.Method), http.StatusMethodNotAllowed)
		return
	}
	who, err := g.admit(r)
	if err != nil {
		refusePage(w, err)
		return
	}
	if payer := g.paysFor(who, r); payer != "" && !g.pace.allow(payer) {
		g.pace.refuse(w, r, payer)
		return
	}
	g.pages.ServeHTTP(w, r.WithContext(As(r.Context(), who)))
}

// paysFor names whose budget a request is charged to: a user, who pays for their tasks, a program of the cell,
// or, in plain text, an address. It is empty on a socket, where only the program itself asks.
func (g *pageGuard) paysFor(who identity.Name, r *http.Request) string {
	switch {
	case g.listener.plain:
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		return host
	case g.listener.tls:
		return chargedUser(who)
	}
	return ""
}

func refusePage(w http.ResponseWriter, err error) {
	code := http.StatusForbidden
	if status.Code(err) == codes.Unauthenticated {
		code = http.StatusUnauthorized
	}
	http.Error(w, status.Convert(err).Message(), code)
}

// admit says who asks, or why the request is refused. In plain text nobody knows who it is,
// and on a socket it is the program itself.
func (g *pageGuard) admit(r *http.Request) (who identity.Name, err error) {
	if g.listener.plain {
		// A page of another site can have its own name lead here; it cannot have its
		// reader's browser say that it asks for this machine.
		if host, _, err := net.SplitHostPort(r.Host); (err != nil || host != "localhost") && !IsLoopback(r.Host) {
			return who, status.Errorf(codes.PermissionDenied, "these pages are at %s and not at %q", g.listener.URL(), r.Host)
		}
		return who, nil
	}
	if !g.listener.tls {
		return g.config.Identity.Name(), nil
	}
	return g.config.admitPage(r, pageOf(r.URL.Path))
}

// admitPage says who asks over TLS, or why he is refused.
func (c *Config) admitPage(r *http.Request, page Page) (name identity.Name, err error) {
	if r.TLS == nil {
		return name, status.Error(codes.Unauthenticated, "nobody knows who asks")
	}
	name, _, err = c.Identity.WhoCalls(r.TLS.PeerCertificates, time.Now())
	if err != nil {
		return name, status.Error(codes.Unauthenticated, err.Error())
	}
	err = AllowedPage(page, name)
	if err == nil && c.Revoked != nil && c.Revoked(name, r.TLS.PeerCertificates[0].NotBefore) {
		err = Revoked(name)
	}
	if err != nil && c.Refused != nil {
		c.Refused(Refusal{Method: "/pages/" + string(page), Caller: name, Addr: r.RemoteAddr, Err: err})
	}
	return name, err
}

// AllowedPage says whether somebody's role may look at a page, and if not, whose
// may.
func AllowedPage(page Page, who identity.Name) error {
	return allowed(pageAccess[page], "the "+string(page)+" page", who)
}

// refusedConns takes the words of the library about connections.
type refusedConns struct{ to *refusals }

func (c refusedConns) Write(line []byte) (int, error) {
	c.to.refused("a browser", errors.New(strings.TrimSpace(string(line))))
	return len(line), nil
}

// sameUserListener closes connections of processes of other users unheard.
type sameUserListener struct{ net.Listener }

func (l sameUserListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if socket, ok := conn.(*net.UnixConn); ok && sameUser(socket) == nil {
			return conn, nil
		}
		conn.Close()
	}
}

// HTTPOn is a client of the pages on a socket of this machine.
func HTTPOn(path string) *http.Client {
	return &http.Client{
		// A program that hangs must not hold up who shows what it says.
		Timeout: httpHeadTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
				if err != nil {
					return nil, err
				}
				if err := sameUser(conn.(*net.UnixConn)); err != nil {
					conn.Close()
					return nil, err
				}
				return conn, nil
			},
		},
	}
}
