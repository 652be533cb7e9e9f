package plan

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// maxExplained bounds for how many tasks a question asks the scheduler why they wait. Tasks of
// one job that need the same are asked about once.
const maxExplained = 200

// explain says of the tasks that wait after a change why they do.
func (m *Model) explain(e *Effect) {
	type same struct {
		job  cell.UID
		need *cell.Need
	}
	words := make(map[same]string)
	for i := range e.Tasks {
		t := &e.Tasks[i]
		if t.Fate != NewPending && t.Fate != Displaced {
			continue
		}
		id, err := cell.ParseTaskID(t.Task)
		j := m.cell.Job(id.Job)
		if err != nil || j == nil || j.Task(id.Index).State() != borgpb.State_STATE_PENDING {
			continue
		}
		key := same{j.UID(), j.Need(id.Index)}
		why, known := words[key]
		if !known {
			if len(words) == maxExplained {
				return
			}
			if said, err := m.s.Explain(m.cell, id.Job, id.Index); err == nil {
				why = said.Summary
			}
			words[key] = why
		}
		if t.Why != "" && why != "" {
			t.Why += "; "
		}
		t.Why += why
	}
}
