package borgmaster

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

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
