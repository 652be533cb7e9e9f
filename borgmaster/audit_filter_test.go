package borgmaster

import (
	"strings"
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

// TestPeopleOnly: what the parts of a cell ask for by themselves is left out on request; tasks
// ask in the name of their user, and a caller without a name may be anybody.
func TestPeopleOnly(t *testing.T) {
	for role, want := range map[borgpb.Role]bool{
		borgpb.Role_ROLE_UNSPECIFIED: true, borgpb.Role_ROLE_USER: true, borgpb.Role_ROLE_TASK: true,
		borgpb.Role_ROLE_MASTER: false, borgpb.Role_ROLE_SCHEDULER: false, borgpb.Role_ROLE_BORGLET: false,
	} {
		f := auditFilter{AuditRequest: &borgrpc.AuditRequest{PeopleOnly: true}, all: true}
		r := &borgpb.AuditRecord{Role: role, Who: "x", Verb: "CertifyTask"}
		if got := f.match(r); got != want {
			t.Errorf("match(%v) for people only = %v, want %v", role, got, want)
		}
		f.PeopleOnly = false
		if !f.match(r) {
			t.Errorf("match(%v) for everything = false", role)
		}
	}
}

// TestTextOfAnAudit: every record that a filter picks has its text in it.
func TestTextOfAnAudit(t *testing.T) {
	records := []*borgpb.AuditRecord{
		{Role: borgpb.Role_ROLE_USER, Who: "ann", Object: "bob/web", Verb: "submit"},
		{Role: borgpb.Role_ROLE_TASK, Who: "ann/ci/0", Object: "ann/web", Verb: "submit"},
		{Role: borgpb.Role_ROLE_USER, Who: "bob", Object: "ann/web", Verb: "kill"},
	}
	for _, tt := range []struct {
		f    auditFilter
		want string
	}{
		{auditFilter{AuditRequest: &borgrpc.AuditRequest{}, caller: "root", all: true}, ""},
		{auditFilter{AuditRequest: &borgrpc.AuditRequest{}, caller: "ann"}, "ann"},
		{auditFilter{AuditRequest: &borgrpc.AuditRequest{User: "bob"}, caller: "ann"}, "bob"},
		{auditFilter{AuditRequest: &borgrpc.AuditRequest{User: "ann", Object: "web"}, caller: "ann"}, "web"},
		{auditFilter{AuditRequest: &borgrpc.AuditRequest{Object: "ann/web"}, caller: "root", all: true}, "ann/web"},
	} {
		if got := tt.f.text(); got != tt.want {
			t.Errorf("%+v has the text %q, want %q", tt.f, got, tt.want)
		}
		for _, r := range records {
			if tt.f.match(r) && !strings.Contains(r.Who+" "+r.Object, tt.want) {
				t.Errorf("%+v picks %v, which has not the text %q", tt.f, r, tt.want)
			}
		}
	}
}
