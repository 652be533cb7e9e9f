package fauxmaster

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/audit"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/tell"
)

// Lines tell what an entry was: for each op a line of who asked for what, why, and
// what came of it, then what it changed.
func (s *Step) Lines() (lines []string) {
	if s.Entry.Entry == nil {
		lines = append(lines, fmt.Sprintf("%-24s  %-9d  raft: term %d goes on", "", s.Index, s.Term))
	}
	for i, data := range s.Entry.Entry.GetOps() {
		r := audit.RecordOf(data, s.result(i))
		if r == nil {
			r = &borgpb.AuditRecord{Verb: "an op that cannot be read", Refusal: s.result(i).GetRefusal()}
		}
		r.WallNs, r.Index = s.Entry.Entry.GetWallTimeNs(), s.Index
		lines = append(lines, tell.Audit(r)+detail(data, s.result(i)))
	}
	for i := range s.Events {
		lines = append(lines, "    "+tell.Happened(s.Events[i].Proto()))
	}
	return lines
}

func (s *Step) result(i int) *borgpb.Result {
	if i < len(s.Results) {
		return s.Results[i]
	}
	return nil
}

// detail is what the name of an op and its object do not say.
func detail(data []byte, result *borgpb.Result) string {
	op := new(borgpb.Op)
	if proto.Unmarshal(data, op) != nil {
		return ""
	}
	switch o := op.Op.(type) {
	case *borgpb.Op_Assign:
		a := o.Assign
		text := fmt.Sprintf(": %d, decided at index %d with %d in flight, configuration %016x", len(a.GetAssignments()), a.GetCopyIndex(), a.GetInFlight(), a.GetConfigHash())
		if a.GetBuild() != "" {
			text += ", build " + a.GetBuild()
		}
		return text + refusedItems(result)
	case *borgpb.Op_MoveTasks:
		return fmt.Sprintf(": %d, decided at index %d", len(o.MoveTasks.GetMoves()), o.MoveTasks.GetCopyIndex())
	case *borgpb.Op_Reports:
		tasks := 0
		for _, m := range o.Reports.GetMachines() {
			tasks += len(m.GetTasks())
		}
		return fmt.Sprintf(": of %d machines on %d copies", len(o.Reports.GetMachines()), tasks) + refusedItems(result)
	case *borgpb.Op_Digest:
		return fmt.Sprintf(": %x at index %d", o.Digest.GetDigest(), o.Digest.GetIndex())
	case *borgpb.Op_RaiseFormat:
		return fmt.Sprintf(": to %d", o.RaiseFormat.GetFormat())
	}
	return ""
}

// refusedItems counts what was refused of a batch, and says why of the first.
func refusedItems(result *borgpb.Result) string {
	n, first := 0, ""
	for _, item := range result.GetItems() {
		if item.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED {
			if n++; n == 1 {
				first = item.GetObject() + ": " + item.GetMessage()
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d refused, first %s", n, first)
}

// Condition is something that may come to hold in a cell.
type Condition struct {
	text  string
	holds func(c *cell.Cell) bool
}

func (c Condition) String() string { return c.text }

// Holds tells whether it does.
func (c Condition) Holds(in *cell.Cell) bool { return c.holds(in) }

// gone is the state of what is not there.
const gone = "gone"

// ParseCondition reads words such as "task=alice/web/3 state=dead",
// "job=alice/web state=running" or "machine=m7 state=down".
func ParseCondition(words []string) (Condition, error) {
	said := map[string]string{}
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok || value == "" || said[key] != "" {
			return Condition{}, badCondition(words)
		}
		said[key] = value
	}
	c := Condition{text: strings.Join(words, " ")}
	state := said["state"]
	if len(said) != 2 || state == "" {
		return c, badCondition(words)
	}
	var states []string
	switch {
	case said["task"] != "":
		id, err := cell.ParseTaskID(said["task"])
		if err != nil {
			return c, err
		}
		states = append(statesOf(borgpb.State(0).Type().Descriptor().Values().Len(), func(i int) string { return tell.Word(borgpb.State(i)) }),
			statesOf(borgpb.AttemptState(0).Type().Descriptor().Values().Len(), func(i int) string { return tell.Word(borgpb.AttemptState(i)) })...)
		c.holds = func(in *cell.Cell) bool { return slices.Contains(taskStates(in, id), state) }
	case said["job"] != "":
		key, err := cell.ParseJobKey(said["job"])
		if err != nil {
			return c, err
		}
		states = statesOf(borgpb.State(0).Type().Descriptor().Values().Len(), func(i int) string { return tell.Word(borgpb.State(i)) })
		c.holds = func(in *cell.Cell) bool {
			if j := in.Job(key); j != nil {
				return tell.Word(j.State()) == state
			}
			return state == gone
		}
	case said["machine"] != "":
		name := said["machine"]
		states = statesOf(borgpb.MachineState(0).Type().Descriptor().Values().Len(), func(i int) string { return tell.Word(borgpb.MachineState(i)) })
		c.holds = func(in *cell.Cell) bool {
			if m := in.Machine(name); m != nil {
				return tell.Word(m.State()) == state
			}
			return state == gone
		}
	default:
		return c, badCondition(words)
	}
	slices.Sort(states)
	if states = append(slices.Compact(states), gone); !slices.Contains(states, state) {
		return c, fmt.Errorf("there is no state %q; it is one of %s", state, strings.Join(states, ", "))
	}
	return c, nil
}

func badCondition(words []string) error {
	return fmt.Errorf("%q is no condition: want an index, a time, or task=USER/JOB/INDEX, job=USER/JOB or machine=NAME with state=STATE", strings.Join(words, " "))
}

// statesOf are the words for an enum's values, but for the one that means nothing.
func statesOf(n int, word func(int) string) (words []string) {
	for i := 1; i < n; i++ {
		words = append(words, word(i))
	}
	return words
}

// taskStates are the words for how a task is: of itself, and of its copy.
func taskStates(c *cell.Cell, id cell.TaskID) []string {
	j := c.Job(id.Job)
	if j == nil {
		return []string{gone}
	}
	t := j.Task(id.Index)
	if t == nil {
		return []string{gone}
	}
	states := []string{tell.Word(t.State())}
	if p := t.Current(); p != nil {
		states = append(states, tell.Word(p.State()))
	}
	return states
}
