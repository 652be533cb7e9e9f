package linkshard

import (
	"testing"

	"borg/proto/borgpb"
)

// TestLabelsAreSentOnce: a borglet hears of the labels of a task's job when it does not hold
// them, and again when they change; a change is a change of its machine.
func TestLabelsAreSentOnce(t *testing.T) {
	l := newPackageLog(t)
	set := func(labels map[string]string, remove ...string) {
		l.do(&borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{
			Kind: borgpb.Labelled_LABELLED_JOB, User: "alice", Name: "tool", SetLabels: labels, RemoveLabels: remove}}})
	}
	known := &Known{}
	build := func() (mark uint64, labels map[string]string, sent bool) {
		t.Helper()
		for _, d := range Build(l.cell, l.machine(), "test", 1, known).Desired {
			if d.Job == "tool" {
				return d.LabelMark, d.GetLabels().GetLabels(), d.Labels != nil
			}
		}
		t.Fatal("no task of the job is wanted")
		return 0, nil, false
	}
	hold := func(mark uint64) {
		known.Hash, known.Tasks, known.Versions, known.LabelMarks = []byte{1}, nil, nil, nil
		for p := range l.machine().Copies() {
			id := p.ID()
			known.Tasks = append(known.Tasks, &borgpb.TaskReport{JobUid: id.Job.String(), Index: id.Index, Attempt: id.Attempt, State: int32(p.State())})
			known.Versions, known.LabelMarks = append(known.Versions, 1), append(known.LabelMarks, mark)
		}
	}
	if mark, _, sent := build(); mark != 0 || sent {
		t.Errorf("of a job without labels mark %d is sent", mark)
	}
	before := l.machine().Changes()
	set(map[string]string{"tier": "web"})
	if l.machine().Changes() == before {
		t.Error("other labels are no change of the machine")
	}
	first, labels, sent := build()
	if first == 0 || !sent || labels["tier"] != "web" {
		t.Errorf("mark %d with labels %v", first, labels)
	}
	hold(first)
	if mark, _, sent := build(); mark != first || sent {
		t.Errorf("mark %d and sent %v, want %d and no labels again", mark, sent, first)
	}
	set(nil, "tier")
	if mark, labels, sent := build(); mark != 0 || !sent || len(labels) != 0 {
		t.Errorf("mark %d, labels %v, sent %v; want none, said", mark, labels, sent)
	}
}
