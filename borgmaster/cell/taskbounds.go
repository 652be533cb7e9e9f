package cell

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// TaskBounds is what a task or alloc of a user may ask for.
type TaskBounds struct {
	mark
	user string
	// Of each amount zero means nothing: nothing is wanted, filled in, or forbidden.
	min, otherwise, max Resources
	gone                bool
}

// User it is about.
func (b *TaskBounds) User() string { return b.user }

// Min is what a task asks for at least.
func (b *TaskBounds) Min() Resources { return b.min }

// Default is what a task asks for that asks for none of it.
func (b *TaskBounds) Default() Resources { return b.otherwise }

// Max is what a task asks for at most; of what is zero as much as it likes.
func (b *TaskBounds) Max() Resources { return b.max }

type taskBounds struct {
	byUser map[string]*TaskBounds
	// Sorted by user.
	list []*TaskBounds
}

// TaskBoundsOf is how a user's tasks are bounded; nil: not at all.
func (c *Cell) TaskBoundsOf(user string) *TaskBounds { return c.taskBounds.byUser[user] }

// TaskBounds yields all of them, by user.
func (c *Cell) TaskBounds() iter.Seq[*TaskBounds] { return slices.Values(c.taskBounds.list) }

func (c *Cell) checkSetTaskLimits(o *borgpb.SetTaskLimits) (commit, *borgpb.Refusal) {
	if r := checkUserName(o.User); r != nil {
		return nil, r
	}
	for _, q := range []struct {
		field string
		r     *borgpb.Resources
	}{{"min", o.Min}, {"default", o.Default}, {"max", o.Max}} {
		r := checkResources(q.r, q.field)
		if r == nil && q.r.GetPorts() != 0 {
			r = invalid(q.field+".ports", "ports are not bounded; leave them out")
		}
		if r != nil {
			return nil, about(o.User, r)
		}
	}
	b := c.taskBounds.byUser[o.User]
	lo, otherwise, hi, r := mergedBounds(b, o)
	if r != nil {
		return nil, about(o.User, r)
	}
	for _, q := range []struct {
		field string
		r     Resources
	}{{"max", hi}, {"default", otherwise}} {
		if i := below(&q.r, &lo, true); i != nil {
			return nil, about(o.User, invalid(q.field, "%s is less of %s than min wants, which is %s", i.text(chargeOf(0, &q.r, 1).of(i)), i.what(), i.text(i.n)))
		}
	}
	if i := above(&otherwise, &hi); i != nil {
		return nil, about(o.User, invalid("default", "%s is more of %s than max allows", i.text(i.n), i.what()))
	}
	nothing := lo.IsZero() && otherwise.IsZero() && hi.IsZero()
	switch {
	case b == nil && nothing:
		return nil, notFound(o.User, "its tasks are not bounded")
	case b == nil && len(c.taskBounds.list) >= maxQuotas:
		return nil, limit("", "the tasks of %d users are bounded", maxQuotas)
	}
	return func(*borgpb.Result) {
		if b == nil {
			b = &TaskBounds{user: o.User}
			c.taskBounds.add(b)
		}
		b.min, b.otherwise, b.max = lo, otherwise, hi
		text := "no bounds"
		if nothing {
			c.taskBounds.remove(b)
		} else {
			text = boundsWords(&lo, &otherwise, &hi)
		}
		c.dirty(b)
		c.emit(userEvent(borgpb.EventKind_EVENT_KIND_TASK_LIMITS, o.User, text, c.now.reason))
	}, nil
}

// boundsWords says what bounds there are: none is not one of nothing.
func boundsWords(lo, otherwise, hi *Resources) string {
	var all []string
	for _, q := range []struct {
		how string
		r   *Resources
	}{{"at least", lo}, {"by default", otherwise}, {"at most", hi}} {
		if !q.r.IsZero() {
			all = append(all, q.how+" "+chargeOf(0, q.r, 1).words())
		}
	}
	return strings.Join(all, ", ")
}

// below is the first amount that lo has and of which r has less; with said, r has to
// have some of it.
func below(r, lo *Resources, said bool) *item {
	has := chargeOf(0, r, 1)
	for _, i := range chargeOf(0, lo, 1) {
		if n := has.of(&i); n.compare(i.n) < 0 && !(said && n.isZero()) {
			return &i
		}
	}
	return nil
}

// above is the first amount of r that is more than hi has, which has some of it.
func above(r, hi *Resources) *item {
	most := chargeOf(0, hi, 1)
	for _, i := range chargeOf(0, r, 1) {
		if n := most.of(&i); !n.isZero() && i.n.compare(n) > 0 {
			return &i
		}
	}
	return nil
}

// checkBounds refuses what a task or alloc of a user may not ask for.
func (c *Cell) checkBounds(user, field string, r *Resources) *borgpb.Refusal {
	b := c.taskBounds.byUser[user]
	if b == nil {
		return nil
	}
	if i := below(r, &b.min, false); i != nil {
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_LIMIT, "", field,
			"a task asks for %s of %s; one of user %s asks for at least %s. See borgcfg quota show %s",
			i.text(chargeOf(0, r, 1).of(i)), i.what(), user, i.text(i.n), user)
	}
	if i := above(r, &b.max); i != nil {
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_LIMIT, "", field,
			"a task asks for %s of %s; one of user %s may ask for at most %s. See borgcfg quota show %s",
			i.text(i.n), i.what(), user, i.text(chargeOf(0, &b.max, 1).of(i)), user)
	}
	return nil
}

// checkSpecBounds does so for all tasks of a job.
func (c *Cell) checkSpecBounds(user string, s *Spec) *borgpb.Refusal {
	if c.taskBounds.byUser[user] == nil {
		return nil
	}
	for _, n := range s.needs {
		if n.First >= s.Proto.Tasks {
			break
		}
		asks := withVolumes(n.Resources, n.Task.GetVolumes())
		if r := c.checkBounds(user, "spec.task.resources", &asks); r != nil {
			return r
		}
	}
	return nil
}

func (s *taskBounds) add(b *TaskBounds) {
	s.byUser[b.user] = b
	at, _ := slices.BinarySearchFunc(s.list, b.user, compareBounds)
	s.list = slices.Insert(s.list, at, b)
}

func (s *taskBounds) remove(b *TaskBounds) {
	delete(s.byUser, b.user)
	at, _ := slices.BinarySearchFunc(s.list, b.user, compareBounds)
	s.list = slices.Delete(s.list, at, at+1)
	b.gone = true
}

func compareBounds(b *TaskBounds, user string) int { return strings.Compare(b.user, user) }

func (s *taskBounds) check() error {
	for i, b := range s.list {
		if b.gone || s.byUser[b.user] != b || i > 0 && s.list[i-1].user >= b.user {
			return fmt.Errorf("the bounds of %s are out of order", b.user)
		}
	}
	if len(s.byUser) != len(s.list) || len(s.list) > maxQuotas {
		return fmt.Errorf("the tasks of %d users are bounded, of which %d are known", len(s.list), len(s.byUser))
	}
	return nil
}

func (b *TaskBounds) appendKey(to []byte) []byte {
	return append(append(to, kindTaskBounds), b.user...)
}
func (b *TaskBounds) exists() bool { return !b.gone }

func (b *TaskBounds) appendValue(to []byte) []byte {
	e := encoder{append(to, recordLayout)}
	e.resources(&b.min)
	e.resources(&b.otherwise)
	e.resources(&b.max)
	return e.b
}

func (l *loader) taskBounds(user string, d *decoder) error {
	b := &TaskBounds{user: user, min: d.resources(), otherwise: d.resources(), max: d.resources()}
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatQuotas || !validName(user) || b.min.IsZero() && b.otherwise.IsZero() && b.max.IsZero() {
		return errOdd
	}
	l.c.taskBounds.add(b)
	return nil
}
