package sight

import (
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Another stands where a text would name the work of another user.
const Another = "another user's work"

// Lens is a reader and the cell that he looks at. It is good while the cell is looked at.
type Lens struct {
	c     *cell.Cell
	sight cell.Sight
	user  string
}

// Of returns the lens of a user; nil: he sees everything.
func Of(c *cell.Cell, user string, s cell.Sight) *Lens {
	if s.All() {
		return nil
	}
	return &Lens{c: c, sight: s, user: user}
}

// OfTask returns the lens of a user's tasks, which are never an admin's.
func OfTask(c *cell.Cell, user string) *Lens { return Of(c, user, c.SightOf(user, false)) }

// User reports whether all of a user's is seen.
func (l *Lens) User(user string) bool { return l == nil || l.sight.SeesUser(user) }

// Labelled reports whether a job or alloc set of a user with such labels is seen.
func (l *Lens) Labelled(user string, labels map[string]string) bool {
	return l == nil || l.sight.Sees(user, labels)
}

// Job reports whether a job is seen.
func (l *Lens) Job(j *cell.Job) bool { return l == nil || l.sight.SeesJob(j) }

// AllocSet reports whether an alloc set is seen.
func (l *Lens) AllocSet(s *cell.AllocSet) bool { return l == nil || l.sight.SeesAllocSet(s) }

// Key reports whether a job or alloc set of that name is seen.
func (l *Lens) Key(key cell.JobKey) bool { return l == nil || l.sight.SeesKey(l.c, key) }

// Name is Key for "user/name" and for what is of it, "user/name/3".
func (l *Lens) Name(name string) bool {
	if l == nil {
		return true
	}
	key, ok := keyIn(name)
	return ok && l.Key(key)
}

// keyIn reads the job or alloc set off a name that begins with it.
func keyIn(name string) (key cell.JobKey, ok bool) {
	parts := strings.SplitN(name, "/", 3)
	if len(parts) < 2 {
		return key, false
	}
	key, err := cell.ParseJobKey(parts[0] + "/" + parts[1])
	return key, err == nil
}

// since reports whether the job or alloc set of that name was there at a log index. What
// is shared is so by the object that bears the name now, not by one that bore it before.
func (l *Lens) since(key cell.JobKey, index uint64) bool {
	if j := l.c.Job(key); j != nil && l.sight.SeesJob(j) {
		return index >= j.UID().Index
	}
	if s := l.c.AllocSet(key); s != nil && l.sight.SeesAllocSet(s) {
		return index >= s.UID().Index
	}
	return false
}

// Event reports whether an event is seen. What is of no kind that is known here is not.
func (l *Lens) Event(e *borgpb.Event) bool {
	if l == nil {
		return true
	}
	owner, _, _ := strings.Cut(e.GetObject(), "/")
	switch e.GetObjectKind() {
	case borgpb.ObjectKind_OBJECT_KIND_MACHINE, borgpb.ObjectKind_OBJECT_KIND_CELL, borgpb.ObjectKind_OBJECT_KIND_PACKAGE:
		return true
	case borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET,
		borgpb.ObjectKind_OBJECT_KIND_ALLOC, borgpb.ObjectKind_OBJECT_KIND_UPDATE, borgpb.ObjectKind_OBJECT_KIND_VOLUME:
		if l.User(owner) {
			return true
		}
		key, ok := keyIn(e.Object)
		return ok && l.since(key, e.Index)
	case borgpb.ObjectKind_OBJECT_KIND_USER:
		return l.User(e.Object) || l.User(strings.TrimPrefix(e.Object, "user/"))
	case borgpb.ObjectKind_OBJECT_KIND_SECRET, borgpb.ObjectKind_OBJECT_KIND_FILE:
		return l.User(owner)
	case borgpb.ObjectKind_OBJECT_KIND_UNSPECIFIED:
		// Something was refused: to him, or of what is his.
		return l.User(e.User) || l.User(owner)
	}
	return false
}

// Facts reports whether what is known of an object is seen.
func (l *Lens) Facts(f *borgpb.ObjectFacts) bool {
	if l == nil || f.GetKind() == borgpb.ObjectKind_OBJECT_KIND_MACHINE {
		return true
	}
	key, ok := keyIn(f.GetName())
	return ok && (l.User(key.User) || l.since(key, f.Index))
}

// Usage reports whether what a copy or alloc used is seen.
func (l *Lens) Usage(u *borgpb.UsageRow) bool {
	if l == nil {
		return true
	}
	key, ok := keyIn(u.GetJob())
	switch {
	case !ok:
		return false
	case l.User(key.User):
		return true
	}
	uid, err := cell.ParseUID(u.JobUid)
	return err == nil && l.since(key, uid.Index)
}

// takers come before the name of a task or alloc that took the place of another.
var takers = []string{cell.RoomFor(""), cell.GaveWayTo}

// namesTaker reports whether a text may say who took a place.
func namesTaker(text string) bool {
	return slices.ContainsFunc(takers, func(phrase string) bool { return strings.Contains(text, phrase) })
}

// Text returns a text as it is shown: where it says who took a place, and the reader does
// not see that, it says no name, nor what the scheduler said of the choice.
func (l *Lens) Text(text string) string {
	if l == nil {
		return text
	}
	for _, phrase := range takers {
		before, taker, ok := strings.Cut(text, phrase)
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(taker, " (")
		if l.Name(name) {
			continue
		}
		text = before + phrase + Another
		if who, _, ok := strings.Cut(rest, ")"); ok {
			text += " (" + who + ")"
		}
	}
	return text
}
