package cell

import (
	"testing"

	"borg/proto/borgpb"
)

// keptLog is a cell in which ann has 800 volumes, of an ended job whose name they return.
func keptLog(t *testing.T, name string) *testLog {
	l := placesLog(t)
	if n, last := l.fillMachine("ann", name, manyVolumes(100, 100)); n != 100 {
		t.Fatalf("%d of 100 tasks were placed: %v", n, last)
	}
	l.leaveAll("ann", name, "m1")
	return l
}

// volumeSeen is what an op changes of a volume.
type volumeSeen struct {
	yields  bool
	band    borgpb.Band
	charged int64
}

func (l *testLog) seeVolumes() map[*Volume]volumeSeen {
	seen := make(map[*Volume]volumeSeen)
	for v := range l.c.Volumes() {
		seen[v] = volumeSeen{v.yields, v.band, v.charged}
	}
	return seen
}

// costs applies an op and wants it to count as at least so much work, and as at least as much as the
// volumes that it changed and the events that it made, but for a few; and as little more.
func (l *testLog) costs(what string, op *borgpb.Op, want, mostEvents int) {
	l.t.Helper()
	const few = 16
	before, work := l.seeVolumes(), l.c.Work(op)
	res, events := l.apply(op)
	if res[0].Refusal != nil {
		l.t.Fatalf("%s: %v", what, res[0].Refusal)
	}
	touched := len(events)
	for v, was := range before {
		if was != (volumeSeen{v.yields, v.band, v.charged}) {
			touched++
		}
	}
	if work < want || work > want+few || work+few < touched {
		l.t.Errorf("%s counts as %d, want %d; it changed %d things", what, work, want, touched)
	}
	if len(events) > mostEvents {
		l.t.Errorf("%s made %d events, want at most %d", what, len(events), mostEvents)
	}
	l.fine()
}

func killBy(user, name string) *borgpb.Op {
	return by(user, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}})
}

func (l *testLog) update(name string, spec *borgpb.JobSpec) *borgpb.Op {
	return by("ann", &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "ann", Name: name, Spec: marshal(l.t, spec)}}})
}

// TestWorkCountsVolumes: what changes a job or alloc set counts as the volumes that are kept under its
// name, and its end makes one event of all.
func TestWorkCountsVolumes(t *testing.T) {
	const kept = 800
	l := keptLog(t, "x")
	one, two := service(1, 100, 1, 1), service(1, 0, 2, 2)
	pause := &borgpb.ControlUpdate{User: "ann", Name: "x", Verb: borgpb.UpdateVerb_UPDATE_VERB_PAUSE}
	// The job of 100 tasks that it takes the place of is forgotten.
	l.costs("a submit", submitBy(t, "ann", "x", one), kept+100, 1)
	l.costs("an update", l.update("x", two), kept+1, 4)
	if got := l.c.Work(by("ann", &borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: pause}})); got < kept+1 {
		t.Errorf("a pause counts as %d, want %d", got, kept+1)
	}
	l.costs("a resize", by("ann", &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "ann", Name: "x", Tasks: 2}}}), kept+2, 3)
	l.costs("a kill", killBy("ann", "x"), kept+2, 4)
	l.costs("another submit", submitBy(t, "ann", "x", one), kept+2, 1)
	op := killBy("ann", "x")
	_, events := l.apply(op)
	if last := events[len(events)-1]; last.Kind != borgpb.EventKind_EVENT_KIND_VOLUME_YIELDS || last.Object() != "ann/x" || last.Reason != "kept volumes of it: 800" {
		t.Errorf("the last event of the end is %+v", last)
	}

	l.costs("an alloc set of the name", submitSetBy(t, "ann", "x", 2), kept+2, 1)
	resize := &borgpb.ResizeAllocSet{User: "ann", Name: "x", Allocs: 3}
	l.costs("its resize", by("ann", &borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: resize}}), kept+3, 1)
	set := &borgpb.AllocSetSpec{Allocs: 3, Resources: &borgpb.Resources{CpuMilli: 50, MemBytes: 1 << 20}}
	l.costs("its update", by("ann", &borgpb.Op{Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{User: "ann", Name: "x", Spec: marshal(t, set)}}}), kept+3, 2)
	l.costs("its kill", by("ann", &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "ann", Name: "x"}}}), kept+3, 2)
	l.costs("a submit over a dead set", submitBy(t, "ann", "x", one), kept+3, 1)
}

// TestWorkCountsVolumesOfOthers: a job whose end or run ends or makes another one counts as the
// volumes of that one too.
func TestWorkCountsVolumesOfOthers(t *testing.T) {
	const kept = 800
	l := keptLog(t, "x")
	l.do(submitBy(t, "ann", "parent", service(1, 100, 1, 1)))
	child := service(1, 100, 1, 1)
	child.Parent = "ann/parent"
	l.do(submitBy(t, "ann", "x", child))
	l.costs("the kill of a parent", killBy("ann", "parent"), kept+2, 5)

	l = keptLog(t, "daily-now-1")
	spec := service(1, 100, 1, 1)
	spec.Kind, spec.Cron = borgpb.JobKind_JOB_KIND_CRON, &borgpb.CronSpec{Schedule: "0 0 * * *", Overlap: borgpb.CronOverlap_CRON_OVERLAP_REPLACE}
	l.do(submitBy(t, "ann", "daily", spec))
	run := func() *borgpb.Op {
		j := l.c.Job(JobKey{"ann", "daily"})
		return by("ann", &borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: &borgpb.FireCron{User: "ann", Name: "daily", Version: j.version, Manual: true, Spec: marshal(t, j.RunSpec())}}})
	}
	l.costs("a run", run(), kept+1, 2)
	l.costs("the run that replaces it", run(), kept+2, 6)
}

// TestWorkCountsQuarantined: the end of a job counts as its copies in quarantine, which it ends.
func TestWorkCountsQuarantined(t *testing.T) {
	l := placesLog(t)
	l.do(submitBy(t, "u", "x", service(5, 0, 1, 1)))
	for range maxQuarantinedOfTask {
		for i := range uint32(5) {
			l.start("x", i, "m1")
			l.do(quarantineTask("x", i))
		}
	}
	l.costs("a kill", killBy("u", "x"), 5+5*maxQuarantinedOfTask, 5+5*maxQuarantinedOfTask+1)
}
