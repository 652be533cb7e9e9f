package cell

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

func digestNo(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// packaged is a cell with machines m01, m02, ... and a job with a task on each that needs
// a package.
type packaged struct {
	*testLog
	digest string
	uid    string
}

func newPackaged(t *testing.T, machines int) *packaged {
	t.Helper()
	p := &packaged{testLog: newTestLog(t), digest: digestNo(1)}
	p.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	spec := service(uint32(machines), 200, 100, 1<<20)
	spec.Task.Packages = []*borgpb.Package{{Name: "tool", Digest: p.digest, Path: "/opt/tool"}}
	for n := range machines {
		p.do(addMachine(fmt.Sprintf("m%02d", n+1), 4000, 4<<30))
	}
	p.uid = p.do(submitJob(t, "web", spec)).Uid
	return p
}

func (p *packaged) place(index int, machine string) {
	p.t.Helper()
	p.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
		{Uid: p.uid, Index: uint32(index), Machine: machine, Version: 1},
	}}}})
}

func (p *packaged) set(machine string, change *borgpb.PackageChange) *borgpb.Result {
	p.t.Helper()
	return p.do(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: machine, Packages: change}}})
}

func (p *packaged) has(machine string) {
	p.t.Helper()
	p.set(machine, &borgpb.PackageChange{Port: 7102, Add: []string{p.digest}})
}

// origin are the machines that may ask where the package comes from.
func (p *packaged) origin() (may []string) {
	for m := range p.c.Machines() {
		if _, origin := p.c.PackageSources(m, p.digest); origin && m.NumCopies() > 0 && !m.HasPackage(p.digest) {
			may = append(may, m.Name())
		}
	}
	return may
}

func (p *packaged) want(what string, names ...string) {
	p.t.Helper()
	if err := p.c.checkHolders(); err != nil {
		p.t.Error(err)
	}
	if got := p.origin(); !slices.Equal(got, names) {
		p.t.Errorf("%s: %v may ask where it comes from, want %v", what, got, names)
	}
}

// TestFirstAtOrigin: while nobody serves a package, the machines of the first copies that
// need it bring it from where it comes from; then nobody does.
func TestFirstAtOrigin(t *testing.T) {
	p := newPackaged(t, 8)
	p.want("nobody needs it")
	p.place(2, "m01")
	p.want("one needs it", "m01")
	for i, m := range []string{"m03", "m04", "m05", "m06", "m07"} {
		p.place(i+3, m)
	}
	p.want("six need it", "m01", "m03", "m04", "m05")
	p.do(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "m03", Term: p.term, Reason: "dead"}}})
	p.want("one of those is down", "m01", "m04", "m05", "m06")
	p.do(&borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: "m03"}}})
	p.c = reload(t, p.c)
	p.set("m07", &borgpb.PackageChange{Add: []string{p.digest}})
	p.want("one has it, and serves nobody", "m01", "m03", "m04", "m05")
	p.has("m08")
	p.want("one serves it")
	p.c = reload(t, p.c)
	p.want("one serves it, as read back")
	p.set("m08", &borgpb.PackageChange{Port: 7102, Remove: []string{p.digest}})
	p.want("it has thrown it away", "m01", "m03", "m04", "m05")
	p.has("m08")
	p.do(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "m08", Term: p.term, Reason: "dead"}}})
	p.want("who serves it is down", "m01", "m03", "m04", "m05")
	p.do(&borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: "m08"}}})
	p.want("it is no machine any more", "m01", "m03", "m04", "m05")
	p.do(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "web"}}})
	if len(p.c.holders) != 1 || len(p.c.holders[p.digest].lack) != 0 {
		t.Errorf("the job is dead, and it is kept who lacks what: %v", p.c.holders)
	}
}

// TestPeers: each machine is told of few that serve a package, of those that are up, and
// all of those are told of.
func TestPeers(t *testing.T) {
	p := newPackaged(t, 30)
	for i := range 30 {
		p.place(i, fmt.Sprintf("m%02d", i+1))
		if i < 12 {
			p.has(fmt.Sprintf("m%02d", i+1))
		}
	}
	p.do(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "m05", Term: p.term, Reason: "dead"}}})
	told := map[string]bool{}
	for m := range p.c.Machines() {
		peers, origin := p.c.PackageSources(m, p.digest)
		if len(peers) != maxPeers || origin {
			t.Errorf("%s is told of %d machines (origin %v), want %d", m.Name(), len(peers), origin, maxPeers)
		}
		for _, o := range peers {
			if o == m || !o.Up() || !o.HasPackage(p.digest) {
				t.Errorf("%s is told to ask %s", m.Name(), o.Name())
			}
			told[o.Name()] = true
		}
	}
	if len(told) != 11 {
		t.Errorf("%d machines are asked, want all 11: %v", len(told), told)
	}
}

// TestPackageChanges: what a machine says of its packages is bounded and checked, and is
// of the format in which it began.
func TestPackageChanges(t *testing.T) {
	p := newPackaged(t, 1)
	refused := func(what string, o *borgpb.PackageChange) {
		t.Helper()
		res, _ := p.apply(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: "m01", Packages: o}}})
		if res[0].Refusal == nil {
			t.Errorf("%s: it was done", what)
		}
	}
	var many []string
	for n := range maxMachinePackages {
		many = append(many, digestNo(n))
	}
	version := p.set("m01", &borgpb.PackageChange{Port: 7102, Add: many}).Version
	if again := p.set("m01", &borgpb.PackageChange{Port: 7102, Add: many[:5]}).Version; again != version {
		t.Errorf("nothing new makes version %d of %d", again, version)
	}
	refused("one more", &borgpb.PackageChange{Port: 7102, Add: []string{digestNo(1000)}})
	refused("too many at once", &borgpb.PackageChange{Port: 7102, Remove: many, Add: append(many, digestNo(1000))})
	refused("no digest", &borgpb.PackageChange{Port: 7102, Remove: many, Add: []string{"sha256:" + strings.Repeat("A", 64)}})
	refused("no port", &borgpb.PackageChange{Port: 1 << 16})
	m := p.c.Machine("m01")
	if got := m.PackagesProto(); !slices.Equal(got.Digests, many) || got.Port != 7102 {
		t.Errorf("it has %v", got)
	}
	p.set("m01", &borgpb.PackageChange{Remove: many})
	if got := m.PackagesProto(); got != nil {
		t.Errorf("it has %v", got)
	}
	old := newTestLog(t)
	old.do(addMachine("m1", 1000, 1<<30))
	if res, _ := old.apply(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: "m1", Packages: &borgpb.PackageChange{}}}}); res[0].Refusal == nil {
		t.Error("format 1 knows it")
	}
}
