package fauxmaster_test

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
)

// addKinds puts into some of the random cells what a plan could leave out: daemons, tasks
// with ports where other programs hold some, a private cell, quotas and state budgets.
func (d *planned) addKinds(m *plan.Model) {
	r := d.r
	must := func(ops ...*borgpb.Op) {
		d.t.Helper()
		if err := m.Must(ops...); err != nil {
			d.t.Fatal(err)
		}
	}
	rest := func() {
		d.t.Helper()
		if err := m.Rest(); err != nil {
			d.t.Fatal(err)
		}
	}
	if r.IntN(3) == 0 {
		// Who asks a session is its visitor; who asks a plan is the owner of the job.
		for _, user := range []string{"visitor", "ann"} {
			must(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: user, Capability: string(cell.Admin)}}})
		}
		must(&borgpb.Op{Op: &borgpb.Op_SetVisibility{SetVisibility: &borgpb.SetVisibility{Policy: &borgpb.Visibility{Private: true}}}})
	}
	if r.IntN(3) == 0 {
		agent := &borgpb.JobSpec{
			Kind: borgpb.JobKind_JOB_KIND_DAEMON, Priority: []int32{110, 200, 400}[r.IntN(3)],
			Task: &borgpb.TaskSpec{Args: []string{"/bin/agent"}, Resources: &borgpb.Resources{CpuMilli: 250, MemBytes: 1 << 28}},
		}
		if r.IntN(2) == 0 {
			agent.Task.Constraints = []*borgpb.Constraint{{Key: "rack", Relation: borgpb.Relation_RELATION_NOT_EQUAL, Value: "r1"}}
		}
		must(plan.Submit("ann", "agent", agent, nil))
		rest()
	}
	if r.IntN(3) == 0 {
		web := d.job()
		web.Task.Ports, web.Gang = []string{"http", "admin"}, false
		must(plan.Submit("ann", "web", web, nil))
		rest()
		d.holdPorts(m, "web")
		rest()
	}
	if r.IntN(4) == 0 {
		run := d.job()
		run.Kind, run.Priority, run.Task.MaxRuntimeNs = borgpb.JobKind_JOB_KIND_BATCH, 110, 3600e9
		must(plan.Submit("ann", "limited", run, nil))
		rest()
	}
}

// holdPorts has a task report that it was not started because others hold its ports.
func (d *planned) holdPorts(m *plan.Model, job string) {
	j := d.cell.Job(cell.JobKey{User: "ann", Name: job})
	p := j.Task(0).Current()
	if p == nil {
		return
	}
	var held []*borgpb.HeldPort
	for _, port := range p.Ports() {
		held = append(held, &borgpb.HeldPort{Port: uint32(port), By: "nginx"})
	}
	m.Do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: p.Machine().Name(), Tasks: []*borgpb.TaskReport{{
		JobUid: j.UID().String(), Attempt: p.Attempt(), State: int32(borgpb.AttemptState_ATTEMPT_STATE_LOST), HeldPorts: held, Exit: &borgpb.Exit{},
	}}}}}}})
}

// limit sets budgets of what the cell's user may have, once all is there.
func (d *planned) limit(m *plan.Model) {
	var ops []*borgpb.Op
	if d.r.IntN(4) == 0 {
		ops = append(ops, &borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{User: "ann", Amounts: []*borgpb.StateAmount{
			{Measure: borgpb.StateMeasure_STATE_MEASURE_VOLUMES, Amount: int64(1 + d.r.IntN(4))},
		}}}})
	}
	if d.r.IntN(4) == 0 {
		on := true
		ops = append(ops, &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: &on}}})
		if d.r.IntN(2) == 0 {
			ops = append(ops, &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{
				User: "ann", Band: borgpb.Band_BAND_PRODUCTION, Limit: &borgpb.Resources{CpuMilli: int64(1+d.r.IntN(4)) * 1000, MemBytes: 4 << 30, DiskBytes: 4 << 30},
			}}})
		}
	}
	if err := m.Must(ops...); err != nil {
		d.t.Fatal(err)
	}
}

// countKinds looks for what addKinds and limit put there.
func countKinds(c *cell.Cell, has map[string]bool) {
	for j := range c.Jobs() {
		_, running, _ := j.Counts()
		if running == 0 {
			continue
		}
		has["daemons"] = has["daemons"] || j.Kind() == borgpb.JobKind_JOB_KIND_DAEMON
		has["time limits"] = has["time limits"] || j.Spec().GetTask().GetMaxRuntimeNs() > 0
	}
	for m := range c.Machines() {
		has["held ports"] = has["held ports"] || c.HeldPortsWords(m) != ""
	}
	has["quotas"] = c.QuotasEnforced()
}

// setAside is what fit does first: it asks for what there is room, not who may have it.
func setAside(s *served, c *cell.Cell) {
	if !c.QuotasEnforced() {
		return
	}
	off := false
	s.mutate([]*borgpb.Op{{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: &off}}}})
}

// refuses reports whether a session refuses one of the ops, in order.
func (s *served) refuses(ops []*borgpb.Op) error {
	for _, op := range ops {
		op = proto.CloneOf(op)
		op.Principal = nil
		if _, err := s.Mutate(s.t.Context(), op); err != nil {
			return fmt.Errorf("%v: %w", op, err)
		}
	}
	return nil
}
