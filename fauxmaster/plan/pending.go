package plan

import (
	"math"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// HeldBack is a task that may not leave a machine that drains, or a volume that is kept on it.
type HeldBack struct {
	Machine string `json:"machine"`
	// Task stays, or is the one for which the volume is kept.
	Task string `json:"task"`
	// Volume is the one that the task works in, or the one that is kept; empty: a budget, or
	// something else, holds the task.
	Volume string `json:"volume,omitempty"`
	// Kept: the volume is kept for a task that does not run there.
	Kept bool   `json:"kept,omitempty"`
	Why  string `json:"why"`
}

// heldBack lists what stays on machines that drain.
func heldBack(c *cell.Cell) (all []HeldBack) {
	for m := range c.Machines() {
		_, forced, drains := m.Drain()
		if !drains {
			continue
		}
		holds := c.KeptVolumes(m)
		if !forced {
			holds = c.Blockers(m, math.MaxInt)
		}
		for i := range holds {
			h := &holds[i]
			all = append(all, HeldBack{Machine: m.Name(), Task: h.Task.String(), Volume: h.Volume, Kept: h.Volume != "" && !h.OfVolume(), Why: h.Reason})
		}
	}
	return all
}

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
