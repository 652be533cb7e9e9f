package cell

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// TestRequestSum: two tries of a request have one sum, whatever the master filled in, and
// two requests have two.
func TestRequestSum(t *testing.T) {
	sum := func(op *borgpb.Op) uint64 {
		t.Helper()
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(op)
		if err != nil {
			t.Fatal(err)
		}
		return requestSum(data)
	}
	secret := func(name string, version uint64, sealed string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetSecret{SetSecret: &borgpb.SetSecret{User: "u", Name: name, Version: version, KeyId: "k", Sealed: []byte(sealed)}}}
	}
	machine := func(name, addr string, mem int64) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Labels: map[string]string{"a": "1", "b": "2", "c": "3"},
			Spec: &borgpb.MachineSpec{Addr: addr, Capacity: &borgpb.Resources{MemBytes: mem}}}}}
	}
	stop := func(machine string, copies int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_StopUnknown{StopUnknown: &borgpb.StopUnknown{Machine: machine, Copies: make([]*borgpb.UnknownCopy, copies)}}}
	}
	adopt := func(uid string, copies int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_AdoptJob{AdoptJob: &borgpb.AdoptJob{Uid: uid, Spec: []byte{byte(copies)}, Copies: make([]*borgpb.FoundCopy, copies)}}}
	}
	revoke := func(user string, ns int64) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: user, CertificatesWallNs: ns}}}
	}
	resize := func(tasks uint32, reason string) *borgpb.Op {
		return &borgpb.Op{RequestWallNs: int64(tasks), Reason: reason, Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "u", Name: "web", Tasks: tasks}}}
	}
	for name, c := range map[string]struct{ first, again, other *borgpb.Op }{
		"a secret":                 {secret("key", 1, "x"), secret("key", 2, "y"), secret("cert", 1, "x")},
		"a machine":                {machine("m", "m:1", 1), machine("m", "m:1", 2), machine("m", "m:2", 1)},
		"copies to stop":           {stop("m", 1), stop("m", 3), stop("n", 1)},
		"a job to adopt":           {adopt("1-1-1", 1), adopt("1-1-1", 2), adopt("1-1-2", 1)},
		"a revocation":             {revoke("u", 5), revoke("u", 6), revoke("u", 0)},
		"a size":                   {resize(3, ""), resize(3, "why"), resize(4, "")},
		"another op of the fields": {submitJob(t, "web", service(1, 100, 1, 1)), submitJob(t, "web", service(1, 100, 1, 1)), updateJob(t, "web", service(1, 100, 1, 1))},
	} {
		if sum(c.first) != sum(c.again) {
			t.Errorf("%s: another try has another sum", name)
		}
		if sum(c.first) == sum(c.other) {
			t.Errorf("%s: another request has the same sum", name)
		}
	}
	for field, inner := range masterFields {
		of := (&borgpb.Op{}).ProtoReflect().Descriptor().Fields().ByNumber(field)
		for _, n := range inner {
			if of == nil || of.Message().Fields().ByNumber(n) == nil {
				t.Errorf("there is no field %d of op %d", n, field)
			}
		}
	}
}

// TestRequestIDOfAnother refuses an op under the id of another one, before and after the
// cell was loaded, and answers the first one as before.
func TestRequestIDOfAnother(t *testing.T) {
	l := newTestLog(t)
	send := func(op *borgpb.Op) *borgpb.Result {
		op.RequestId, op.RequestWallNs = "id", l.wallNs
		res, _ := l.apply(op)
		return res[0]
	}
	if r := send(submitJob(t, "a", service(1, 100, 1, 1))); r.Refusal != nil {
		t.Fatal(r.Refusal)
	}
	for range 2 {
		for _, op := range []*borgpb.Op{submitJob(t, "b", service(1, 100, 1, 1)), submitJob(t, "a", service(2, 100, 1, 1)), updateJob(t, "a", service(1, 100, 1, 1))} {
			if r := send(op); r.Repeated || r.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID || r.Refusal.Field != "request_id" {
				t.Errorf("%v under the id of another op: %v", op, r)
			}
			var trial Trial
			op.RequestId, op.RequestWallNs = "id", l.wallNs
			if r := trial.Check(l.c, op); r.GetField() != "request_id" {
				t.Errorf("a trial of an op under the id of another one: %v", r)
			}
		}
		if r := send(submitJob(t, "a", service(1, 100, 1, 1))); !r.Repeated || r.Refusal != nil {
			t.Errorf("the op again: %v", r)
		}
		l.c = reload(t, l.c)
		l.fine()
	}
}

// TestRequestSumReadsAll: fields of every wire type count, and so do those behind them.
func TestRequestSumReadsAll(t *testing.T) {
	head := protowire.AppendTag(nil, payloadField+1, protowire.BytesType)
	head = protowire.AppendBytes(head, []byte("same"))
	fixed32 := protowire.AppendFixed32(protowire.AppendTag(nil, payloadField+2, protowire.Fixed32Type), 7)
	fixed64 := protowire.AppendFixed64(protowire.AppendTag(nil, payloadField+2, protowire.Fixed64Type), 7)
	tail := func(v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, payloadField+3, protowire.VarintType), v)
	}
	seen := map[uint64]int{}
	for i, data := range [][]byte{
		head,
		slices.Concat(head, fixed32), slices.Concat(head, fixed64),
		slices.Concat(head, fixed32, tail(1)), slices.Concat(head, fixed32, tail(2)),
		slices.Concat(head, fixed64, tail(1)), slices.Concat(head, fixed64, tail(2)),
		slices.Concat(head, []byte{0xff}), slices.Concat(head, []byte{0xff, 0xff}),
	} {
		sum := requestSum(data)
		if other, ok := seen[sum]; ok {
			t.Errorf("messages %d and %d have one sum", i, other)
		}
		seen[sum] = i
	}
	// The same of a field of which masters fill in parts.
	sumOfInner := func(inner []byte) uint64 {
		return requestSum(protowire.AppendBytes(protowire.AppendTag(nil, addMachineField, protowire.BytesType), inner))
	}
	if sumOfInner(slices.Concat(fixed64, tail(1))) == sumOfInner(slices.Concat(fixed64, tail(2))) {
		t.Error("what follows a fixed64 within a field does not count")
	}
}
