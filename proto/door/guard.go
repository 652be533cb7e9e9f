package door

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/tell/hostpath"
)

// behalfKey is the metadata in which a master that passes a call on says whose
// it is, and issuedKey that in which it says since when that one has his
// certificate: nanoseconds since 1970. From anybody else they are refused: who
// calls is told by his certificate.
const (
	behalfKey = "borg-behalf"
	issuedKey = "borg-behalf-issued"
)

// callerKey is where the guard leaves who calls.
type callerKey struct{}

// caller is who makes a call, and when the certificate was issued with which he
// makes it; zero: none was shown.
type caller struct {
	name   identity.Name
	issued time.Time
}

// Caller says who made the call that is being served.
func Caller(ctx context.Context) identity.Name {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c.name
}

// Issued says since when the caller has the certificate with which the call that
// is being served was made; zero on a socket.
func Issued(ctx context.Context) time.Time {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c.issued
}

// As makes a call that is being served count as name's from here on: what a
// master does on its own for somebody who has no say.
func As(ctx context.Context, name identity.Name) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{name: name})
}

// Shown is the fingerprint of the certificate with which the call that is being
// served was made; nil on a socket.
func Shown(ctx context.Context) []byte {
	info, _ := authOf(ctx)
	return info.shown
}

// Foreign says that the call that is being served was made with a certificate of
// another authority.
func Foreign(ctx context.Context) bool {
	info, _ := authOf(ctx)
	return info.foreign
}

// Callee says who answered a call that was made with grpc.Peer.
func Callee(p *peer.Peer) identity.Name {
	info, _ := p.AuthInfo.(authInfo)
	return info.name
}

// Behalf makes calls with the returned context count as name's, who has a
// certificate since issued (zero: it is a program of the cell's own). Masters
// alone are believed.
func Behalf(ctx context.Context, name identity.Name, issued time.Time) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, behalfKey, name.String())
	if !issued.IsZero() {
		ctx = metadata.AppendToOutgoingContext(ctx, issuedKey, strconv.FormatInt(issued.UnixNano(), 10))
	}
	return ctx
}

// Revoked is what somebody hears whose certificate is not believed any more.
func Revoked(name identity.Name) error {
	return status.Errorf(codes.Unauthenticated, "the certificate of %s was revoked", name.Words())
}

var roles = map[identity.Role]borgpb.Role{
	identity.User: borgpb.Role_ROLE_USER, identity.Master: borgpb.Role_ROLE_MASTER, identity.Scheduler: borgpb.Role_ROLE_SCHEDULER,
	identity.Borglet: borgpb.Role_ROLE_BORGLET, identity.Task: borgpb.Role_ROLE_TASK,
}

// Principal is a name as the log writes it.
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

// guard lets a call in, or says why not. The returned context knows the caller.
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

// passedOn says whose call a master passes on. Whether that one was revoked is
// asked here too: the master that passes it on may be behind.
func (c *Config) passedOn(by identity.Name, behalf, issued []string) (who caller, err error) {
	if by.Role != identity.Master {
		return who, status.Errorf(codes.PermissionDenied, "%s speaks for somebody else; only masters pass calls on", by.Words())
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

// connection says who is on the other end, and whether that still counts: a
// certificate may have run out or been revoked since the connection was made.
func (c *Config) connection(ctx context.Context) (authInfo, error) {
	info, known := authOf(ctx)
	if !known {
		return authInfo{}, status.Error(codes.Unauthenticated, "nobody knows who calls")
	}
	return info, c.believed(&info)
}

// believed says why whoever is on the other end may not call any more.
func (c *Config) believed(info *authInfo) error {
	if !info.expires.IsZero() && time.Now().After(info.expires.Add(identity.Tolerance)) {
		return status.Errorf(codes.Unauthenticated, "the certificate of %s with which this connection was made has expired; connect anew", info.name.Words())
	}
	if c.revoked(info) {
		return Revoked(info.name)
	}
	return nil
}

// revoked says whether whoever is on the other end is not believed any more. On a
// socket there is no certificate.
func (c *Config) revoked(info *authInfo) bool {
	return c.Revoked != nil && !info.issued.IsZero() && c.Revoked(info.name, info.issued)
}

func (c *Config) interceptors() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (_ any, err error) {
			defer c.count(info.FullMethod, false, time.Now(), &err)
			undecoded := unreadable.take(req)
			guarded, err := c.guard(ctx, info.FullMethod)
			if err != nil {
				c.tell(ctx, info.FullMethod, err)
				return nil, err
			}
			if undecoded != nil {
				return nil, undecoded
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
			guarded := &guardedStream{ServerStream: stream, ctx: ctx, config: c, patience: patienceOf(ctx)}
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

// hidePaths is the error as the caller is told it: without the paths of this machine. The
// log has them.
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
	// A caller can make calls fail as often as it likes.
	if others, ok := c.repeated.Allow(method+": "+text, time.Now()); ok && c.Logger != nil {
		c.Logger.Warn("a call failed, and its caller is not told of paths", "method", method, "err", err, "others", others)
	}
	p := s.Proto()
	p.Message = text
	return status.FromProto(p).Err()
}

// count tells how a call has ended.
func (c *Config) count(method string, stream bool, began time.Time, err *error) {
	if c.Called != nil {
		c.Called(Call{Method: method, Stream: stream, Code: status.Code(*err), Took: time.Since(began)})
	}
}

// tell tells of a call that was refused. What a master passed on was told where it
// came from.
func (c *Config) tell(ctx context.Context, method string, err error) {
	code := status.Code(err)
	if c.Refused == nil || err == nil || (code != codes.PermissionDenied && code != codes.Unauthenticated) {
		return
	}
	told := Refusal{Method: method, Err: err}
	if p, _ := peer.FromContext(ctx); p != nil {
		if info, ok := p.AuthInfo.(authInfo); ok {
			told.Caller = info.name
		}
		if p.Addr != nil {
			told.Addr = p.Addr.String()
		}
	}
	if caller := Caller(ctx); caller != (identity.Name{}) && caller != told.Caller {
		return
	}
	c.Refused(told)
}

// guardedStream ends when its caller's certificate is revoked: it may last for
// days.
type guardedStream struct {
	grpc.ServerStream
	ctx    context.Context
	config *Config
	// What ctx says, which is asked of each message: who is on the other end, and how long
	// he is waited for.
	other    authInfo
	patience *patience
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
	s.patience.begin()
	defer s.patience.end()
	return s.ServerStream.SendMsg(m)
}

func (s *guardedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if err := unreadable.take(m); err != nil {
		return err
	}
	return s.still()
}

// still refuses the next message of whoever was revoked. A stream may outlive
// the certificate that it began with: a log that is followed, the messages of
// raft.
func (s *guardedStream) still() error {
	if s.config.revoked(&s.other) {
		return Revoked(s.other.name)
	}
	return nil
}

// repeated are streams that are one call of a user again and again: each request is
// answered before the next one is read.
var repeated = map[string]bool{"/borgrpc.MasterService/Mutations": true}

// repeatedCalls asks of each request what is asked of a call by its head, and counts it
// as a call. The first one is let in with the stream.
type repeatedCalls struct {
	*guardedStream
	method string
	// When the last request came; zero: none has.
	began time.Time
}

func (s *repeatedCalls) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if err := unreadable.take(m); err != nil {
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
			time.Sleep(restAfter(err, s.other.conns()))
		}
	}
	return err
}

func (s *repeatedCalls) SendMsg(m any) error {
	err := s.guardedStream.SendMsg(m)
	s.config.count(s.method, false, s.began, &err)
	return err
}
