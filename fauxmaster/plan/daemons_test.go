package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestDaemonsComeAndGo imports a DaemonSet and a pod whose node has more labels than a
// machine may, and then takes, drains and adds nodes.
func TestDaemonsComeAndGo(t *testing.T) {
	var items []string
	for i := range 3 {
		labels := make([]string, 0, 90)
		for n := range 90 {
			labels = append(labels, fmt.Sprintf(`"feature/f%02d": "true"`, n))
		}
		items = append(items,
			fmt.Sprintf(`{"kind": "Node", "metadata": {"name": "n%d", "labels": {"kubernetes.io/os": "linux", %s}}, "status": {"allocatable": {"cpu": "4", "memory": "16Gi"}}}`, i, strings.Join(labels, ",")),
			fmt.Sprintf(`{"kind": "Pod", "metadata": {"name": "agent-%d", "namespace": "kube-system", "ownerReferences": [{"kind": "DaemonSet", "name": "agent", "controller": true}]},
			"spec": {"nodeName": "n%d", "nodeSelector": {"kubernetes.io/os": "linux"}, "containers": [{"resources": {"requests": {"cpu": "500m"}}}],
			"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n%d"]}]}]}}}}}`, i, i, i))
	}
	k := trace.NewKubernetes(trace.KubernetesLabels{})
	if err := k.Read("cluster.json", strings.NewReader(`{"items": [`+strings.Join(items, ",")+`]}`)); err != nil {
		t.Fatal(err)
	}
	from, err := k.Cell()
	if err != nil {
		t.Fatal(err)
	}
	c, made, err := plan.Make("k", 1e18, from, nil)
	if err != nil || made.Running != 3 || made.Pending != 0 {
		t.Fatalf("%+v, %v; want three daemons that run", made, err)
	}
	ms := []*cell.Machine{c.Machine("n2")}
	for name, ops := range map[string][]*borgpb.Op{"remove": plan.RemoveMachines(c, ms), "drain": plan.DrainMachines(ms)} {
		e, err := plan.WhatIf(c, search, plan.Change{Ops: ops})
		if err != nil || len(e.Tasks) != 1 || e.Tasks[0].Fate != plan.Ended {
			t.Errorf("%s: %+v, %v; want the daemon to end with its machine", name, e, err)
		}
	}
	e, err := plan.WhatIf(c, search, plan.Change{Ops: plan.AddMachines(c, 1, &borgpb.MachineSpec{
		Addr: "127.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 16 << 30}, Attributes: map[string]string{"kubernetes.io/os": "linux"},
	})})
	if err != nil || e.After.Running != 4 || e.After.Free.CPUMilli-e.Before.Free.CPUMilli != 3500 {
		t.Errorf("%+v, %v; want a fourth daemon, which takes 0.5 of 4 cpu", e, err)
	}
}

// TestDaemonsLeaveLast drains a machine on which a service runs beside a daemon: the service
// is moved, and then the daemon ends, as it does in a cell.
func TestDaemonsLeaveLast(t *testing.T) {
	var items []string
	for i := range 2 {
		items = append(items,
			fmt.Sprintf(`{"kind": "Node", "metadata": {"name": "n%d"}, "status": {"allocatable": {"cpu": "4", "memory": "16Gi"}}}`, i),
			fmt.Sprintf(`{"kind": "Pod", "metadata": {"name": "agent-%d", "namespace": "kube-system", "ownerReferences": [{"kind": "DaemonSet", "name": "agent", "controller": true}]},
			"spec": {"nodeName": "n%d", "containers": [{"resources": {"requests": {"cpu": "500m"}}}]}}`, i, i))
	}
	items = append(items, `{"kind": "Pod", "metadata": {"name": "web-0", "namespace": "shop", "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": true}]},
		"spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"cpu": "1"}}}]}}`)
	k := trace.NewKubernetes(trace.KubernetesLabels{})
	if err := k.Read("cluster.json", strings.NewReader(`{"items": [`+strings.Join(items, ",")+`]}`)); err != nil {
		t.Fatal(err)
	}
	from, err := k.Cell()
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := plan.Make("k", 1e18, from, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := plan.WhatIf(c, search, plan.Change{Ops: plan.DrainMachines([]*cell.Machine{c.Machine("n1")})})
	if err != nil || e.Counts[plan.Moved] != 1 || e.Counts[plan.Ended] != 1 || e.After.Running != 2 {
		t.Errorf("%+v, %v; want the service moved and the daemon ended", e, err)
	}
	// The daemon is neither evicted nor waiting, and its job has a task on each machine that takes one.
	if e.Evictions != 1 || e.After.Pending != 0 || e.After.ProdPending != 0 || len(e.Jobs) != 0 {
		t.Errorf("%d evictions, %+v, jobs that lose: %+v; want the service alone evicted", e.Evictions, e.After, e.Jobs)
	}
	// A session does the same, and brings the daemon back with its machine.
	l := newLive(t, c)
	drain := func(drain bool) {
		l.must(&borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: "n1", Drain: drain}}})
		l.settle()
		// A daemon leaves with the entry after the last of the others.
		l.apply()
		l.settle()
	}
	agent := cell.JobKey{User: "kube-system", Name: "agent"}
	drain(true)
	if n := l.cell.Machine("n1").NumCopies(); n != 0 || l.cell.Machine("n0").NumCopies() != 2 {
		t.Errorf("in a session %d tasks stay on the machine", n)
	}
	drain(false)
	if _, running, _ := l.cell.Job(agent).Counts(); running != 2 {
		t.Errorf("in a session %d daemons run after the drain, want 2", running)
	}
}

// TestFitMoves: two machines of 4 cpu with a task of 2 each hold a task of 3 once one of
// them is moved, and not without moves.
func TestFitMoves(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for i := range 2 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 4000, 8<<30, nil))
		apart := job(1, 200, 2000, 1<<30)
		if i == 0 {
			apart.Task.Resources.MemBytes = 2 << 30
		}
		l.must(submit(fmt.Sprintf("j%d", i), apart))
		l.settle()
	}
	if a, b := l.cell.Machine("m0").NumCopies(), l.cell.Machine("m1").NumCopies(); a != 1 || b != 1 {
		t.Skipf("%d and %d tasks on the machines", a, b)
	}
	q := plan.FitQuestion{Jobs: []plan.Wanted{{User: "ann", Name: "new", Spec: job(1, 200, 3000, 1<<30)}}}
	a, err := plan.Fit(l.cell, scheduler.Config{}, q)
	if err != nil || a.Count != 1 || a.Moved != 1 || a.Evicted != 0 {
		t.Errorf("%+v, %v; want one after one move", a, err)
	}
	if a, err = plan.Fit(l.cell, scheduler.Config{Reschedule: scheduler.RescheduleOff}, q); err != nil || a.Count != 0 {
		t.Errorf("%+v, %v; want none without moves", a, err)
	}
}

// TestWhatIfNamesDaemonsInHoles: a daemon on a new machine that takes the number of an earlier
// one is named as the others are.
func TestWhatIfNamesDaemonsInHoles(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for i := range 3 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 4000, 8<<30, nil))
	}
	agent := job(0, 200, 1000, 1<<30)
	agent.Kind = borgpb.JobKind_JOB_KIND_DAEMON
	l.must(submit("agent", agent))
	l.settle()
	l.must(plan.RemoveMachines(l.cell, []*cell.Machine{l.cell.Machine("m0")})...)
	l.settle()
	spec := &borgpb.MachineSpec{Addr: "127.0.0.1:1", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 8 << 30}}
	e, err := plan.WhatIf(l.cell, search, plan.Change{Ops: plan.AddMachines(l.cell, 2, spec)})
	if err != nil || e.After.Running-e.Before.Running != 2 || e.Counts[plan.NewPlaced] != 2 {
		t.Errorf("%+v, %v; want two daemons, both named", e, err)
	}
}

// TestWhatIfRestsFirst: what waits is placed before the change, so a machine that goes
// displaces it.
func TestWhatIfRestsFirst(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(addMachine("m0", 4000, 8<<30, nil))
	l.must(submit("waits", job(1, 200, 3000, 1<<30)))
	e, err := plan.WhatIf(l.cell, search, plan.Change{Ops: plan.RemoveMachines(l.cell, []*cell.Machine{l.cell.Machine("m0")})})
	if err != nil || e.Rested.Placed != 1 || e.Before.Running != 1 || len(e.Tasks) != 1 || e.Tasks[0].Fate != plan.Displaced || e.Tasks[0].From != "m0" {
		t.Errorf("%+v, %v; want the task placed first, and displaced from m0", e, err)
	}
}

// TestDefragGoesOn empties more than 256 machines where so many moves are allowed.
func TestDefragGoesOn(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for i := range 360 {
		l.must(addMachine(fmt.Sprintf("m%03d", i), 8000, 64<<30, nil))
	}
	// Beside one of the large tasks there is room for one small one.
	l.must(submit("large", job(360, 200, 6500, 1<<30)))
	l.settle()
	l.must(submit("small", job(360, 200, 1000, 1<<30)))
	l.settle()
	l.must(&borgpb.Op{Principal: &borgpb.Principal{User: "ann", Role: borgpb.Role_ROLE_USER}, Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "ann", Name: "large"}}})
	l.settle()
	d, err := plan.Defrag(l.cell, search, 2000, []string{plan.AimMachines})
	if err != nil || len(d.Freed) <= 256 || d.Untried != 0 {
		t.Fatalf("%d moves, %d machines freed, %d not tried, %v; want more than 256 freed", len(d.Moves), len(d.Freed), d.Untried, err)
	}
}

// TestCompactionTakesDaemonsWithMachines compacts a cell with daemons, by hand: of ten cores a
// daemon takes two of each machine, so that 40 cores of others need five machines instead of
// four. Studies split what is packed, and every cell of theirs has the daemons.
func TestCompactionTakesDaemonsWithMachines(t *testing.T) {
	daemon := func(cpuMilli int64, constraints ...*borgpb.Constraint) *borgpb.JobSpec {
		s := job(0, 300, cpuMilli, 1<<30)
		s.Kind, s.Task.Constraints = borgpb.JobKind_JOB_KIND_DAEMON, constraints
		return s
	}
	l := tenMachines(t)
	l.must(asUser("root", "agent", daemon(2000)))
	// One that matches no machine takes nothing.
	l.must(asUser("root", "gpu-agent", daemon(5000, &borgpb.Constraint{Key: "gpu", Relation: borgpb.Relation_RELATION_PRESENT})))
	l.must(submit("web", job(20, 200, 1000, 1<<30)), asUser("bob", "batch", job(20, 110, 1000, 1<<30)))
	l.settle()
	k, err := plan.NewCompaction(l.cell, search, plan.Of{})
	if err != nil {
		t.Fatal(err)
	}
	if k.Tasks != 40 || len(k.Daemons) != 2 || len(k.Softened) > 0 || k.Dropped > 0 || k.Clones != 1 {
		t.Errorf("%+v; want 40 tasks and two daemon jobs", k)
	}
	for _, c := range []struct {
		study string
		setup plan.Setup
		want  []int
	}{
		// 20 of 8 cores a machine, twice.
		{"segregate", plan.Setup{}, []int{6}},
		{"subdivide", plan.Setup{Cells: []int{2}}, []int{6}},
		{"split-by-user", plan.Setup{UserMemBytes: 20 << 30}, []int{6}},
		{"no-reclamation", plan.Setup{}, []int{5}},
		// 2 cores are a power of two times 0.5; so is 1.
		{"bucket", plan.Setup{}, []int{5, 5}},
	} {
		base, all := overheads(t, l.cell, c.study, c.setup)
		if base.Machines != 5 || base.Most != 5 {
			t.Errorf("%s: as it is the cell needs %d machines, want 5", c.study, base.Machines)
		}
		for i, o := range all {
			if o.Machines != c.want[i] {
				t.Errorf("%s, %s: %d machines, want %d", c.study, o.Variant, o.Machines, c.want[i])
			}
		}
	}
	if s, err := plan.Compare(l.cell, search); err != nil || s.Pending != 0 {
		t.Errorf("packed from nothing: %+v, %v; want nothing pending", s, err)
	}
}
