package door

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/tell/hostpath"
)

// behalfKey is the metadata with the name of the caller for whom a master forwards a call, and
// issuedKey the metadata with the time at which that caller's certificate was issued, in
// nanoseconds since 1970. Both are refused from anybody but a master.
const (
	behalfKey = "borg-behalf"
	issuedKey = "borg-behalf-issued"
)

// callerKey is the key of the context value in which the guard stores the caller.
type callerKey struct{}

// caller is the caller of a call that is being served.
type caller struct {
	name identity.Name
	// Time at which its certificate was issued; zero if it showed none.
	issued time.Time
}

// Caller returns the name of the caller of the call that is being served.
func Caller(ctx context.Context) identity.Name {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c.name
}

// Issued returns the time at which the caller's certificate was issued; zero on a socket.
func Issued(ctx context.Context) time.Time {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c.issued
}

// As returns a context in which the call that is being served is name's: for what a master does
// in its own name on behalf of a caller who may not do it.
func As(ctx context.Context, name identity.Name) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{name: name})
}

// Shown returns the fingerprint of the caller's certificate; nil on a socket.
func Shown(ctx context.Context) []byte {
	info, _ := authOf(ctx)
	return info.shown
}

// Foreign reports whether the caller's certificate is from another authority.
func Foreign(ctx context.Context) bool {
	info, _ := authOf(ctx)
	return info.foreign
}

// Callee returns the name of the server that answered a call made with grpc.Peer.
func Callee(p *peer.Peer) identity.Name {
	info, _ := p.AuthInfo.(authInfo)
	return info.name
}

// Behalf returns a context with which a master makes calls for name, whose certificate was
// issued at that time; zero for a program of the cell itself. Servers accept it from masters
// alone.
func Behalf(ctx context.Context, name identity.Name, issued time.Time) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, behalfKey, name.String())
	if !issued.IsZero() {
		ctx = metadata.AppendToOutgoingContext(ctx, issuedKey, strconv.FormatInt(issued.UnixNano(), 10))
	}
	return ctx
}

// Revoked returns the error of a call with a revoked certificate.
func Revoked(name identity.Name) error {
	return status.Errorf(codes.Unauthenticated, "the certificate of %s %s", name.Words(), wasRevoked)
}

// wasRevoked ends what Revoked says.
const wasRevoked = "was revoked"

// IsRevoked reports whether an error is that of Revoked, also when it came over a connection.
func IsRevoked(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.Unauthenticated && strings.HasSuffix(s.Message(), wasRevoked)
}

var roles = map[identity.Role]borgpb.Role{
	identity.User: borgpb.Role_ROLE_USER, identity.Master: borgpb.Role_ROLE_MASTER, identity.Scheduler: borgpb.Role_ROLE_SCHEDULER,
	identity.Borglet: borgpb.Role_ROLE_BORGLET, identity.Task: borgpb.Role_ROLE_TASK,
}

// Principal returns a name in the form of the log.
func Principal(name identity.Name) *borgpb.Principal {
	p := &borgpb.Principal{Role: roles[name.Role]}
	switch name.Role {
	case identity.User:
		p.User = name.ID
	case identity.Task:
		p.User, p.Task = name.User(), name.ID
	}
	return p
}

// guard returns a context that holds the caller, or the error with which the call is refused.
func (c *Config) guard(ctx context.Context, method string) (context.Context, error) {
	info, err := c.connection(ctx)
	if err != nil {
		return nil, err
	}
	who := caller{name: info.name, issued: info.issued}
	behalf, issued := metadata.ValueFromIncomingContext(ctx, behalfKey), metadata.ValueFromIncomingContext(ctx, issuedKey)
	if len(behalf) > 0 || len(issued) > 0 {
		if who, err = c.passedOn(info.name, behalf, issued); err != nil {
			return nil, err
		}
	}
	if err := Allowed(method, who.name); err != nil {
		return nil, err
	}
	return context.WithValue(ctx, callerKey{}, who), nil
}

func notForOthers(by identity.Name) error {
	return status.Errorf(codes.PermissionDenied, "%s speaks for somebody else; only masters pass calls on", by.Words())
}

// passedOn returns the caller for whom a master forwards a call. It checks for revocation too,
// because the master that forwards the call may be behind.
func (c *Config) passedOn(by identity.Name, behalf, issued []string) (who caller, err error) {
	if by.Role != identity.Master {
		return who, notForOthers(by)
	}
	if len(behalf) == 1 {
		who.name, err = identity.ParseName(behalf[0])
	}
	if len(issued) == 1 && err == nil {
		var ns int64
		ns, err = strconv.ParseInt(issued[0], 10, 64)
		who.issued = time.Unix(0, ns)
	}
	if err != nil || len(behalf) != 1 || len(issued) > 1 || who.name.Cell != by.Cell || (who.issued.IsZero() && who.name.Role != identity.Master) {
		return who, status.Errorf(codes.PermissionDenied, "%s passes on a call of nobody in this cell", by.Words())
	}
	if c.Revoked != nil && c.Revoked(who.name, who.issued) {
		return who, Revoked(who.name)
	}
	return who, nil
}

// connection returns the identity of the other end of the connection. The error is that its
// certificate has expired or was revoked since the connection was made.
func (c *Config) connection(ctx context.Context) (authInfo, error) {
	info, known := authOf(ctx)
	if !known {
		return authInfo{}, status.Error(codes.Unauthenticated, "the connection has no identity; connect with a certificate of the cell")
	}
	return info, c.believed(&info)
}

// believed returns an error if the certificate of the other end has expired or was revoked.
func (c *Config) believed(info *authInfo) error {
	if !info.expires.IsZero() && time.Now().After(info.expires.Add(identity.Tolerance)) {
		return status.Errorf(codes.Unauthenticated, "the certificate of %s with which this connection was made has expired; connect anew", info.name.Words())
	}
	if c.revoked(info) {
		return Revoked(info.name)
	}
	return nil
}

// revoked reports whether the certificate of the other end was revoked. A socket has none.
func (c *Config) revoked(info *authInfo) bool {
	return c.Revoked != nil && !info.issued.IsZero() && c.Revoked(info.name, info.issued)
}

func (c *Config) interceptors() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (_ any, err error) {
			defer c.count(info.FullMethod, false, time.Now(), &err)
			defer func() { receivingOf(ctx).wasted(err) }()
			guarded, err := c.guard(ctx, info.FullMethod)
			if err != nil {
				c.tell(ctx, info.FullMethod, err)
				return nil, err
			}
			if err := undecoded(ctx); err != nil {
				return nil, err
			}
			resp, err := handle(guarded, req)
			if err == nil && c.Answer != nil {
				resp, err = c.Answer(guarded, resp)
			}
			if err == nil {
				err = patienceOf(ctx).answer(Caller(guarded), resp)
			}
			c.tell(guarded, info.FullMethod, err)
			return resp, c.hidePaths(info.FullMethod, err)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
			defer c.count(info.FullMethod, true, time.Now(), &err)
			ctx, err := c.guard(stream.Context(), info.FullMethod)
			if err != nil {
				c.tell(stream.Context(), info.FullMethod, err)
				return err
			}
			guarded := &guardedStream{ServerStream: stream, ctx: ctx, config: c, patience: patienceOf(ctx), from: receivingOf(ctx)}
			guarded.other, _ = authOf(ctx)
			if repeated[info.FullMethod] {
				err = handle(srv, &repeatedCalls{guardedStream: guarded, method: info.FullMethod})
			} else {
				err = handle(srv, guarded)
			}
			c.tell(ctx, info.FullMethod, err)
			return c.hidePaths(info.FullMethod, err)
		}),
	}
}

// hidePaths returns the error for the caller, without paths of this machine, and logs the
// original.
func (c *Config) hidePaths(method string, err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	text := s.Message()
	if !ok {
		text = hostpath.Text(err)
	}
	if text = c.HostPaths.Hide(text); text == s.Message() {
		return err
	}
	// A caller can make calls fail without end; the log must not grow as fast.
	if others, ok := c.repeated.Allow(method+": "+text, time.Now()); ok && c.Logger != nil {
		c.Logger.Warn("a call failed, and its caller is not told of paths", "method", method, "err", err, "others", others)
	}
	p := s.Proto()
	p.Message = text
	return status.FromProto(p).Err()
}

// count reports a call that has ended to Called.
func (c *Config) count(method string, stream bool, began time.Time, err *error) {
	if c.Called != nil {
		c.Called(Call{Method: method, Stream: stream, Code: status.Code(*err), Took: time.Since(began)})
	}
}

// Told marks the error of a call whose refusal its handler has recorded: Refused does not hear
// of it again.
func Told(err error) error { return &toldError{err} }

type toldError struct{ error }

func (e *toldError) Unwrap() error { return e.error }

// GRPCStatus is what the caller is sent.
func (e *toldError) GRPCStatus() *status.Status { return status.Convert(e.error) }

// tell reports a call that was not allowed to Refused, except one that a master forwards: the
// master has reported it.
func (c *Config) tell(ctx context.Context, method string, err error) {
	code := status.Code(err)
	var told *toldError
	if c.Refused == nil || err == nil || errors.As(err, &told) || (code != codes.PermissionDenied && code != codes.Unauthenticated) {
		return
	}
	refused := Refusal{Method: method, Err: err}
	if p, _ := peer.FromContext(ctx); p != nil {
		if info, ok := p.AuthInfo.(authInfo); ok {
			refused.Caller = info.name
		}
		if p.Addr != nil {
			refused.Addr = p.Addr.String()
		}
	}
	if caller := Caller(ctx); caller != (identity.Name{}) && caller != refused.Caller {
		return
	}
	c.Refused(refused)
}

// guardedStream checks the caller's certificate with each message, since a stream may last for
// days.
type guardedStream struct {
	grpc.ServerStream
	ctx    context.Context
	config *Config
	// Identity of the other end, and how long its reading may take. They are from ctx, where
	// finding them for each message would cost more.
	other    authInfo
	patience *patience
	from     *receiving
	// Memory that from is charged for the last message: until the next one is asked for.
	held int64
}

func (s *guardedStream) Context() context.Context { return s.ctx }

func (s *guardedStream) SendMsg(m any) error {
	if err := s.still(); err != nil {
		return err
	}
	if s.config.Answer != nil {
		var err error
		if m, err = s.config.Answer(s.ctx, m); err != nil {
			return err
		}
	}
	return s.patience.sendWhenWritten(s.ServerStream, s.ctx, m)
}

func (s *guardedStream) RecvMsg(m any) error {
	if err := s.receive(m); err != nil {
		return err
	}
	return s.still()
}

// receive reads and decodes the next message.
func (s *guardedStream) receive(m any) error {
	message, ok := m.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "%T is no message", m)
	}
	if s.from != nil {
		s.from.take(s.held)
	}
	in := incoming{message: message, from: s.from, turn: s.config.turnOf(s.ctx)}
	err := s.ServerStream.RecvMsg(&in)
	if s.held = in.bytes; err != nil {
		return err
	}
	return in.err
}

// still returns an error if the caller's certificate was revoked. Expiry does not end a stream:
// a log that is followed, or the messages of raft, may outlive the certificate.
func (s *guardedStream) still() error {
	if s.config.revoked(&s.other) {
		return Revoked(s.other.name)
	}
	return nil
}

// repeated lists the streams on which a user makes many calls, one after the other: each request
// is answered before the next one is read.
var repeated = map[string]bool{"/borgrpc.MasterService/Mutations": true}

// repeatedCalls admits and counts each request on a stream as a call. The first one was admitted
// with the stream.
type repeatedCalls struct {
	*guardedStream
	method string
	// Time of the last request; zero if there was none.
	began time.Time
}

func (s *repeatedCalls) RecvMsg(m any) error {
	if err := s.receive(m); err != nil {
		return err
	}
	first := s.began.IsZero()
	s.began = time.Now()
	if first {
		return nil
	}
	err := s.config.believed(&s.other)
	if err == nil && s.config.Admit != nil {
		if err = s.config.Admit(s.method, s.other.name); err != nil {
			select {
			case <-time.After(restAfter(err, s.other.conns())):
			case <-s.ctx.Done():
			}
		}
	}
	return err
}

func (s *repeatedCalls) SendMsg(m any) error {
	err := s.guardedStream.SendMsg(m)
	s.config.count(s.method, false, s.began, &err)
	return err
}
