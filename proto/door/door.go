// Package door is the wire's one door: every program dials and listens through
// it, so that limits, keepalive and identity are decided in one place.
//
// Both ends of each connection prove who they are by a certificate of the cell
// (package identity), over TLS 1.3; on a socket of one machine, by running as the
// same user. Whoever dials says whom he expects and talks to nobody else. Whoever
// listens keeps to the one table of which role may make which call (access.go),
// and knows the caller from the connection, never from what was sent.
//
// What belongs to whom is not decided here.
package door

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/tell/hostpath"
	"borg/tell/repeat"
)

const (
	// maxMessageBytes bounds one message on the wire. Longer things are streamed
	// in chunks.
	maxMessageBytes = 8 << 20
	// maxCallsPerConn bounds the calls that one connection has under way.
	maxCallsPerConn = 4096
	// maxHeaderBytes bounds what is said about a call beside its message.
	maxHeaderBytes = 16 << 10
	// What the other end may send of one message, and of all on one connection, before
	// it is read. Fixed, so that nothing is sent to find out how wide the line is: that
	// was a ping for each short call.
	streamWindowBytes, connWindowBytes = 1 << 20, 4 << 20
	// readBufferBytes is what each connection reads at once. There are thousands, most of
	// them at rest.
	readBufferBytes = 8 << 10
	// handshakeTimeout is how long somebody may take to say who he is.
	handshakeTimeout = 10 * time.Second
	// maxConnAge is when a client is asked to connect anew, with the certificate
	// that it has by then. With half the life of a certificate, after which it is
	// renewed, that stays below a whole one, so no call ever meets an expired one.
	maxConnAge = 25 * time.Minute
)

// KeepAlive is how who dials makes sure that the other end is there, while nothing is
// heard of it.
var KeepAlive = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}

// Listen opens addr: "host:port", or "unix:PATH".
func Listen(addr string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if len(path) >= 108 {
			return nil, fmt.Errorf("listen on socket %s: the path has %d bytes and a socket path may have 107; choose a shorter directory", path, len(path))
		}
		// A socket file that a killed process left is in the way of the next one.
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("listen on socket %s: %w", path, err)
		}
		return net.Listen("unix", path)
	}
	return net.Listen("tcp", addr)
}

// Config is what a server needs to know whom to let in.
type Config struct {
	// Who listens. Required.
	Identity *identity.Source
	// IdentityAt says who listens at an address of ours, where one process stands for
	// many: nil where nobody does. Calls know by peer.LocalAddr which of them was
	// called. Nil: Identity listens at all.
	IdentityAt func(local net.Addr) *identity.Source
	// Revoked says that certificates which a name was issued at that time are no
	// longer believed; asked with each call, and now and then for each connection.
	// Nil: none is revoked.
	Revoked func(name identity.Name, issued time.Time) bool
	// Admit says why a call of somebody who is no master is not served now; asked by its
	// head, before anything of its message is read. It must not block. Nil: all are.
	Admit func(method string, caller identity.Name) error
	// Answer returns a message as its caller may be shown it, just before it is sent, or
	// an error in its place. Nil: all are sent as they are.
	Answer func(ctx context.Context, m any) (any, error)
	// Hears of connections that were refused, and of the errors of calls that are told
	// without paths of this machine; nil: nobody.
	Logger *slog.Logger
	// Directories and files of this program, which no caller is told of. Nil: only what
	// no program tells.
	HostPaths *hostpath.Dirs
	// Hears of each connection and call that was refused, also of those that their
	// handler refused as not allowed; nil: nobody. It must not block.
	Refused func(Refusal)
	// Hears of each call of a service that has ended, but not of those that were
	// refused by their heads; nil: nobody. It must not block.
	Called func(Call)

	// What the logger is told of the errors of calls. NewServer makes it.
	told *repeat.Limiter
}

// Call is a call that has ended.
type Call struct {
	// Full name, of a service that is served.
	Method string
	// It may have lasted for as long as its caller liked.
	Stream bool
	Code   codes.Code
	Took   time.Duration
}

// Refusal is a connection or a call that was refused.
type Refusal struct {
	// Full name of the call; empty: the connection.
	Method string
	// Who it was, as far as a certificate told; zero: nobody knows.
	Caller identity.Name
	// From where.
	Addr string
	Err  error
}

// NewServer returns a gRPC server with the cell's limits and its table of who may
// call what.
func NewServer(config Config) *grpc.Server {
	if plaintext && config.Logger != nil {
		config.Logger.Error("this build has no TLS and believes everybody: it is for measurements alone")
	}
	config.told = new(repeat.Limiter)
	crowd := newCrowd()
	creds := &serverCredentials{
		TransportCredentials: credentials.NewTLS(crowd.passes.inTurn(config.Identity.ServerTLS())), own: config.Identity,
		log: &refusals{log: config.Logger, tell: config.Refused}, crowd: crowd, config: &config,
	}
	// Masters keep connections to machines that others of them poll.
	idle := KeepAlive.Time
	if config.Identity.Name().Role == identity.Borglet {
		idle *= 6
	}
	return grpc.NewServer(append(config.interceptors(),
		grpc.Creds(creds),
		grpc.ForceServerCodecV2(newRequestCodec()),
		grpc.InTapHandle(config.tap),
		grpc.StatsHandler(callCounter{}),
		grpc.ConnectionTimeout(handshakeTimeout),
		// Connections have buffers of their own (inflow.go).
		grpc.ReadBufferSize(0),
		grpc.InitialWindowSize(streamWindowBytes), grpc.InitialConnWindowSize(connWindowBytes),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxCallsPerConn),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idle, Timeout: KeepAlive.Timeout, MaxConnectionAge: maxConnAge}),
	)...)
}

// Dial returns a connection to addr ("host:port" or "unix:PATH"), made when
// first used. It shows who's certificate, and goes no further unless want
// answers.
func Dial(addr string, who *identity.Source, want identity.Name, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	target := addr
	if !strings.HasPrefix(addr, "unix:") {
		target = "passthrough:///" + addr
	}
	base := []grpc.DialOption{
		grpc.WithReadBufferSize(readBufferBytes),
		grpc.WithInitialWindowSize(streamWindowBytes), grpc.WithInitialConnWindowSize(connWindowBytes),
		grpc.WithTransportCredentials(&clientCredentials{credentials.NewTLS(who.ClientTLS(want)), who, want}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithKeepaliveParams(KeepAlive),
	}
	conn, err := grpc.NewClient(target, append(base, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return conn, nil
}

// AnyMaster is whom a member of the cell expects at the address of a master.
func AnyMaster(who *identity.Source) identity.Name {
	return identity.Name{Cell: who.Name().Cell, Role: identity.Master}
}

const (
	handshakeFailed = "transport: authentication handshake failed: "
	prefaceFailed   = "error reading server preface: "
)

// Distrusted says that a call failed because one of both ends does not believe
// the other one's certificate. Trying again changes nothing.
func Distrusted(err error) bool {
	text := status.Convert(err).Message()
	return strings.Contains(text, handshakeFailed) && !strings.Contains(text, "EOF") && !strings.Contains(text, "deadline") && !strings.Contains(text, "reset") ||
		strings.Contains(text, "refused our certificate")
}

// Reason is why a call failed, in words for people: without the wrapping that
// says only by which library it was made.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	s, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	text := s.Message()
	if _, dial, ok := strings.Cut(text, "transport: Error while dialing: "); ok {
		return strings.TrimSuffix(dial, `"`)
	}
	_, reason, connecting := strings.Cut(text, `connection error: desc = "`)
	// A connection that the library closed by itself was taken and then never
	// greeted, as by a process that hangs.
	hangs := strings.HasSuffix(strings.TrimSuffix(text, `"`), "use of closed network connection") || strings.Contains(reason, "deadline exceeded")
	if hangs || s.Code() == codes.DeadlineExceeded && !connecting {
		return "no answer in time"
	}
	if connecting {
		reason = strings.TrimSuffix(strings.TrimPrefix(reason, handshakeFailed), `"`)
		if strings.Contains(reason, "refused our certificate") {
			reason = strings.TrimPrefix(reason, prefaceFailed)
		}
		return reason
	}
	return text
}
