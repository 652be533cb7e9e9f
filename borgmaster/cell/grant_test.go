package cell

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// TestWhoMayDoEachOp makes an op of each kind there is, about a job of ann's, as
// several people: a kind that nobody thought of is for admins.
func TestWhoMayDoEachOp(t *testing.T) {
	l := newTestLog(t)
	l.apply(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatGrants}}})
	results, _ := l.apply(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "root", Capability: string(Admin)}}})
	if results[0].Refusal != nil || l.c.NumAdmins() != 1 {
		t.Fatalf("grant: %v", results[0])
	}
	own := []protoreflect.Name{"submit_job", "kill_job", "update_job", "resize_job", "submit_alloc_set", "kill_alloc_set", "update_alloc_set", "resize_alloc_set", "set_secret", "delete_secret", "write_file", "delete_file", "set_labels", "control_update", "fire_cron", "suspend_cron", "quarantine_task", "release_task", "delete_volume"}
	kinds := (&borgpb.Op{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	if kinds.Len() < 20 {
		t.Fatalf("there are %d kinds of ops", kinds.Len())
	}
	for i := range kinds.Len() {
		kind := kinds.Get(i)
		for _, tt := range []struct {
			who string
			may bool
		}{
			{"ann", slices.Contains(own, kind.Name())},
			{"mallory", false},
			{"root", true},
			// The cell itself.
			{"", true},
		} {
			op := &borgpb.Op{Principal: &borgpb.Principal{User: tt.who, Role: borgpb.Role_ROLE_USER}}
			about := op.ProtoReflect().Mutable(kind).Message()
			for name, value := range map[protoreflect.Name]string{"user": "ann", "name": "web"} {
				if f := about.Descriptor().Fields().ByName(name); f != nil {
					about.Set(f, protoreflect.ValueOfString(value))
				}
			}
			r := l.c.checkPermission(proto.CloneOf(op))
			if (r == nil) != tt.may || (r != nil && r.Kind != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION) {
				t.Errorf("%s by %q on what is ann's: %v, want leave: %v", kind.Name(), tt.who, r, tt.may)
			}
		}
	}
}
