package door

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
	"borg/proto/weight"
)

// gRPC decodes a message before anybody can say how large it may become, and answers one
// that it cannot decode as a fault of the server's own, which clients try again. So a server
// of ours has gRPC decode into an incoming, which knows the call and keeps the error.

const (
	// maxRequestElements bounds the texts, numbers, messages, elements of lists and entries
	// of maps in one message of a caller who is no master and no scheduler, those of its
	// specs included. An op may have cell.MaxOpElements.
	maxRequestElements = 40_960
	// maxValidateElements bounds the same in a message that carries several ops.
	maxValidateElements = 131_072
	// maxAnswerBytes bounds what the answer of a borglet takes once it is decoded.
	maxAnswerBytes = 64 << 20
	// Elements beyond which no answer of a borglet is weighed on.
	maxAnswerElements = 1_048_576
	// turnBytes is the largest message that is decoded without a turn.
	turnBytes = 4 << 10
	// maxAwaitingTurn bounds what the calls of one user hold while one more message waits for its
	// turn; beyond it the message is refused. It is half of what they may hold, so that messages that
	// come meanwhile close no connection.
	maxAwaitingTurn = maxReceivingOfUser / 2
)

// incoming is a message of a call that is about to be decoded.
type incoming struct {
	message proto.Message
	// Whose call it is; nil: a master's, a scheduler's, or a process's of this machine.
	from *receiving
	// Config.Turn of the call; nil decodes at once.
	turn func() (leave func(), err error)
	// Memory that from was charged for the message.
	bytes int64
	// Why the message was not decoded.
	err error
}

// decode decodes what came, unless it would take too much.
func (in *incoming) decode(data []byte) error {
	of := in.message.ProtoReflect().Descriptor()
	if in.from != nil && in.turn != nil && len(data) > turnBytes {
		if held := in.from.flow.user.receiving.Load(); held > maxAwaitingTurn {
			return TooMuch(fmt.Sprintf("the calls that you have under way hold %d MiB, and with more than %d MiB no further %s waits for its turn to be read", held>>20, maxAwaitingTurn>>20, of.Name()), time.Second)
		}
		leave, err := in.turn()
		if err != nil {
			return err
		}
		defer leave()
	}
	if in.from != nil {
		most := maxRequestElements
		if of.FullName() == validateRequest {
			most = maxValidateElements
		}
		w := shapes.of(of).Weigh(data, most)
		if w.Elements > most {
			return status.Errorf(codes.InvalidArgument, "this %s has more than %d texts, entries and messages", of.Name(), most)
		}
		if !in.from.reserve(w.Bytes) {
			return TooMuch(fmt.Sprintf("the calls that you have under way, with this %s of %d KiB, take more than the %d MiB that one user may have", of.Name(), w.Bytes>>10, maxReceivingOfUser>>20), time.Second)
		}
		in.bytes += w.Bytes
	}
	if err := proto.Unmarshal(data, in.message); err != nil {
		return malformed(of, data, err)
	}
	return nil
}

// reserve counts the memory that a message takes once it is decoded, and reports whether it may be
// decoded: if its user and all users stay within their bounds, or if it takes at most
// alwaysTakenBytes. If all users together hold too much, the connection with the most is closed.
// What is refused is never counted: bytes that come meanwhile would close a connection for it.
func (r *receiving) reserve(n int64) bool {
	user, all := &r.flow.user.receiving, &r.flow.crowd.receiving
	if n <= alwaysTakenBytes {
		if _, ofAll := r.count(n); ofAll > maxReceiving {
			r.flow.crowd.hangUpLargest(nil, receivedBytes, ofAll, maxReceiving)
		}
		return true
	}
	if !addWithin(user, n, maxReceivingOfUser) {
		return false
	}
	if !addWithin(all, n, maxReceiving) {
		user.Add(-n)
		r.flow.crowd.hangUpLargest(nil, receivedBytes, all.Load()+n, maxReceiving-n)
		return false
	}
	r.hold(n)
	return true
}

// addWithin adds n to a sum unless that is more than most then.
func addWithin(sum *atomic.Int64, n, most int64) bool {
	for {
		was := sum.Load()
		if was+n > most {
			return false
		}
		if sum.CompareAndSwap(was, was+n) {
			return true
		}
	}
}

const validateRequest = protoreflect.FullName("borgrpc.ValidateRequest")

// specs are what ops carry in encoded form and the cell decodes to check them.
var specs = weight.Carried{
	"borg.SubmitJob.spec":      jobSpec,
	"borg.UpdateJob.spec":      jobSpec,
	"borg.SubmitAllocSet.spec": allocSetSpec,
	"borg.UpdateAllocSet.spec": allocSetSpec,
}

var (
	jobSpec      = (*borgpb.JobSpec)(nil).ProtoReflect().Descriptor()
	allocSetSpec = (*borgpb.AllocSetSpec)(nil).ProtoReflect().Descriptor()
)

// shapes are those of the messages that were weighed.
var shapes shapeTable

type shapeTable struct{ known sync.Map }

func (t *shapeTable) of(md protoreflect.MessageDescriptor) *weight.Shape {
	if s, ok := t.known.Load(md.FullName()); ok {
		return s.(*weight.Shape)
	}
	s, _ := t.known.LoadOrStore(md.FullName(), weight.Of(md, specs))
	return s.(*weight.Shape)
}

// Server is a gRPC server that knows whose call it is when it decodes a message.
type Server struct {
	*grpc.Server
	crowd  *crowd
	config *Config
}

// Serve serves the connections of a listener until Stop is called.
func (s *Server) Serve(l net.Listener) error {
	return s.Server.Serve(&pickyListener{Listener: l, passes: s.crowd.passes, full: shaking.atDoors.Full})
}

// RegisterService implements grpc.ServiceRegistrar.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	weighed := *desc
	weighed.Methods = slices.Clone(desc.Methods)
	for i := range weighed.Methods {
		weighed.Methods[i].Handler = s.config.weighing(weighed.Methods[i].Handler)
	}
	s.Server.RegisterService(&weighed, impl)
}

// undecodedKey is where interceptors find why the request of a call was not decoded: first
// the guard says who the caller is.
type undecodedKey struct{}

func undecoded(ctx context.Context) error {
	err, _ := ctx.Value(undecodedKey{}).(error)
	return err
}

// weighing makes the handler of a call decode its request into an incoming.
func (c *Config) weighing(handler grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := incoming{from: receivingOf(ctx), turn: c.turnOf(ctx)}
		return handler(srv, ctx,
			func(request any) error {
				in.message = request.(proto.Message)
				return decode(&in)
			},
			func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
				if in.err != nil {
					ctx = context.WithValue(ctx, undecodedKey{}, in.err)
				}
				return intercept(ctx, request, info, handle)
			})
	}
}

// turnOf returns how a message of a call waits for its turn; nil if none does.
func (c *Config) turnOf(ctx context.Context) func() (leave func(), err error) {
	if c.Turn == nil {
		return nil
	}
	return func() (func(), error) {
		by, _ := authOf(ctx)
		return c.Turn(ctx, by.name)
	}
}
