package cell

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// sameAsUnmarshal verifies that what is read by hand is what proto.Unmarshal reads, and
// known in every format.
func sameAsUnmarshal(t *testing.T, data []byte) (byHand bool) {
	t.Helper()
	got, byHand := decodeSubmit(data, new(submitOp))
	if !byHand {
		return false
	}
	want := new(borgpb.Op)
	if err := proto.Unmarshal(data, want); err != nil {
		t.Fatalf("%x is read, but %v", data, err)
	}
	if !proto.Equal(got, want) {
		t.Fatalf("%x is read as %v, want %v", data, got, want)
	}
	if r := knownMessage(want.ProtoReflect(), 1); r != nil {
		t.Fatalf("%x is read, but in format 1: %v", data, r)
	}
	return true
}

// somePlainSubmits are ops of which some are read by hand, and some have what is not.
func somePlainSubmits() map[bool][]*borgpb.Op {
	plain := func(change func(*borgpb.Op, *borgpb.SubmitJob)) *borgpb.Op {
		s := &borgpb.SubmitJob{User: "alice", Name: "web", Spec: []byte{8, 1, 16, 2}}
		op := &borgpb.Op{RequestId: "r", RequestWallNs: 5, Principal: &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}, Op: &borgpb.Op_SubmitJob{SubmitJob: s}}
		change(op, s)
		return op
	}
	return map[bool][]*borgpb.Op{
		true: {
			plain(func(*borgpb.Op, *borgpb.SubmitJob) {}),
			plain(func(op *borgpb.Op, _ *borgpb.SubmitJob) { op.Principal.User = "bob" }),
			plain(func(op *borgpb.Op, _ *borgpb.SubmitJob) { op.Principal = nil }),
			plain(func(op *borgpb.Op, _ *borgpb.SubmitJob) { op.RequestId, op.RequestWallNs = "", -1 }),
			plain(func(_ *borgpb.Op, s *borgpb.SubmitJob) { s.Spec = nil }),
			plain(func(_ *borgpb.Op, s *borgpb.SubmitJob) { proto.Reset(s) }),
		},
		false: {
			plain(func(op *borgpb.Op, _ *borgpb.SubmitJob) { op.Reason = "because" }),
			plain(func(op *borgpb.Op, _ *borgpb.SubmitJob) { op.Principal.Task = "alice/web/0" }),
			plain(func(op *borgpb.Op, _ *borgpb.SubmitJob) { op.Principal.Role = 99 }),
			plain(func(op *borgpb.Op, _ *borgpb.SubmitJob) { op.Op = nil }),
			plain(func(op *borgpb.Op, _ *borgpb.SubmitJob) {
				op.Op = &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice"}}
			}),
			plain(func(_ *borgpb.Op, s *borgpb.SubmitJob) { s.Labels = map[string]string{"a": "b"} }),
		},
	}
}

func TestSubmitIsReadByHand(t *testing.T) {
	for byHand, ops := range somePlainSubmits() {
		for _, op := range ops {
			data := marshal(t, op)
			if got := sameAsUnmarshal(t, data); got != byHand {
				t.Errorf("%v is read by hand: %v, want %v", op, got, byHand)
			}
			// Parts that come twice are merged.
			if sameAsUnmarshal(t, bytes.Repeat(data, 2)) {
				t.Errorf("%v twice is read by hand", op)
			}
			for n := range data {
				sameAsUnmarshal(t, data[:n])
			}
		}
	}
}

// The spec lies in the entry: whoever keeps it does not keep that, nor what comes to be there.
func TestSpecOfSubmitIsCopied(t *testing.T) {
	l := newTestLog(t)
	data := marshal(t, submitJob(t, "j", service(200, 1, 100, 1<<20)))
	entry := marshal(t, &borgpb.Entry{CellTimeNs: 1, WallTimeNs: 1, Ops: [][]byte{data}})
	if results, _ := l.c.Apply(l.c.Index()+1, 1, entry); results[0].Refusal != nil {
		t.Fatal(results[0].Refusal)
	}
	was := bytes.Clone(l.c.Job(JobKey{"u", "j"}).PresentSpec().Bytes)
	clear(entry)
	if got := l.c.Job(JobKey{"u", "j"}).PresentSpec().Bytes; !bytes.Equal(got, was) || len(was) == 0 {
		t.Errorf("the spec is %x, and was %x", got, was)
	}
}

func FuzzDecodeSubmit(f *testing.F) {
	for _, ops := range somePlainSubmits() {
		for _, op := range ops {
			data, err := proto.Marshal(op)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) { sameAsUnmarshal(t, data) })
}
