package door_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// oddDepth is how deep fields of messages in messages are set.
	oddDepth = 5
	// oddSparse is of how many messages that a client streams one is tried.
	oddSparse = 20
	// oddCells are the cells that share the calls: most of the time is waiting.
	oddCells = 4
	// oddWait is how long a call may last that has nothing to say.
	oddWait = 150 * time.Millisecond
	// notUTF8 stands in a message for a text that no library would send, and is replaced on
	// its way.
	notUTF8 = "(not UTF-8)"
)

// oddValues are values of one field that no honest caller sends.
func oddValues(f protoreflect.FieldDescriptor) (all []protoreflect.Value) {
	switch f.Kind() {
	case protoreflect.StringKind:
		for _, s := range []string{"", notUTF8, "\x00", "a\nb", "..", "../../etc", "a/b/c/d", "ä🦆", strings.Repeat("x", 300), strings.Repeat("y", 40_000)} {
			all = append(all, protoreflect.ValueOfString(s))
		}
	case protoreflect.BytesKind:
		for _, b := range [][]byte{{}, {0xff, 0xff, 0xff}, make([]byte, 40_000)} {
			all = append(all, protoreflect.ValueOfBytes(b))
		}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		for _, n := range []int32{math.MinInt32, -1, 0, math.MaxInt32} {
			all = append(all, protoreflect.ValueOfInt32(n))
		}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		for _, n := range []int64{math.MinInt64, -1, 0, math.MaxInt64} {
			all = append(all, protoreflect.ValueOfInt64(n))
		}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		for _, n := range []uint32{0, 1, math.MaxUint32} {
			all = append(all, protoreflect.ValueOfUint32(n))
		}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		for _, n := range []uint64{0, 1, math.MaxInt64 + 1, math.MaxUint64} {
			all = append(all, protoreflect.ValueOfUint64(n))
		}
	case protoreflect.DoubleKind:
		for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, math.MaxFloat64, math.SmallestNonzeroFloat64} {
			all = append(all, protoreflect.ValueOfFloat64(x))
		}
	case protoreflect.FloatKind:
		for _, x := range []float64{math.NaN(), math.Inf(1), -1} {
			all = append(all, protoreflect.ValueOfFloat32(float32(x)))
		}
	case protoreflect.EnumKind:
		for _, n := range []protoreflect.EnumNumber{-1, 0, 99_999} {
			all = append(all, protoreflect.ValueOfEnum(n))
		}
	case protoreflect.BoolKind:
		all = append(all, protoreflect.ValueOfBool(true), protoreflect.ValueOfBool(false))
	}
	return all
}

// eachOdd calls try with m once for each odd value of each of its fields, and of those of
// the messages in it, and leaves m as it was.
func eachOdd(m protoreflect.Message, where string, depth int, try func(where string)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		at := where + "." + string(f.Name())
		// What setting a field takes away of its oneof is put back.
		was := m.WhichOneof
		var before protoreflect.Value
		var beforeField protoreflect.FieldDescriptor
		if o := f.ContainingOneof(); o != nil && was(o) != nil {
			beforeField = was(o)
		} else if m.Has(f) {
			beforeField = f
		}
		if beforeField != nil {
			before = m.Get(beforeField)
		}
		restore := func() {
			m.Clear(f)
			if beforeField != nil {
				m.Set(beforeField, before)
			}
		}
		switch {
		case f.IsMap():
			oddMap(m, f, at, try)
		case f.IsList():
			oddList(m, f, at, depth, try)
		case f.Kind() == protoreflect.MessageKind:
			m.Clear(f)
			try(at + " unset")
			v := m.NewField(f)
			if beforeField == f {
				v = protoreflect.ValueOfMessage(proto.Clone(before.Message().Interface()).ProtoReflect())
			}
			m.Set(f, v)
			try(at + " set")
			if depth > 0 {
				eachOdd(v.Message(), at, depth-1, try)
			}
		default:
			for _, v := range oddValues(f) {
				m.Set(f, v)
				try(fmt.Sprintf("%s = %.30q", at, fmt.Sprint(v)))
			}
		}
		restore()
	}
}

// oddMap tries maps with odd keys and odd values.
func oddMap(m protoreflect.Message, f protoreflect.FieldDescriptor, at string, try func(string)) {
	for _, key := range oddValues(f.MapKey()) {
		v := m.NewField(f)
		value := v.Map().NewValue()
		if of := oddValues(f.MapValue()); len(of) > 1 {
			value = of[1]
		}
		v.Map().Set(key.MapKey(), value)
		m.Set(f, v)
		try(fmt.Sprintf("%s[%.30q]", at, key.String()))
	}
	if f.MapKey().Kind() == protoreflect.StringKind {
		v := m.NewField(f)
		for i := range 2000 {
			v.Map().Set(protoreflect.ValueOfString(fmt.Sprint("key", i)).MapKey(), v.Map().NewValue())
		}
		m.Set(f, v)
		try(at + " with 2000 keys")
	}
}

// oddList tries an empty list, long ones, and one with an odd element.
func oddList(m protoreflect.Message, f protoreflect.FieldDescriptor, at string, depth int, try func(string)) {
	m.Clear(f)
	try(at + " empty")
	for _, n := range []int{1, 2, 5000} {
		v := m.NewField(f)
		for range n {
			v.List().Append(v.List().NewElement())
		}
		m.Set(f, v)
		try(fmt.Sprintf("%s with %d that are empty", at, n))
		if n == 1 && f.Kind() == protoreflect.MessageKind && depth > 0 {
			eachOdd(v.List().Get(0).Message(), at+"[0]", depth-1, try)
		}
	}
	for _, element := range oddValues(f) {
		v := m.NewField(f)
		v.List().Append(element)
		m.Set(f, v)
		try(fmt.Sprintf("%s[0] = %.30q", at, fmt.Sprint(element)))
	}
}

// rawBytes sends bytes as they are, and looks at no answer.
type rawBytes struct{}

func (rawBytes) Marshal(m any) (mem.BufferSlice, error) {
	if b, ok := m.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return nil, fmt.Errorf("%T is not bytes", m)
}
func (rawBytes) Unmarshal(mem.BufferSlice, any) error { return nil }
func (rawBytes) Name() string                         { return "proto" }

// TestOddFields: users, admins and tasks at the masters, and whoever may call machines and
// schedulers, set each field of each message that they may send to odd values, one after the
// other: negative and huge numbers, NaN, texts that are no UTF-8, keys of maps, long lists.
// Nothing panics and nothing is answered as a fault of the cell's own.
func TestOddFields(t *testing.T) {
	var tried atomic.Int64
	t.Run("cells", func(t *testing.T) {
		for part := range oddCells {
			t.Run(fmt.Sprint(part), func(t *testing.T) {
				t.Parallel()
				tried.Add(int64(oddFields(t, part)))
			})
		}
	})
	if tried.Load() < 1000 {
		t.Errorf("only %d odd messages were tried", tried.Load())
	}
}

// oddFields tries one of oddCells parts of all calls on a cell of its own, and returns the
// number of messages.
func oddFields(t *testing.T, part int) (tried int) {
	m := newMatrix(t)
	type line struct {
		who identity.Name
		at  string
	}
	conns := map[line]*grpc.ClientConn{}
	wrong, codesOf := map[string]bool{}, map[codes.Code]int{}
	// Machines first: what an admin may do can shut those out who call them. The authority last:
	// who has a certificate of the one before is not believed then.
	rank := func(call protoreflect.MethodDescriptor) int {
		switch r := m.rows[path(call)]; {
		case strings.HasPrefix(path(call), "/borgrpc.AuthorityService/"):
			return 2
		case r != nil && r.at == m.addr:
			return 1
		}
		return 0
	}
	all := calls()
	slices.SortStableFunc(all, func(a, b protoreflect.MethodDescriptor) int { return rank(a) - rank(b) })
	for i, call := range all {
		r := m.rows[path(call)]
		if r == nil || i%oddCells != part {
			continue
		}
		for _, a := range r.asks {
			if role := a.who.Role; a.credential != nil || role != identity.User && role != identity.Task && r.at == m.addr {
				continue
			}
			to := line{a.who, r.at}
			if conns[to] == nil {
				conns[to] = show(t, r.at, m.certify(a.who))
			}
			conn := conns[to]
			req := a.req()
			// A user may open few streams a second. What may be sent on this one is what Mutate
			// takes, so one of many is enough.
			sparse, seen := call.IsStreamingClient() && m.rows[path(call)].at == m.addr, 0
			try := func(where string) {
				if seen++; sparse && seen%oddSparse != 0 {
					return
				}
				tried++
				err := m.callRaw(conn, call, req)
				code := status.Code(err)
				codesOf[code]++
				// What is no text is refused with the name of the field, wherever it is.
				field, _, _ := strings.Cut(where, "[\"")
				field, _, _ = strings.Cut(strings.ReplaceAll(field, "[0]", ""), " ")
				unnamed := err != nil && strings.Contains(err.Error(), "is not text") && !strings.Contains(err.Error(), field)
				if code != codes.Internal && code != codes.Unknown && code != codes.DataLoss && !unnamed {
					return
				}
				key := path(call) + " " + where
				if !wrong[key] && len(wrong) < 60 {
					wrong[key] = true
					t.Errorf("%s of %s with %s: %v", path(call), a.who.Words(), where, err)
				}
			}
			eachOdd(req.ProtoReflect(), string(call.Input().Name()), oddDepth, try)
			if mutate, ok := req.(*borgrpc.MutateRequest); ok && a.who == alice {
				m.oddSpecs(mutate, try)
			}
		}
	}
	t.Logf("%d odd messages: %v", tried, codesOf)
	if _, err := m.master(identity.User, "bob").GetCell(t.Context(), &borgrpc.GetCellRequest{}); err != nil {
		t.Errorf("after all of it bob's call fails: %v", err)
	}
	return tried
}

// oddSpecs submits jobs and alloc sets with each field of their specs odd.
func (m *matrix) oddSpecs(req *borgrpc.MutateRequest, try func(string)) {
	was := req.Op
	defer func() { req.Op = was }()
	submit := m.submit("alice", "odd", "nowhere")
	job := new(borgpb.JobSpec)
	if err := proto.Unmarshal(submit.GetSubmitJob().Spec, job); err != nil {
		m.t.Fatal(err)
	}
	eachOdd(job.ProtoReflect(), "JobSpec", oddDepth, func(where string) {
		raw, err := proto.MarshalOptions{}.Marshal(job)
		if err != nil {
			m.t.Fatal(err)
		}
		submit.GetSubmitJob().Spec = bytes.ReplaceAll(raw, []byte(notUTF8), bytes.Repeat([]byte{0xff}, len(notUTF8)))
		req.Op = m.op(submit)
		try(where)
	})
}

// callRaw makes a call and returns its error; a stream that has nothing to say is left
// without one.
func (m *matrix) callRaw(conn *grpc.ClientConn, call protoreflect.MethodDescriptor, req proto.Message) error {
	raw, err := proto.Marshal(req)
	if err != nil {
		m.t.Fatal(err)
	}
	raw = bytes.ReplaceAll(raw, []byte(notUTF8), bytes.Repeat([]byte{0xff}, len(notUTF8)))
	ctx, cancel := context.WithTimeout(m.t.Context(), 5*time.Minute)
	defer cancel()
	if call.IsStreamingServer() {
		defer time.AfterFunc(oddWait, cancel).Stop()
	}
	desc := &grpc.StreamDesc{StreamName: string(call.Name()), ServerStreams: call.IsStreamingServer(), ClientStreams: call.IsStreamingClient()}
	stream, err := conn.NewStream(ctx, desc, path(call), grpc.ForceCodecV2(rawBytes{}))
	if err != nil {
		return err
	}
	_ = stream.SendMsg(raw)
	_ = stream.CloseSend()
	for n := 0; err == nil && n < 3; n++ {
		err = stream.RecvMsg(&borgpb.Op{})
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
