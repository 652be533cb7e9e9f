package door

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// rawMessages sends requests that are bytes already.
type rawMessages struct{ encoding.CodecV2 }

func (c rawMessages) Marshal(m any) (mem.BufferSlice, error) {
	if b, ok := m.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(m)
}

// densest returns messages of at most so many bytes that have as many elements as can be:
// one for each field that is a list or a message, however deep.
func densest(md protoreflect.MessageDescriptor, size, depth int) map[string][]byte {
	all := make(map[string][]byte)
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if fd.Message() == nil && !fd.IsList() && specs[fd.FullName()] == nil {
			continue
		}
		one := protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), nil)
		if fd.IsList() {
			all[string(fd.Name())] = []byte(strings.Repeat(string(one), size/len(one)))
		}
		of := fd.Message()
		if of == nil {
			of = specs[fd.FullName()]
		}
		if of == nil || fd.IsMap() || depth == 0 {
			continue
		}
		for where, inner := range densest(of, size-10, depth-1) {
			all[fmt.Sprint(fd.Name(), ".", where)] = protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), inner)
		}
	}
	return all
}

// validator answers once it may.
type validator struct {
	borgrpc.UnimplementedMasterServiceServer
	calls, mutations atomic.Int64
	may              chan struct{}
}

func (v *validator) Validate(context.Context, *borgrpc.ValidateRequest) (*borgrpc.ValidateResponse, error) {
	v.calls.Add(1)
	<-v.may
	return &borgrpc.ValidateResponse{}, nil
}

func (v *validator) Mutate(context.Context, *borgrpc.MutateRequest) (*borgrpc.MutateResponse, error) {
	v.mutations.Add(1)
	return &borgrpc.MutateResponse{}, nil
}

func (v *validator) Mutations(stream borgrpc.MasterService_MutationsServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := stream.Send(&borgrpc.MutateResponse{}); err != nil {
			return err
		}
	}
}

// weighedCell is a server that blocks validations.
type weighedCell struct {
	*startedDoor
	v *validator
}

func newWeighedCell(t *testing.T) *weighedCell {
	t.Helper()
	v := &validator{may: make(chan struct{})}
	return &weighedCell{startDoor(t, func(s *Server) { borgrpc.RegisterMasterServiceServer(s, v) }), v}
}

// dial connects a caller who sends bytes as they are.
func (c *weighedCell) dial(who *identity.Source) *grpc.ClientConn {
	raw := rawMessages{encoding.GetCodecV2("proto")}
	conn, err := Dial(c.addr, who, c.master, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw)))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	return conn
}

func (c *weighedCell) validate(conn *grpc.ClientConn, request []byte) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Minute)
	defer cancel()
	return conn.Invoke(ctx, "/borgrpc.MasterService/Validate", request, new(borgrpc.ValidateResponse))
}

// ops is a ValidateRequest of so many ops with nothing in them.
func ops(n int) []byte { return []byte(strings.Repeat("\x0a\x00", n)) }

// TestDenseRequestsAreNotDecoded: a user and a task send, within the bytes that a call may
// have, requests of as many elements as that can be, in each field: none is decoded, and
// each is told why, also on a stream.
func TestDenseRequestsAreNotDecoded(t *testing.T) {
	c := newWeighedCell(t)
	conns := []*grpc.ClientConn{c.dial(c.alice), c.dial(c.source(identity.Task, "alice/web/0"))}
	check := func(what string, err error) {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "texts, entries and messages") {
			t.Errorf("%s: %v, want that it has too many elements", what, err)
		}
	}
	tried := 0
	for where, request := range densest((*borgrpc.MutateRequest)(nil).ProtoReflect().Descriptor(), mutateBytes-100, 6) {
		tried++
		conn := conns[tried%2]
		check("Mutate with "+where, conn.Invoke(t.Context(), mutate, request, new(borgrpc.MutateResponse)))
		if tried%7 > 0 {
			continue
		}
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/borgrpc.MasterService/Mutations")
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(request)
		check("Mutations with "+where, stream.RecvMsg(new(borgrpc.MutateResponse)))
	}
	if tried < 50 {
		t.Errorf("only %d requests were tried", tried)
	}
	check("Validate", c.validate(conns[0], ops(validateBytes/2-50)))
	if c.v.calls.Load()+c.v.mutations.Load() > 0 {
		t.Error("some were decoded and reached their handlers")
	}
}

// TestDecodedRequestsCount: what requests take once they are decoded counts for their user
// until they are answered, also when their connection was closed meanwhile. More is
// refused, another user is served, and afterwards nothing is left of it.
func TestDecodedRequestsCount(t *testing.T) {
	c := newWeighedCell(t)
	const n, each = 60, 40_000
	weight := shapes.of((*borgrpc.ValidateRequest)(nil).ProtoReflect().Descriptor()).Weigh(ops(each), maxValidateElements).Bytes
	fit := int64(maxReceivingOfUser / weight)
	if fit < 2 || fit > n/2 {
		t.Fatalf("%d requests fit", fit)
	}
	conn, another := c.dial(c.alice), c.dial(c.source(identity.Task, "alice/web/0"))
	var refused, begun atomic.Int64
	var calling sync.WaitGroup
	begin := func(conn *grpc.ClientConn) {
		begun.Add(1)
		calling.Go(func() {
			switch err := c.validate(conn, ops(each)); status.Code(err) {
			case codes.OK, codes.Canceled: // those under way end with their connection
			case codes.ResourceExhausted, codes.Unavailable: // the connection was closed for the bytes that came
				refused.Add(1)
			default:
				refused.Add(1)
				t.Errorf("a request ended: %v", err)
			}
		})
	}
	wait := func() {
		for refused.Load()+c.v.calls.Load() < begun.Load() {
			time.Sleep(time.Millisecond)
		}
	}
	for i := range n {
		begin([]*grpc.ClientConn{conn, another}[i%2])
	}
	wait()
	// What has come and is not decoded counts as well, so more may fit now, one by one.
	for before := refused.Load(); refused.Load() == before && c.v.calls.Load() <= fit; wait() {
		begin(conn)
		wait()
	}
	if got := c.v.calls.Load(); got > fit || got < fit-1 {
		t.Errorf("%d requests of %d KiB are under way, want %d", got, weight>>10, fit)
	}
	// Who leaves does not get rid of them.
	conn.Close()
	another.Close()
	anew := c.dial(c.alice)
	if err := c.validate(anew, ops(each)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("on another connection: %v, want ResourceExhausted", err)
	}
	if err := c.dial(c.source(identity.User, "bob")).Invoke(t.Context(), mutate, &borgrpc.MutateRequest{Op: &borgpb.Op{}}, new(borgrpc.MutateResponse)); err != nil {
		t.Errorf("beside them, a call of bob: %v", err)
	}
	close(c.v.may)
	calling.Wait()
	for {
		err := c.validate(anew, ops(each))
		if err == nil {
			break
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("after they were answered: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSpecsAreFields: each field whose bytes are weighed as a spec is there, and holds bytes.
func TestSpecsAreFields(t *testing.T) {
	for name := range specs {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if fd, ok := d.(protoreflect.FieldDescriptor); err != nil || !ok || fd.Kind() != protoreflect.BytesKind {
			t.Errorf("%s is no field of bytes: %v, %v", name, d, err)
		}
	}
}

// TestRefusedIsNeverCounted: a request that is refused for what it would take once decoded closes
// no connection of its user, though bytes of others come at the same moment.
func TestRefusedIsNeverCounted(t *testing.T) {
	c, u := newCrowd(), newPresentUser("alice")
	c.users[u.key] = u
	f := newInflow(c, u)
	f.hangUp = func() {}
	u.flows[f] = true
	large := &receiving{flow: f}
	if large.count(maxReceivingOfUser * 3 / 4); large.reserve(maxReceivingOfUser / 2) {
		t.Fatal("a request that does not fit is decoded")
	}
	var refusing sync.WaitGroup
	refusing.Go(func() {
		for range 100_000 {
			large.reserve(maxReceivingOfUser / 2)
		}
	})
	small := &receiving{flow: f}
	for range 100_000 {
		small.add(1)
		small.take(1)
	}
	refusing.Wait()
	if f.closing.Load() {
		t.Error("the connection is closed")
	}
	if got := u.receiving.Load(); got != maxReceivingOfUser*3/4 {
		t.Errorf("%d bytes are counted, want what came first", got)
	}
}
