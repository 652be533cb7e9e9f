package linkshard

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func digestNo(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// newPackageLog is newLog with a job that needs a package, on m1, and m2 beside it.
func newPackageLog(t *testing.T) *testLog {
	l := newLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: "m2", Spec: &borgpb.MachineSpec{
		Addr: "h2:7101", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 1 << 30},
	}}}})
	spec, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 2, Priority: 200,
		Task: &borgpb.TaskSpec{
			Args: []string{"/bin/x"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20},
			Packages: []*borgpb.Package{{Name: "tool", Digest: digestNo(1), Path: "/opt/tool"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	uid := l.do(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: "tool", Spec: spec}}}).Uid
	for index := range uint32(2) {
		l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
			{Uid: uid, Index: index, Machine: "m1", Version: 1},
		}}}})
	}
	return l
}

func (l *testLog) hears(machine string, word *borgpb.MachinePackages) *borgpb.SetMachine {
	l.t.Helper()
	m := l.cell.Machine(machine)
	set := Change(l.cell.Format(), machine, specOf(m), specOf(m), &borgpb.MachineSpec{Packages: word, Attributes: m.Attributes()})
	if set != nil {
		l.do(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: set}})
	}
	return set
}

// TestWantedPackages: a poll tells from where what is not there is to be brought, once for
// each package, and nothing of what is there.
func TestWantedPackages(t *testing.T) {
	l := newPackageLog(t)
	want := func(what string, origin bool, peers ...string) {
		t.Helper()
		list := Build(l.cell, l.machine(), "test", 1, &Known{}).Packages
		if len(list) != 1 || list[0].Digest != digestNo(1) || list[0].Origin != origin || !slices.Equal(list[0].Peers, peers) {
			t.Errorf("%s: %v, want origin %v and %v", what, list, origin, peers)
		}
	}
	want("nobody has it", true)
	l.hears("m2", &borgpb.MachinePackages{Digests: []string{digestNo(1)}})
	want("one has it and does not serve", true)
	l.hears("m2", &borgpb.MachinePackages{Port: 7102, Digests: []string{digestNo(1)}})
	want("one serves it", false, "h2:7102")
	l.hears("m1", &borgpb.MachinePackages{Port: 7102, Digests: []string{digestNo(1), digestNo(2)}})
	if list := Build(l.cell, l.machine(), "test", 1, &Known{}).Packages; len(list) != 0 {
		t.Errorf("all is there, and it is told %v", list)
	}
}

// TestPackagesFollow: the log hears of what changed of a machine's packages, in a format
// that knows them, and of nothing twice.
func TestPackagesFollow(t *testing.T) {
	l := newPackageLog(t)
	word := &borgpb.MachinePackages{Port: 7102, Digests: []string{digestNo(1), digestNo(2)}}
	if set := Change(cell.FormatPackages-1, "m1", specOf(l.machine()), specOf(l.machine()), &borgpb.MachineSpec{Packages: word}); set.GetPackages() != nil {
		t.Errorf("a cell that does not know packages is told %v", set)
	}
	for _, tt := range []struct {
		word *borgpb.MachinePackages
		want *borgpb.PackageChange
	}{
		{word, &borgpb.PackageChange{Port: 7102, Add: word.Digests}},
		{word, nil},
		{&borgpb.MachinePackages{Port: 7103, Digests: word.Digests}, &borgpb.PackageChange{Port: 7103}},
		{&borgpb.MachinePackages{Port: 7103, Digests: []string{digestNo(2), digestNo(3)}}, &borgpb.PackageChange{Port: 7103, Add: []string{digestNo(3)}, Remove: []string{digestNo(1)}}},
		{nil, &borgpb.PackageChange{Remove: []string{digestNo(2), digestNo(3)}}},
		{nil, nil},
	} {
		if got := l.hears("m1", tt.word).GetPackages(); !proto.Equal(got, tt.want) {
			t.Errorf("of %v the log hears %v, want %v", tt.word, got, tt.want)
		}
	}
	var many []string
	for n := range cell.MaxMachinePackages + 5 {
		many = append(many, digestNo(n))
	}
	l.hears("m1", &borgpb.MachinePackages{Digests: many})
	if set := l.hears("m1", &borgpb.MachinePackages{Digests: many}); set != nil || len(l.machine().Packages()) != cell.MaxMachinePackages {
		t.Errorf("of more than a cell takes it hears again and again: %v", set)
	}
}

// TestWaitsForPackageIsNoRest: who has what a machine waits for changes elsewhere, so its
// poll is made anew until it has all; then it rests.
func TestWaitsForPackageIsNoRest(t *testing.T) {
	l, known := newPackageLog(t), &Known{}
	var says []*borgpb.TaskReport
	for p := range l.machine().Copies() {
		says = append(says, &borgpb.TaskReport{
			JobUid: p.ID().Job.String(), Index: p.ID().Index, Attempt: 1, State: int32(running), Pid: 7, StartedWallNs: 1e18,
		})
	}
	l.report(says...)
	for range 2 {
		req, cmp := l.exchange(0, known, nil, says...)
		known.rest(l.cell, l.machine(), req, cmp)
	}
	if known.rests(l.cell, l.machine()) {
		t.Error("it waits for a package, and its polls are repeated")
	}
	l.hears("m1", &borgpb.MachinePackages{Digests: []string{digestNo(1)}})
	known.Word, known.Followed = nil, nil
	req, cmp := l.exchange(0, known, nil, says...)
	known.rest(l.cell, l.machine(), req, cmp)
	if !known.rests(l.cell, l.machine()) {
		t.Errorf("it has all, and its polls are made anew: %v, %+v", req, cmp)
	}
}

// TestRestEndsWithFormat: orders of a later format may say more of a machine of which
// nothing has changed.
func TestRestEndsWithFormat(t *testing.T) {
	l := newLog(t)
	m := l.machine()
	known := &Known{rested: rested{basisOf(l.cell, m), &borgrpc.PollRequest{}}}
	if !known.rests(l.cell, m) {
		t.Fatal("it is not at rest")
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	if known.rests(l.cell, m) {
		t.Error("polls are repeated as they were in the format before")
	}
}
