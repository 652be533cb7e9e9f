package cell

import (
	"slices"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// preemptionOp says which bands collapse.
func (g *generator) preemptionOp() *borgpb.Op {
	o := &borgpb.SetPreemptionPolicy{}
	for _, b := range []borgpb.Band{1, 2, 3, 5} {
		if g.one(3) {
			o.Collapse = append(o.Collapse, b)
		}
	}
	if g.one(12) {
		o.Collapse = append(o.Collapse, pick(g.r, []borgpb.Band{0, 2, 4, 9}))
	}
	return g.user(&borgpb.Op{Op: &borgpb.Op_SetPreemptionPolicy{SetPreemptionPolicy: o}})
}

// mayPreempt makes what a job or alloc set says of the places of others.
func (g *generator) mayPreempt(mode *borgpb.Preempt, waitNs *int64) {
	if g.one(10) {
		*mode = borgpb.Preempt_PREEMPT_NEVER
	}
	if g.c.format < FormatPreemption {
		return
	}
	if g.one(4) {
		*mode = borgpb.Preempt_PREEMPT_OWN
	}
	if *mode != borgpb.Preempt_PREEMPT_NEVER && g.one(4) || g.one(80) {
		*waitNs = pick(g.r, []int64{1, 3 * second, 20 * second, maxPreemptWaitNs})
		if g.one(30) {
			*waitNs = -1
		}
	}
}

// ownNotice makes a task ask to be told of its end.
func (g *generator) ownNotice(t *borgpb.TaskSpec) {
	if g.c.format < FormatPreemption || !g.one(3) {
		return
	}
	t.NoticeNs, t.NoticeSignal = pick(g.r, []int64{second, 7 * second, 40 * second}), g.one(2)
	switch {
	case g.one(60):
		t.NoticeNs = maxGraceNs + 1
	case g.one(60):
		t.NoticeNs = 0
	}
}

// tellVictims puts into words why they are victims.
func (g *generator) tellVictims(a *borgpb.Assignment) {
	if g.c.format < FormatPreemption || len(a.Victims) == 0 && !g.one(60) || g.one(3) {
		return
	}
	a.VictimsWhy = "1 task, of priority 50 at most"
	if g.one(40) {
		a.VictimsWhy = strings.Repeat("x", maxVictimsWhyBytes+g.r.IntN(2))
	}
}

// gaveWay holds what is said of bands a second time: who gives way is of a lower
// priority, never production by production, and within a band that collapses at most to
// his own user's; and he is told to whom, and not longer in coming to an end than he
// asks and the other waits.
func (w *walk) gaveWay(e Event, later []Event) {
	for _, o := range later {
		switch o.ObjectKind {
		case borgpb.ObjectKind_OBJECT_KIND_CELL, borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET:
			// The cell is not any more as it was.
			return
		}
	}
	name, ok := TakenBy(e.Reason)
	id, err := ParseTaskID(name)
	m := w.c.machines[e.Machine]
	if m == nil && slices.ContainsFunc(later, func(o Event) bool {
		return o.Kind == borgpb.EventKind_EVENT_KIND_MACHINE_REMOVE && o.Machine == e.Machine
	}) {
		return
	}
	if !ok || err != nil || m == nil {
		w.t.Fatalf("%s gave way for %q", e.Object(), e.Reason)
	}
	p := m.find(CopyID{e.UID, e.Task, e.Attempt})
	if p == nil {
		return
	}
	by, mode, waitNs := int32(-1), borgpb.Preempt_PREEMPT_NEVER, int64(0)
	if j := w.c.Job(id.Job); j != nil {
		s := j.specOf(id.Index).Proto
		by, mode, waitNs = s.Priority, s.Preempt, s.PreemptWaitNs
	} else if set := w.c.sets[id.Job]; set != nil {
		by, mode, waitNs = set.spec.Priority, set.spec.Preempt, set.spec.PreemptWaitNs
	}
	switch {
	case waitNs != 0:
	case w.c.format < FormatPreemption || by >= 120:
		waitNs = 10 * second
	default:
		waitNs = 30 * second
	}
	band := BandOf(by)
	collapses := band == borgpb.Band_BAND_PRODUCTION || w.c.preemption.collapse.has(band)
	if same := BandOf(p.priority) == band; by <= p.priority || mode == borgpb.Preempt_PREEMPT_NEVER ||
		same && collapses && (band == borgpb.Band_BAND_PRODUCTION || mode != borgpb.Preempt_PREEMPT_OWN || id.Job.User != p.job.key.User) {
		w.t.Fatalf("%v of priority %d gave way to %s of priority %d (%v, %v)", p.TaskID(), p.priority, name, by, mode, w.c.Collapsed())
	} else if same && collapses {
		w.edges["gave way in a collapsed band"]++
	}
	if total := p.NoticeNs() + p.GraceNs(); total > waitNs || p.NoticeNs() > 0 && w.c.format < FormatPreemption {
		w.t.Fatalf("%v is told %d ns before its SIGTERM, %d ns before its SIGKILL, and %s waits for %d ns", p.TaskID(), p.NoticeNs(), total, name, waitNs)
	}
	if p.NoticeNs() > 0 {
		w.edges["victim told ahead"]++
	}
}

// TestPreemptionBeginsWithItsFormat: below it nothing of it is known, who gives way is
// told to whom alone, and has 10 s at most, whoever wants his place.
func TestPreemptionBeginsWithItsFormat(t *testing.T) {
	l := newTestLog(t)
	l.c = New("old", 1)
	if err := l.c.AsBuild(FormatPreemption - 1); err != nil {
		t.Fatal(err)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatPreemption - 1}}})
	l.do(addMachine("m1", 1000, 1<<30))
	spec := func(priority int32) *borgpb.JobSpec {
		return &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 1, Priority: priority, Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1}, Args: []string{"x"}}}
	}
	submit := func(name string, s *borgpb.JobSpec) *borgpb.Result {
		results, _ := l.apply(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "ann", Name: name, Spec: marshal(t, s)}}})
		return results[0]
	}
	for name, change := range map[string]func(*borgpb.JobSpec){
		"own": func(s *borgpb.JobSpec) { s.Preempt = borgpb.Preempt_PREEMPT_OWN }, "wait": func(s *borgpb.JobSpec) { s.PreemptWaitNs = second },
		"notice": func(s *borgpb.JobSpec) { s.Task.NoticeNs = second }, "signal": func(s *borgpb.JobSpec) { s.Task.NoticeSignal = true },
	} {
		s := spec(50)
		if change(s); submit(name, s).GetRefusal().GetKind() != borgpb.RefusalKind_REFUSAL_KIND_MALFORMED {
			t.Errorf("format %d takes a job that asks for %s", l.c.format, name)
		}
	}
	if results, _ := l.apply(&borgpb.Op{Op: &borgpb.Op_SetPreemptionPolicy{SetPreemptionPolicy: &borgpb.SetPreemptionPolicy{}}}); results[0].Refusal == nil {
		t.Errorf("format %d takes a policy of preemption", l.c.format)
	}
	submit("low", spec(50))
	submit("high", spec(60))
	assign := func(key string, victims []*borgpb.Victim, why string) (*borgpb.Result, []Event) {
		a := &borgpb.Assignment{Uid: l.c.Job(mustKey(key)).uid.String(), Machine: "m1", Victims: victims, VictimsWhy: why}
		results, events := l.apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{a}}}})
		return results[0], events
	}
	assign("ann/low", nil, "")
	low := l.c.Job(mustKey("ann/low")).rows[0].cur
	victims := []*borgpb.Victim{{JobUid: low.job.uid.String(), Attempt: 1}}
	if r, _ := assign("ann/high", victims, "because"); r.GetRefusal().GetKind() != borgpb.RefusalKind_REFUSAL_KIND_MALFORMED {
		t.Errorf("format %d takes words for victims: %v", l.c.format, r)
	}
	_, events := assign("ann/high", victims, "")
	if len(events) == 0 || events[0].Reason != "makes room for ann/high/0" || low.GraceNs() != preemptionGraceNs {
		t.Errorf("the victim is told %+v, with a grace of %d", events, low.GraceNs())
	}
}
