package cell

import (
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestHeldPortsWords: words about ports go to all users, so in a private cell they name no
// programs, which may be other users'.
func TestHeldPortsWords(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "root", Capability: string(Admin)}}})
	l.do(addMachine("m1", 1000, 1<<30))
	m := l.c.Machine("m1")
	m.heldPorts = []heldPort{{number: 8080, untilNs: l.c.TimeNs() + 60*second, by: "nginx (process 812)"}, {number: 8081, untilNs: l.c.TimeNs() + second}}
	const open = "ports of m1 held by other programs: 8080 by nginx (process 812), 8081 (as last seen; looked at again in 60 s)"
	if got := l.c.HeldPortsWords(m); got != open {
		t.Errorf("got %q, want %q", got, open)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_SetVisibility{SetVisibility: &borgpb.SetVisibility{Policy: &borgpb.Visibility{Private: true}}}})
	if got, want := l.c.HeldPortsWords(m), strings.ReplaceAll(open, " by nginx (process 812)", ""); got != want {
		t.Errorf("in a private cell: got %q, want %q", got, want)
	}
}

// TestPathsHideNoRoot: a mount or a volume at the root would hide all that a task has.
func TestPathsHideNoRoot(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	for _, p := range []string{"/", "//", "///", "/.", "/..", "/a/.."} {
		mount := service(1, 100, 1000, 1<<30)
		mount.Task.Mounts = []*borgpb.Mount{{Source: "/srv", Path: p}}
		volume := service(1, 100, 1000, 1<<30)
		volume.Task.Volumes = []*borgpb.Volume{{Name: "data", Path: p}}
		for name, spec := range map[string]*borgpb.JobSpec{"mount": mount, "volume": volume} {
			results, _ := l.apply(asUser("u", submitJob(t, name, spec)))
			if r := results[0].Refusal; r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID {
				t.Errorf("a %s at %q: %v, want INVALID", name, p, r)
			}
		}
	}
}
