package sim

import (
	"fmt"

	"borg/borglet"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// watch looks at everything now and then.
func (w *World) watch() {
	w.after(watchNs, func() {
		current := map[[2]any]string{}
		for _, m := range w.machines {
			running := m.Running()
			if n := m.RunningCount(); n != len(running) {
				w.fail("L5: %s counts %d running processes, and has %d", m.name, n, len(running))
			}
			w.truth.coresAlone(m)
			for _, id := range running {
				w.truth.live(m, id)
				if p := w.truth.copyOf(m, id); p != nil && p.Current() {
					task := [2]any{id.JobUID, id.Index}
					if other, ok := current[task]; ok {
						w.fail("S7: two current attempts of task %d of %s run, on %s and %s", id.Index, id.JobUID, other, m.name)
					}
					current[task] = m.name
				} else if p != nil {
					w.mark("old attempt still runs")
				}
			}
		}
		w.truth.addresses()
		w.hungTooLong()
		if w.healed && w.unsettled() == "" {
			w.finish()
			return
		}
		w.watch()
	})
}

// leader is the elected replica, if it is ready.
func (w *World) leader() *replicaNode {
	for _, x := range w.replicas {
		if x.up && !x.paused && x.core.State().Settled {
			return x
		}
	}
	return nil
}

// unsettled says what is not yet as it should be; empty: nothing.
func (w *World) unsettled() string {
	if w.leader() == nil {
		return "nobody is elected"
	}
	if why := w.membersUnsettled(); why != "" {
		return why
	}
	for _, x := range w.replicas {
		if i := x.cell.Index(); i != w.truth.index {
			return fmt.Sprintf("replica %d is at index %d of %d", x.id, i, w.truth.index)
		}
	}
	for _, c := range append(w.clients, w.operator.client) {
		if c.op != nil || !c.ended() {
			return fmt.Sprintf("client %s is not answered", c.name())
		}
	}
	for _, x := range w.watchers {
		if x.blank || x.check.Left() != nil {
			return fmt.Sprintf("watcher %d was told up to index %d", x.i, x.check.Told())
		}
	}
	if why := w.kindsUnsettled() + w.followersUnsettled(); why != "" {
		return why
	}
	c := w.truth.cell
	for j, index := range c.Pending() {
		// In an alloc there may be no room.
		if _, inSet := j.AllocSet(); !inSet && !pinned(j) && j.Kind() != borgpb.JobKind_JOB_KIND_DAEMON && j.Need(index).Resources.CPUMilli < giantCPU && !w.swarm.tight && c.HeldBack(j) == "" {
			return fmt.Sprintf("task %v/%d pends", j.Key(), index)
		}
	}
	for j := range c.Jobs() {
		_, inSet := j.AllocSet()
		// By the rules of format 1 one can wait for ever.
		if c.Format() > 1 && !inSet && !pinned(j) && j.Kind() != borgpb.JobKind_JOB_KIND_DAEMON && !w.swarm.tight && j.Update().Rolling() && c.HeldBack(j) == "" && !backsOff(c, j) && !w.truth.waitsForSomebody(j) {
			return fmt.Sprintf("the update of %v rolls", j.Key())
		}
	}
	for j := range c.Jobs() {
		// Who was out of reach when an update passed gets the new version after it.
		st := c.UpdateProto(j).GetStatus()
		ended := st.GetState() == borgpb.UpdateState_UPDATE_STATE_DONE || st.GetState() == borgpb.UpdateState_UPDATE_STATE_ROLLED_BACK
		if ended && st.GetSkipped() == 0 && st.GetOld() > 0 {
			return fmt.Sprintf("%d tasks of %v run an old version, and its update has ended", st.GetOld(), j.Key())
		}
	}
	if under := w.truth.underReserved(); under != "" {
		return fmt.Sprintf("%s reserves less than it uses", under)
	}
	for a := range c.PendingAllocs() {
		// Where its volumes are there may be no room.
		if !w.swarm.tight && len(a.Set().Spec().GetVolumes()) == 0 {
			return fmt.Sprintf("alloc %v/%d pends", a.Set().Key(), a.Index())
		}
	}
	for x := range c.Machines() {
		m := w.machineNamed(x.Name())
		if !x.Up() {
			return "machine " + m.name + " is down"
		}
		for p := range x.Copies() {
			id := borglet.ID{JobUID: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt()}
			switch s := p.State(); {
			case s == borgpb.AttemptState_ATTEMPT_STATE_BACKOFF:
			case s != borgpb.AttemptState_ATTEMPT_STATE_RUNNING:
				return fmt.Sprintf("copy %s on %s is %v", id, m.name, s)
			case w.swarm.crashServices && crashes(p):
			case m.Pid(id) == 0 || m.Pid(id) != p.PID():
				return fmt.Sprintf("copy %s is said to run on %s and does not", id, m.name)
			}
		}
		for _, id := range m.Begun() {
			if p := w.truth.copyOf(m, id); p == nil || !p.Current() {
				return fmt.Sprintf("copy %s runs on %s and should not", id, m.name)
			}
		}
	}
	if why := w.volumesUnsettled(); why != "" {
		return why
	}
	return w.left()
}

// crashes tells whether the process of a copy ends again and again: where it is started again
// as soon, there is always something new of one of many.
func crashes(p *cell.Copy) bool {
	args := p.TaskSpec().GetArgs()
	return p.Kind() == borgpb.JobKind_JOB_KIND_SERVICE && len(args) > 2 && args[2] != "0"
}

// left says what is left on a machine of a run that is over. Of a copy that waits for
// its next start something may be: it is taken away then.
func (w *World) left() string {
	for _, m := range w.machines {
		for _, id := range m.Left() {
			if p := w.truth.copyOf(m, id); p == nil || p.State() != borgpb.AttemptState_ATTEMPT_STATE_BACKOFF {
				return fmt.Sprintf("%s has a cgroup of copy %s, and nothing runs in it", m.name, id)
			}
		}
	}
	return ""
}

// finish is the last look, when all has settled.
func (w *World) finish() {
	w.say("settled at index %d", w.truth.index)
	for _, x := range w.replicas {
		if x.cell.Digest() != w.truth.cell.Digest() {
			w.fail("L2: replica %d ends with another cell", x.id)
		}
		if err := x.cell.Check(); err != nil {
			w.fail("the cell of replica %d: %v", x.id, err)
		}
	}
	for id := range w.truth.acked {
		if w.truth.done[id].times != 1 {
			w.fail("S4: %s was acknowledged and is not there", id)
		}
	}
	w.truth.filesAre()
	w.truth.labelsAre()
	w.volumesAre()
	w.truth.addressed()
	w.judge()
	w.over = true
}

// backsOff tells whether a task of a job has failed and waits: an update goes no
// further until it is seen running.
func backsOff(c *cell.Cell, j *cell.Job) bool {
	if c.RetryNs(j) != 0 {
		return true
	}
	for _, t := range j.Tasks() {
		if p := t.Current(); p != nil && p.State() == borgpb.AttemptState_ATTEMPT_STATE_BACKOFF {
			return true
		}
	}
	return false
}
