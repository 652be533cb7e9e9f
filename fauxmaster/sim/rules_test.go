package sim

import (
	"strings"
	"testing"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/fauxmaster/pretend"
	"borg/proto/borgpb"
)

// TestRules breaks each rule by hand, and once keeps them all.
func TestRules(t *testing.T) {
	id := borglet.ID{JobUID: "1-5-0", Index: 2, Attempt: 1}
	event := func(kind borgpb.EventKind, from, to borgpb.State) *cell.Event {
		return &cell.Event{
			Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_TASK, UID: cell.UID{Epoch: 1, Index: 5},
			Task: 2, Attempt: 1, From: from, To: to, Machine: "m00",
		}
	}
	placed := event(borgpb.EventKind_EVENT_KIND_SCHEDULE, borgpb.State_STATE_PENDING, borgpb.State_STATE_RUNNING)
	evicted := event(borgpb.EventKind_EVENT_KIND_EVICT, borgpb.State_STATE_RUNNING, borgpb.State_STATE_PENDING)
	finished := event(borgpb.EventKind_EVENT_KIND_FINISH, borgpb.State_STATE_RUNNING, borgpb.State_STATE_PENDING)
	down := func(tr *truth, name string) {
		tr.down(borgmaster.CommittedEntry{Term: 3}, &borgpb.MachineDown{Name: name, Term: 3})
	}
	for _, c := range []struct {
		name, want string
		do         func(w *World, tr *truth)
	}{
		{"an edge that is not there", "S16:", func(w *World, tr *truth) { tr.event(finished) }},
		{"a name given twice", "S9:", func(w *World, tr *truth) { tr.event(placed); tr.event(placed) }},
		{"a verdict of another term", "S17: the master of term 2", func(w *World, tr *truth) {
			tr.down(borgmaster.CommittedEntry{Term: 3}, &borgpb.MachineDown{Name: "m00", Term: 2})
		}},
		{"a verdict too early", "S17: m00 is called down when no replica in contact has missed it for more than 1000 ms", func(w *World, tr *truth) {
			tr.reached(1, "m00")
			tr.reached(2, "m00")
			w.now += 2 * second
			tr.unreached(1, "m00")
			tr.unreached(2, "m00")
			w.now += second
			down(tr, "m00")
		}},
		{"a replica that was cut off", "S17: m00 is called down when no replica in contact has missed it for more than 0 ms", func(w *World, tr *truth) {
			w.now += 2 * noContactNs
			tr.reported(1)
			tr.reported(2)
			w.now += second
			down(tr, "m00")
		}},
		{"one witness", "S17: m00 is called down, and 1 replicas", func(w *World, tr *truth) {
			tr.unreachedNs["m00"] = map[uint64]int64{1: w.now}
			down(tr, "m00")
		}},
		{"back with many others", "S17: m00 is called down, and came back with many others 1000 ms ago", func(w *World, tr *truth) {
			tr.backNs["m00"] = w.now - second
			down(tr, "m00")
		}},
		{"one witness where there is no other", "", func(w *World, tr *truth) {
			tr.unreachedNs["m00"] = map[uint64]int64{1: w.now}
			w.replicas = []*replicaNode{{}}
			down(tr, "m00")
		}},
		{"one witness long after there was no other", "S17: m00 is called down, and 1 replicas", func(w *World, tr *truth) {
			tr.unreachedNs["m00"] = map[uint64]int64{1: w.now}
			w.roster = &rosterOperator{aloneNs: w.now - 2*second}
			down(tr, "m00")
		}},
		{"many at once", "S17: 2 machines", func(w *World, tr *truth) {
			tr.unreached(2, "m01")
			tr.unreached(4, "m01")
			w.now += 2 * second
			down(tr, "m00")
			down(tr, "m01")
		}},
		{"most of the cell is away", "S17: m00 is called down, nobody reaches 5 of 5", func(w *World, tr *truth) {
			w.now += awayNs + 1
			down(tr, "m00")
		}},
		{"and is declared lost", "", func(w *World, tr *truth) {
			w.now += awayNs + 1
			tr.declared(&borgpb.DeclareLost{ForNs: second})
			down(tr, "m00")
		}},
		{"a start too soon", "S18:", func(w *World, tr *truth) {
			tr.notTooSoon(w.machines[0], id)
			w.now += restartGapNs - 1
			tr.notTooSoon(w.machines[0], id)
		}},
		{"more than fits", "S6:", func(w *World, tr *truth) {
			tr.holds[id] = cell.Resources{CPUMilli: w.swarm.machineMilli + 1}
			tr.fits(w.machines[0], id)
		}},
		{"moved to nowhere", "S19:", func(w *World, tr *truth) {
			tr.moved(evicted, []cell.Event{*placed})
		}},
		{"all as it should be", "", func(w *World, tr *truth) {
			tr.event(placed)
			elsewhere := *placed
			elsewhere.Machine = "m01"
			tr.moved(evicted, []cell.Event{elsewhere})
			down(tr, "m00")
			tr.notTooSoon(w.machines[0], id)
			tr.holds[id] = cell.Resources{CPUMilli: w.swarm.machineMilli}
			tr.fits(w.machines[0], id)
		}},
	} {
		w := &World{marks: map[string]int{}, now: 100 * second}
		w.swarm.machineMilli = 1000
		w.truth = newTruth(w)
		m := &machine{w: w, name: "m00"}
		m.Machine = m.pretend(stream(1, "machine"))
		m.Hold(pretend.Held{Record: borglet.Record{ID: id, Run: 1}, Pid: 1})
		w.machines = []*machine{m}
		for _, name := range []string{"m01", "m02", "m03", "m04"} {
			w.machines = append(w.machines, &machine{w: w, name: name})
			w.truth.reached(1, name)
		}
		w.truth.reached(1, "m00")
		w.truth.unreached(1, "m00")
		w.truth.unreached(2, "m00")
		w.truth.reported(1)
		w.now += 7 * second
		c.do(w, w.truth)
		if said := errorText(w.failure); (c.want == "") != (said == "") || !strings.Contains(said, c.want) {
			t.Errorf("%s: the run says %q, want %q", c.name, said, c.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestAims holds that each aim can be found and leaves something to happen.
func TestAims(t *testing.T) {
	for _, a := range Aims {
		s := drawSwarm(stream(1, "swarm"))
		if err := shape(a.Name, &s); err != nil || s.weights == [faultKinds]int{} && s.membersNs == 0 || a.DurationNs == 0 {
			t.Errorf("aim %s: %v, weights %v", a.Name, err, s.weights)
		}
	}
	if err := shape("nowhere", &swarm{}); err == nil || !strings.Contains(err.Error(), Aims[0].Name) {
		t.Errorf("an aim that there is not: %v", err)
	}
}
