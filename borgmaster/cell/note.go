package cell

import (
	"fmt"
	"maps"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/weight"
)

// FormatTasks is the format in which tasks began to ask for something.
const FormatTasks = 3

// note is what a copy says of itself (paper §2.6: a task's status string). It goes with the
// place of the copy, and its user is charged for it in bytes until then.
type note struct {
	text        string
	annotations map[string]string
}

// Note is what the copy says of itself; empty: nothing.
func (p *Copy) Note() (text string, annotations map[string]string) {
	n := p.ownNote()
	if n == nil {
		return "", nil
	}
	return n.text, maps.Clone(n.annotations)
}

func (p *Copy) ownNote() *note {
	if p.few == nil {
		return nil
	}
	return p.few.note
}

// bytes is what a note is charged.
func (n *note) bytes() int64 {
	if n == nil {
		return 0
	}
	return int64(len(n.text)) + noteMemory + weight.Map(n.annotations)
}

// setNote has a copy that holds a place say something else; nil: nothing.
func (c *Cell) setNote(p *Copy, n *note) {
	was := p.ownNote()
	if was == n {
		return
	}
	p.rare().note = n
	c.stateUse.countOne(p.job.key.User, measureBytes, n.bytes()-was.bytes())
}

// printable: it can be shown on a terminal as it is.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) })
}

func checkNote(o *borgpb.SetTaskNote) *borgpb.Refusal {
	if len(o.Text) > maxNoteBytes {
		return invalid("text", "%d bytes; at most %d", len(o.Text), maxNoteBytes)
	}
	if !printable(o.Text) {
		return invalid("text", "it has control characters")
	}
	if len(o.Annotations) > maxNoteAnnotations {
		return limit("annotations", "%d annotations; at most %d", len(o.Annotations), maxNoteAnnotations)
	}
	total := 0
	for _, k := range sortedKeys(o.Annotations) {
		total += len(k) + len(o.Annotations[k])
		if len(k) == 0 || len(k) > maxLabelKeyBytes || !printable(k) || !printable(o.Annotations[k]) {
			return invalid("annotations", "%q: want a key of 1 to %d bytes, and no control characters in it or its value", clip(k, 64), maxLabelKeyBytes)
		}
	}
	if total > maxNoteAnnotationBytes {
		return limit("annotations", "%d bytes; at most %d", total, maxNoteAnnotationBytes)
	}
	return nil
}

// checkSetTaskNote takes what a task says of itself in place of what it said
// before.
func (c *Cell) checkSetTaskNote(o *borgpb.SetTaskNote) (commit, *borgpb.Refusal) {
	id := TaskID{JobKey{o.User, o.Job}, o.Index}
	if r := checkKey(id.Job); r != nil {
		return nil, r
	}
	if r := checkNote(o); r != nil {
		return nil, about(id.String(), r)
	}
	t := c.task(id)
	switch {
	case t == nil:
		return nil, notFound(id.String(), "there is no such task")
	case t.cur == nil:
		return nil, badState(id.String(), "it does not run")
	case o.Attempt != t.attempt:
		return nil, stale(id.String(), "attempt %d says it, and attempt %d is the current one", o.Attempt, t.attempt)
	}
	var next *note
	if o.Text != "" || len(o.Annotations) > 0 {
		next = &note{text: o.Text, annotations: o.Annotations}
	}
	more := next.bytes() - t.cur.ownNote().bytes()
	if r := c.checkState(id.Job.User, t.cur.priority, &StateUse{measureBytes: more}); r != nil {
		return nil, about(id.String(), r)
	}
	return func(*borgpb.Result) {
		c.setNote(t.cur, next)
		c.dirty(t)
	}, nil
}

func (c *Cell) task(id TaskID) *Task {
	if j := c.Job(id.Job); j != nil {
		return j.Task(id.Index)
	}
	return nil
}

// checkTaskPermission refuses what a task may not do: it speaks for itself, and
// for the children of its job if that was granted.
func (c *Cell) checkTaskPermission(op *borgpb.Op) *borgpb.Refusal {
	who := op.Principal
	refused := func(format string, args ...any) *borgpb.Refusal {
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "", format, args...)
	}
	id, err := ParseTaskID(who.Task)
	if err != nil || who.Role != borgpb.Role_ROLE_TASK || id.Job.User != who.User {
		return refused("principal: %q of user %q is no task", clip(who.Task, 160), clip(who.User, 64))
	}
	if t := c.task(id); t == nil || t.cur == nil {
		return refused("the cell does not have task %s running", id)
	}
	switch o := op.Op.(type) {
	case *borgpb.Op_SetTaskNote:
		if about := (TaskID{JobKey{o.SetTaskNote.User, o.SetTaskNote.Job}, o.SetTaskNote.Index}); about != id {
			return refused("task %s speaks for itself alone, not for %s", id, clip(about.String(), 160))
		}
		return nil
	case *borgpb.Op_SubmitJob:
		return c.checkChild(id.Job, o.SubmitJob)
	case *borgpb.Op_KillJob:
		key := JobKey{o.KillJob.User, o.KillJob.Name}
		if j := c.Job(key); j == nil || j.latest().Proto.Parent != id.Job.String() || !c.maySubmitChildren(id.Job) {
			return refused("task %s may end the children of its own job alone, if its job has submit_children", id)
		}
		return nil
	case *borgpb.Op_WriteFile:
		return c.checkTaskFile(id, o.WriteFile.User)
	case *borgpb.Op_DeleteFile:
		return c.checkTaskFile(id, o.DeleteFile.User)
	}
	if c.format < FormatFiles {
		// Refusals are remembered as they are.
		return refused("a task may set its own note, and submit and end children of its job if that was granted; nothing else")
	}
	return refused("a task may set its own note, write and delete files of its user, and submit and end children of its job if that was granted; nothing else")
}

// checkTaskFile lets a task at the files of its own user, whatever else that user
// may do.
func (c *Cell) checkTaskFile(id TaskID, user string) *borgpb.Refusal {
	if user != id.Job.User && !mutant.Planted(mutant.TaskWritesAnywhere) {
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "", "task %s has a say over the files of user %s alone, not over those of %s", id, id.Job.User, clip(user, 64))
	}
	return nil
}

func (c *Cell) maySubmitChildren(parent JobKey) bool {
	j := c.Job(parent)
	return j != nil && j.latest().Proto.SubmitChildren
}

// checkChild wants a job of the same user that ends with the task's own, and
// cannot have children in turn.
func (c *Cell) checkChild(parent JobKey, o *borgpb.SubmitJob) *borgpb.Refusal {
	refused := func(format string, args ...any) *borgpb.Refusal {
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "", format, args...)
	}
	if !c.maySubmitChildren(parent) {
		return refused("job %s does not let its tasks submit children; its owner may: submit_children = True", parent)
	}
	spec := new(borgpb.JobSpec)
	if r := decode(o.Spec, spec, c.format); r != nil {
		return r
	}
	switch {
	case o.User != parent.User:
		return refused("a task of %s submits jobs of user %s alone", parent, parent.User)
	case spec.Parent != parent.String():
		return refused("a task of %s submits jobs whose parent is that, and here it is %q", parent, clip(spec.Parent, 160))
	case spec.SubmitChildren:
		return refused("what a task submits cannot submit children in turn")
	}
	return nil
}

// note writes what a copy says, if it says something.
func (e *encoder) note(n *note) {
	if n == nil {
		return
	}
	e.byte(tagNote)
	e.str(n.text)
	e.strs(n.annotations)
}

// note reads what encoder.note writes.
func (l *loader) note(d *decoder) (*note, error) {
	if l.c.format < FormatTasks || !d.tagged(tagNote) {
		return nil, nil
	}
	n := &note{text: d.str(), annotations: d.strs()}
	if r := checkNote(&borgpb.SetTaskNote{Text: n.text, Annotations: n.annotations}); r != nil || (n.text == "" && len(n.annotations) == 0) {
		return nil, fmt.Errorf("an odd note: %w", errOdd)
	}
	return n, nil
}
