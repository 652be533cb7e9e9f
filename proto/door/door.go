// Package door makes and accepts the connections of all programs, so that limits, keepalive and
// identity are decided in one place.
//
// Both ends of each connection prove their identity by a certificate of the cell (package
// identity), over TLS 1.3; on a socket of one machine, by running as the same user. A client
// states which server it expects and talks to no other. A server allows calls by one table of
// roles and methods (access.go), and takes the caller from the connection, never from a message.
//
// Whether a caller may touch a certain object is not decided here.
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
	// maxMessageBytes bounds one message on the wire. Larger data is streamed in chunks.
	maxMessageBytes = 8 << 20
	// maxCallsPerConn bounds the concurrent calls of one connection.
	maxCallsPerConn = 4096
	// maxHeaderBytes bounds the headers of a call.
	maxHeaderBytes = 4 << 10
	// Flow control windows of a stream and of a connection. Fixed sizes turn off gRPC's
	// estimate of the bandwidth, which sends a ping for each short call.
	streamWindowBytes, connWindowBytes = 1 << 20, 4 << 20
	// readBufferBytes is the read buffer of a connection: small, as there are thousands of
	// mostly idle ones.
	readBufferBytes = 8 << 10
	// handshakeTimeout bounds the time of a handshake.
	handshakeTimeout = 10 * time.Second
	// maxConnAge is the age at which a server asks a client to reconnect, with its renewed
	// certificate. A certificate is renewed after half its life; that and maxConnAge together
	// are less than its life, so no call meets an expired certificate.
	maxConnAge = 25 * time.Minute
)

// KeepAlive is how a client checks that a silent server is still there.
var KeepAlive = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}

// Listen opens addr: "host:port", or "unix:PATH". Accepted connections have no TCP keepalive, which
// would cost four system calls for each: gRPC pings idle clients, and HTTP has deadlines for them.
func Listen(addr string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if len(path) >= 108 {
			return nil, fmt.Errorf("listen on socket %s: the path has %d bytes and a socket path may have 107; choose a shorter directory", path, len(path))
		}
		// A killed process leaves its socket file behind.
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("listen on socket %s: %w", path, err)
		}
		return net.Listen("unix", path)
	}
	return (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), "tcp", addr)
}

// Config is the configuration of a server.
type Config struct {
	// Identity of the server. Required.
	Identity *identity.Source
	// IdentityAt returns the identity of the server at a local address, or nil if there is
	// none, for a process that stands for many servers. Handlers find the address in
	// peer.LocalAddr. Nil means Identity at all addresses.
	IdentityAt func(local net.Addr) *identity.Source
	// Revoked reports whether a certificate of name that was issued at that time is revoked.
	// It is asked for each call, and now and then for each connection. Nil means none is.
	Revoked func(name identity.Name, issued time.Time) bool
	// Admit returns the error with which to refuse a call, before its message is read. It is
	// not asked for calls of masters. It must not block. Nil admits all calls.
	Admit func(method string, caller identity.Name) error
	// Turn waits until a message of a caller may be decoded, and returns what to call when that is
	// done, or the error with which to refuse the call. It is asked for messages of more than
	// turnBytes of callers who are no masters and no schedulers. Nil decodes all at once.
	Turn func(ctx context.Context, caller identity.Name) (leave func(), err error)
	// Answer returns the part of an answer that its caller may see, just before it is sent,
	// or an error in its place. Nil sends answers unchanged.
	Answer func(ctx context.Context, m any) (any, error)
	// Logger of refused connections, and of the errors of calls whose paths are hidden from
	// the caller; nil for none.
	Logger *slog.Logger
	// Directories and files of this program to hide from callers, besides those that are
	// always hidden. May be nil.
	HostPaths *hostpath.Dirs
	// Refused is called for each connection and call that was refused, by a handler as not
	// allowed too. It must not block. May be nil.
	Refused func(Refusal)
	// Called is called for each call that has ended, except those refused before their
	// message was read. It must not block. May be nil.
	Called func(Call)

	// Limits repeated log lines. Made by NewServer.
	repeated *repeat.Limiter
}

// Call is a call that has ended.
type Call struct {
	// Full name, of a service that is served.
	Method string
	// Whether it was a stream, whose duration is up to the caller.
	Stream bool
	Code   codes.Code
	Took   time.Duration
}

// Refusal is a connection or a call that was refused.
type Refusal struct {
	// Full name of the method; empty if the connection was refused.
	Method string
	// Caller by its certificate; zero if unknown.
	Caller identity.Name
	// From where.
	Addr string
	Err  error
}

// NewServer returns a gRPC server with the cell's limits and its table of who may
// call what.
func NewServer(config Config) *Server {
	if plaintext && config.Logger != nil {
		config.Logger.Error("this build has no TLS and believes everybody: it is for measurements alone")
	}
	config.repeated = new(repeat.Limiter)
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
	return &Server{crowd: crowd, config: &config, Server: grpc.NewServer(append(config.interceptors(),
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
	)...)}
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
	if want.Role == identity.Borglet {
		base = append(base, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newAnswerCodec())))
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
