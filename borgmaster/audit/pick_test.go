package audit

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// TestFieldsOfPick: the fields have the numbers that the messages give them, and only what was done is plain.
func TestFieldsOfPick(t *testing.T) {
	batch, record := new(borgpb.AuditBatch), new(borgpb.AuditRecord)
	for _, tt := range []struct {
		of   proto.Message
		name protoreflect.Name
		want protowire.Number
	}{
		{batch, "records", recordsField}, {record, "refusal", refusalField}, {record, "hole", holeField}, {record, "drop", dropField},
	} {
		if f := tt.of.ProtoReflect().Descriptor().Fields().ByName(tt.name); f == nil || f.Number() != tt.want {
			t.Errorf("%s is %v, want number %d", tt.name, f, tt.want)
		}
	}
	for what, r := range map[string]*borgpb.AuditRecord{
		"refusal": {Refusal: &borgpb.Refusal{}}, "hole": {Hole: &borgpb.AuditHole{}}, "drop": {Drop: &borgpb.AuditDrop{}},
		"": {Index: 7, Who: "ann", Op: []byte("x"), Admin: true},
	} {
		data, err := proto.Marshal(&borgpb.AuditBatch{Records: []*borgpb.AuditRecord{{Index: 1}, r}})
		if err != nil {
			t.Fatal(err)
		}
		if got := isPlain(data); got != (what == "") {
			t.Errorf("a batch with a %s is plain: %v", what, got)
		}
	}
}
