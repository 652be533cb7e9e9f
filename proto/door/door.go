// Package door is the wire's one door: every program dials and listens through
// it, so that limits, keepalive and identity are decided in one place.
//
// Who is on the other end is not yet proved: a caller names itself in the
// metadata of each call and is believed. Until certificates are here, listen
// on loopback or on a network where everybody is trusted.
package door

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
)

// maxMessageBytes bounds one message on the wire. Longer things are streamed
// in chunks.
const maxMessageBytes = 8 << 20

// maxCallsPerConn bounds the calls that one connection has under way.
const maxCallsPerConn = 4096

const (
	userKey = "borg-user"
	roleKey = "borg-role"
)

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

// NewServer returns a gRPC server with the cell's limits.
func NewServer(opts ...grpc.ServerOption) *grpc.Server {
	base := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.MaxConcurrentStreams(maxCallsPerConn),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}
	return grpc.NewServer(append(base, opts...)...)
}

// Dial returns a connection to addr ("host:port" or "unix:PATH"), made when
// first used. Calls on it carry who.
func Dial(addr string, who *borgpb.Principal, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	target := addr
	if !strings.HasPrefix(addr, "unix:") {
		target = "passthrough:///" + addr
	}
	base := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(announce(ctx, who), method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return stream(announce(ctx, who), desc, cc, method, opts...)
		}),
	}
	conn, err := grpc.NewClient(target, append(base, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return conn, nil
}

// announce puts who into the metadata of a call, unless a replica is passing
// on a call in somebody else's name.
func announce(ctx context.Context, who *borgpb.Principal) context.Context {
	if md, ok := metadata.FromOutgoingContext(ctx); ok && len(md.Get(userKey)) > 0 {
		return ctx
	}
	return As(ctx, who)
}

// As makes calls with the returned context carry who. A follower uses it to
// forward a call in the name of the user who made it.
func As(ctx context.Context, who *borgpb.Principal) context.Context {
	return metadata.AppendToOutgoingContext(ctx, userKey, who.GetUser(), roleKey, who.GetRole().String())
}

// Caller says who made the call that is being served.
func Caller(ctx context.Context) *borgpb.Principal {
	md, _ := metadata.FromIncomingContext(ctx)
	first := func(key string) string {
		if v := md.Get(key); len(v) > 0 {
			return v[0]
		}
		return ""
	}
	return &borgpb.Principal{
		User: first(userKey),
		Role: borgpb.Role(borgpb.Role_value[first(roleKey)]),
	}
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
	// A connection that the library closed by itself was taken and then never
	// greeted, as by a process that hangs.
	if s.Code() == codes.DeadlineExceeded || strings.HasSuffix(strings.TrimSuffix(text, `"`), "use of closed network connection") {
		return "no answer in time"
	}
	if _, reason, ok := strings.Cut(text, `connection error: desc = "`); ok {
		return strings.TrimSuffix(reason, `"`)
	}
	return text
}
