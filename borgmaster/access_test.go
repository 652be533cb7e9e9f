package borgmaster

import (
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
)

// TestInNameOf: whatever an op says goes on to the log, also what this build does not know.
func TestInNameOf(t *testing.T) {
	asked := &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "web"}}}
	m := asked.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		switch fd := m.Descriptor().Fields().Get(i); {
		case fd.ContainingOneof() != nil || fd.Message() != nil:
		case fd.Kind() == protoreflect.StringKind:
			m.Set(fd, protoreflect.ValueOfString(string(fd.Name())))
		case fd.Kind() == protoreflect.Int64Kind:
			m.Set(fd, protoreflect.ValueOfInt64(int64(fd.Number())))
		default:
			t.Fatalf("say here what %s may hold", fd.FullName())
		}
	}
	m.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99_999, protowire.VarintType), 7))
	want := proto.CloneOf(asked)
	want.Principal = &borgpb.Principal{User: "alice"}
	if got := inNameOf(asked, want.Principal); !proto.Equal(got, want) {
		t.Errorf("it is %v, want %v", got, want)
	}
	if asked.Principal != nil {
		t.Error("what was asked was changed")
	}
}

// cellInUse is a log whose cell is looked at by others for ever.
type cellInUse struct {
	Log
	t *testing.T
}

func (l cellInUse) View(func(*cell.Cell)) { l.t.Error("the cell is looked at") }

// TestMastersAreBelievedWithoutTheCell: what raft says must not wait for those who look at
// the cell.
func TestMastersAreBelievedWithoutTheCell(t *testing.T) {
	m := &Master{cfg: Config{Log: cellInUse{t: t}}, gate: &Gate{Removed: func(replica uint64) bool { return replica == 3 }}}
	for _, x := range []struct {
		role    identity.Role
		id      string
		revoked bool
	}{
		{identity.Master, "1", false}, {identity.Master, "3", true},
		{identity.Scheduler, "1", false}, {identity.Scheduler, "3", true},
		{identity.Borglet, "m1", false},
	} {
		if got := m.revoked(identity.Name{Cell: "c", Role: x.role, ID: x.id}, time.Now()); got != x.revoked {
			t.Errorf("%s %s is revoked: %v, want %v", x.role, x.id, got, x.revoked)
		}
	}
}
