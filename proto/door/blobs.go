package door

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"borg/identity"
)

const (
	// maxBlobAnswers are the answers of one machine that are under way at one time. More
	// wait: they are long, and those that are oldest are not the worst.
	maxBlobAnswers = 64
	// blobHeadTimeout is how long a machine may take before it answers.
	blobHeadTimeout = 15 * time.Second
)

// ServeBlobs serves parts of packages to other machines of the cell until ctx ends, over
// TLS and to nobody else. An answer may take long; who makes it ends those that are not
// taken.
func ServeBlobs(ctx context.Context, listener net.Listener, config Config, blobs http.Handler) error {
	server := &http.Server{
		Handler: &blobGuard{config, blobs, make(chan struct{}, maxBlobAnswers)}, ReadHeaderTimeout: httpHeadTimeout,
		IdleTimeout: httpIdleTimeout, MaxHeaderBytes: maxHeaderBytes, TLSConfig: config.Identity.ServerTLS(),
		ErrorLog:    log.New(refusedConns{&refusals{log: config.Logger, tell: config.Refused}}, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	server.TLSConfig.NextProtos = blobProtos
	// Who fetches goes on elsewhere.
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := newLobby(listener).serve(server, config.Identity); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve packages on %s: %w", listener.Addr(), err)
	}
	return nil
}

// blobProtos: long answers, one at a time on each connection.
var blobProtos = []string{"http/1.1"}

// BlobClient asks machines of the cell for parts of packages, each at its address.
func BlobClient(who *identity.Source) *http.Client {
	config := who.ClientTLS(identity.Name{Cell: who.Name().Cell, Role: identity.Borglet})
	config.NextProtos = blobProtos
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, TLSHandshakeTimeout: handshakeTimeout, ResponseHeaderTimeout: blobHeadTimeout,
		DialContext: (&net.Dialer{Timeout: handshakeTimeout}).DialContext,
		// Digests are of the bytes as they are.
		DisableCompression: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: httpIdleTimeout,
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}}
}

// blobGuard lets requests of machines in.
type blobGuard struct {
	config Config
	blobs  http.Handler
	places chan struct{}
}

func (g *blobGuard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := g.config.admitPage(r, BlobsPage); err != nil {
		refusePage(w, err)
		return
	}
	select {
	case g.places <- struct{}{}:
		defer func() { <-g.places }()
	case <-r.Context().Done():
		return
	}
	g.blobs.ServeHTTP(w, r)
}
