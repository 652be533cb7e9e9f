package plan_test

import (
	"testing"
	"time"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
)

// oneMachine has ten cores, a batch task on all of them, and more that wait.
func oneMachine(t *testing.T, ops ...*borgpb.Op) *plan.Model {
	t.Helper()
	m, err := plan.New(cell.New("c", 1), search)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range append([]*borgpb.Op{addMachine("m", 10_000, 40<<30, nil)}, ops...) {
		if err := m.Must(op); err != nil {
			t.Fatal(err)
		}
		if err := m.Rest(); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func key(name string) cell.JobKey { return cell.JobKey{User: "ann", Name: name} }

// near tells whether a time is within a minute of another one.
func near(ns int64, want time.Duration) bool {
	return time.Duration(ns)-want < time.Minute && want-time.Duration(ns) < time.Minute
}

// TestEta runs a queue of three forward.
func TestEta(t *testing.T) {
	m := oneMachine(t, submit("first", job(3, 110, 10_000, 1<<30)), submit("late", job(1, 110, 10_000, 1<<30)))
	q := plan.EtaQuestion{Job: key("late"), RunsNs: map[cell.JobKey]int64{key("first"): int64(time.Hour)}, HorizonNs: int64(100 * time.Hour)}
	a, err := plan.Eta(m.Cell(), search, q)
	if err != nil {
		t.Fatal(err)
	}
	// The turns of one user go by jobs in the order in which they came.
	if !a.Placed || !near(a.AfterNs, 3*time.Hour) || a.Ended != 3 || a.Machine != "m" || a.Running != 1 || a.Known != 1 {
		t.Errorf("%+v, want a place on m after three hours and three tasks", a)
	}
	q.Job, q.Index = key("first"), 2
	if a, err = plan.Eta(m.Cell(), search, q); err != nil || !a.Placed || !near(a.AfterNs, 2*time.Hour) {
		t.Errorf("%+v, %v; want two hours", a, err)
	}
	q.Index = 0
	if a, err = plan.Eta(m.Cell(), search, q); err != nil || !a.Placed || a.AfterNs != 0 {
		t.Errorf("%+v, %v; it runs", a, err)
	}
	q.Index, q.HorizonNs = 2, int64(90*time.Minute)
	if a, err = plan.Eta(m.Cell(), search, q); err != nil || a.Placed || a.Why == "" {
		t.Errorf("%+v, %v; want none within the horizon", a, err)
	}
	q.Job = key("nobody")
	if _, err = plan.Eta(m.Cell(), search, q); err == nil {
		t.Error("a job that is not there: want an error")
	}
}

// TestEtaNever says why, when nothing is known to end.
func TestEtaNever(t *testing.T) {
	m := oneMachine(t, submit("serves", job(1, 200, 6000, 1<<30)), submit("wants", job(1, 200, 6000, 1<<30)))
	q := plan.EtaQuestion{Job: key("wants"), HorizonNs: int64(1000 * time.Hour)}
	a, err := plan.Eta(m.Cell(), search, q)
	if err != nil || a.Placed || a.Known != 0 || a.Why == "" || len(a.Changes) == 0 {
		t.Errorf("%+v, %v; want to be told why not, and what would help", a, err)
	}
	q.RunsNs = map[cell.JobKey]int64{key("serves"): 1e9}
	if _, err = plan.Eta(m.Cell(), search, q); err == nil {
		t.Error("a service does not end: want an error")
	}
}

// TestEtaLearns takes the tasks of a job to run as long as those that finished.
func TestEtaLearns(t *testing.T) {
	m := oneMachine(t, submit("first", job(3, 110, 10_000, 1<<30)), submit("late", job(1, 110, 10_000, 1<<30)))
	p := m.Cell().Job(key("first")).Task(0).Current()
	ended := p.StartedWallNs() + int64(30*time.Minute)
	if err := m.Must(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: "m", Tasks: []*borgpb.TaskReport{{
		JobUid: p.JobUID().String(), Attempt: p.Attempt(), State: int32(borgpb.AttemptState_ATTEMPT_STATE_FINISHED), StartedWallNs: p.StartedWallNs(),
		Exit: &borgpb.Exit{EndedWallNs: ended},
	}}}}}}}); err != nil {
		t.Fatal(err)
	}
	if err := m.Rest(); err != nil {
		t.Fatal(err)
	}
	a, err := plan.Eta(m.Cell(), search, plan.EtaQuestion{Job: key("late"), HorizonNs: int64(100 * time.Hour)})
	if err != nil || !a.Placed || !near(a.AfterNs, time.Hour) || len(a.Runs) != 1 || a.Runs[0].From != 1 || a.Runs[0].Ns != int64(30*time.Minute) {
		t.Errorf("%+v, %v; want two more of half an hour", a, err)
	}
}
