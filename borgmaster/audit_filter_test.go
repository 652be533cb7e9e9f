package borgmaster

import (
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestWhatIsHis: a user sees what he and his tasks did, and what was done to what is
// his, and nothing that only looks like it.
func TestWhatIsHis(t *testing.T) {
	const user, task, master = borgpb.Role_ROLE_USER, borgpb.Role_ROLE_TASK, borgpb.Role_ROLE_MASTER
	for _, tt := range []struct {
		r    *borgpb.AuditRecord
		want bool
	}{
		{&borgpb.AuditRecord{Role: user, Who: "ann", Object: "m1"}, true},
		{&borgpb.AuditRecord{Role: user, Who: "bob", Object: "ann/web"}, true},
		{&borgpb.AuditRecord{Role: user, Who: "root", Object: "ann"}, true},
		{&borgpb.AuditRecord{Role: task, Who: "ann/web/0", Object: "x"}, true},
		{&borgpb.AuditRecord{Role: user, Who: "bob", Object: "bob/web"}, false},
		{&borgpb.AuditRecord{Role: user, Who: "anna", Object: "anna/web"}, false},
		{&borgpb.AuditRecord{Role: task, Who: "anna/web/0"}, false},
		{&borgpb.AuditRecord{Role: master, Who: "ann"}, false},
		{&borgpb.AuditRecord{Who: "10.0.0.1:5"}, false},
		{&borgpb.AuditRecord{Hole: &borgpb.AuditHole{}}, true},
	} {
		f := auditFilter{AuditRequest: &borgrpc.AuditRequest{}, caller: "ann"}
		if got := f.match(tt.r); got != tt.want {
			t.Errorf("ann sees %v: %v, want %v", tt.r, got, tt.want)
		}
	}
}
