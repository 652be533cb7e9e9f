package audit

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// filled is a message with all of its texts, or some of them.
func filled(r *rand.Rand, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if r.IntN(3) == 0 || f.ContainingOneof() != nil && !f.HasOptionalKeyword() && depth == 0 {
			continue
		}
		switch {
		case f.IsMap():
		case f.Message() != nil && depth < 3 && !f.IsList():
			filled(r, m.Mutable(f).Message(), depth+1)
		case f.Message() != nil:
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			m.Mutable(f).List().Append(protoreflect.ValueOfString("x"))
		case f.IsList():
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(fmt.Sprint(f.Name(), r.IntN(100))))
		case f.Kind() == protoreflect.BytesKind:
			m.Set(f, protoreflect.ValueOfBytes(make([]byte, r.IntN(2*maxContentBytes))))
		case f.Kind() == protoreflect.EnumKind:
			m.Set(f, protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.IntN(4))))
		case f.Kind() == protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(r.Uint64()))
		}
	}
}

// What is read off an op is what the decoded op says, of each kind, also where fields
// come twice.
func TestReadOff(t *testing.T) {
	which := (&borgpb.Op{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		for i := range which.Len() {
			var data []byte
			for range 1 + r.IntN(2) {
				op := new(borgpb.Op)
				filled(r, op.ProtoReflect(), 0)
				kind := which.Get(i)
				if r.IntN(4) == 0 {
					kind = which.Get(r.IntN(which.Len()))
				}
				filled(r, op.ProtoReflect().Mutable(kind).Message(), 1)
				part, err := proto.Marshal(op)
				if err != nil {
					t.Fatal(err)
				}
				data = append(data, part...)
			}
			op := new(borgpb.Op)
			if err := proto.Unmarshal(data, op); err != nil {
				t.Fatal(err)
			}
			got, contentBytes := readOff(data)
			if want := Asked(op); !proto.Equal(got, want) || contentBytes != len(op.GetWriteFile().GetContent()) {
				t.Fatalf("seed %d: of %v is read off\n%v and %d bytes of a file, want\n%v and %d", seed, op, got, contentBytes, want, len(op.GetWriteFile().GetContent()))
			}
		}
	}
}

// An op that nobody can read has no record; one that can be read and is refused for it has
// the same as any other.
func TestRecordOfWhatIsMalformed(t *testing.T) {
	malformed := &borgpb.Result{Refusal: &borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_MALFORMED}}
	if r := RecordOf([]byte{0x0a, 0xff}, malformed); r != nil {
		t.Errorf("of an op that cannot be read there is a record: %v", r)
	}
	data, err := proto.Marshal(&borgpb.Op{RequestId: "r", Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "ann", Name: "web"}}})
	if err != nil {
		t.Fatal(err)
	}
	if r := RecordOf(data, malformed); r.GetObject() != "ann/web" || r.GetVerb() != "kill-job" || r.GetRefusal() == nil {
		t.Errorf("of an op that is refused the record is %v", r)
	}
}
