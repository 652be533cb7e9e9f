package borgmaster

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// historyFilter picks what somebody asked for and may see.
type historyFilter struct {
	*borgrpc.HistoryRequest
	caller string
	// The caller may see how others asked for something.
	all bool
}

func (f historyFilter) inTime(wallNs int64) bool {
	return (f.GetSinceWallNs() == 0 || wallNs >= f.GetSinceWallNs()) && (f.GetUntilWallNs() == 0 || wallNs < f.GetUntilWallNs())
}

func (f historyFilter) inParts(index uint64) bool {
	return !f.GetLocal() || slices.ContainsFunc(f.GetParts(), func(p *borgpb.AuditHole) bool { return p.From <= index && index <= p.To })
}

// text is in every entry and row that the filter picks; empty: nothing is in all of them. Objects and
// records of a job begin with its name, and a record may name the job of a task.
func (f historyFilter) text() string {
	if f.GetFacts() {
		return ""
	}
	for _, object := range []string{f.GetTask(), f.GetJob()} {
		if parts := strings.SplitN(object, "/", 3); len(parts) > 1 {
			return parts[0] + "/" + parts[1]
		}
	}
	return cmp.Or(f.GetUser(), f.GetMachine())
}

// entry is what of an entry is to be told; nil: nothing.
func (f historyFilter) entry(e *borgpb.JournalEntry) *borgpb.JournalEntry {
	// With facts, what was before is told too.
	early := f.GetFacts() && (f.GetUntilWallNs() == 0 || e.WallNs < f.GetUntilWallNs())
	if f.GetUsageOnly() || !f.inTime(e.WallNs) && !early || !f.inParts(e.Index) {
		return nil
	}
	out := &borgpb.JournalEntry{Index: e.Index, WallNs: e.WallNs}
	for _, ev := range e.Events {
		if f.event(ev, e.Asked) {
			out.Events = append(out.Events, ev)
		}
	}
	for _, r := range e.Asked {
		if (f.all || concerns(r, f.caller)) && f.asked(r, len(out.Events) > 0) {
			out.Asked = append(out.Asked, r)
		}
	}
	if f.GetFacts() {
		out.Facts = e.Facts
	}
	if len(out.Events)+len(out.Asked)+len(out.Facts) == 0 {
		return nil
	}
	return out
}

func (f historyFilter) event(ev *borgpb.Event, asked []*borgpb.AuditRecord) bool {
	if len(f.GetKinds()) > 0 && !slices.Contains(f.GetKinds(), ev.Kind) || f.GetMachine() != "" && ev.Machine != f.GetMachine() {
		return false
	}
	if f.GetTask() != "" && (ev.Object != f.GetTask() || ev.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_FILE) {
		return false
	}
	if f.GetJob() != "" && (!under(ev.Object, f.GetJob()) || ev.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_FILE) {
		return false
	}
	user := f.GetUser()
	return user == "" || ev.User == user || strings.HasPrefix(ev.Object, user+"/") ||
		slices.ContainsFunc(asked, func(r *borgpb.AuditRecord) bool { return didBy(r, user) && under(ev.Object, r.Object) })
}

// asked says whether a record is told: with events of it, and alone where no kind of
// event was asked for.
func (f historyFilter) asked(r *borgpb.AuditRecord, withEvents bool) bool {
	switch {
	case f.GetJob() != "" && (!ofWork(r) || !under(r.Object, f.GetJob()) && !under(f.GetJob(), r.Object)):
		return false
	case f.GetTask() != "" && (!ofWork(r) || !under(f.GetTask(), r.Object)):
		return false
	case f.GetUser() != "" && !didBy(r, f.GetUser()) && !under(r.Object, f.GetUser()):
		return false
	}
	return withEvents || len(f.GetKinds()) == 0 && (f.GetMachine() == "" || r.Object == f.GetMachine())
}

// ofWork reports whether a record is about a job, an alloc set or what is in one: a user's
// name begins the name of a job, and a secret or file may be named as one.
func ofWork(r *borgpb.AuditRecord) bool {
	return strings.Contains(r.Object, "/") && !strings.HasSuffix(r.Verb, "-secret") && !strings.HasSuffix(r.Verb, "-file")
}

// dropped picks what was dropped of whom was asked for, if the caller may see it.
func (f historyFilter) dropped(all []*borgpb.AuditRecord) []*borgpb.AuditRecord {
	return slices.DeleteFunc(all, func(d *borgpb.AuditRecord) bool {
		return f.GetUser() != "" && d.Who != f.GetUser() || !f.all && d.Who != f.caller ||
			f.GetSinceWallNs() != 0 && d.LastWallNs < f.GetSinceWallNs() || f.GetUntilWallNs() != 0 && d.WallNs >= f.GetUntilWallNs()
	})
}

// under says whether an object is another one or of it: "alice/web/3" of "alice/web".
func under(object, of string) bool {
	rest, ok := strings.CutPrefix(object, of)
	return of != "" && ok && (rest == "" || rest[0] == '/')
}

func (f historyFilter) row(u *borgpb.UsageRow) bool {
	switch {
	case !f.GetUsage() && !f.GetUsageOnly(), !f.inTime(u.FromNs):
		return false
	case f.GetMachine() != "" && u.Machine != f.GetMachine():
		return false
	case f.GetJob() != "" && u.Job != f.GetJob():
		return false
	case f.GetUser() != "" && !strings.HasPrefix(u.Job, f.GetUser()+"/"):
		return false
	case f.GetTask() != "":
		return taskName(u) == f.GetTask()
	}
	return true
}

// holes are parts of the log, by index; those that meet are one.
type holes []*borgpb.AuditHole

func (h holes) sorted() holes {
	h = slices.Clone(h)
	slices.SortFunc(h, func(a, b *borgpb.AuditHole) int { return int(int64(a.From) - int64(b.From)) })
	var out holes
	for _, g := range h {
		if n := len(out); n > 0 && g.From <= out[n-1].To+1 {
			out[n-1].To = max(out[n-1].To, g.To)
			continue
		}
		out = append(out, proto.CloneOf(g))
	}
	return out
}

// and is what is in both.
func (h holes) and(other holes) (out holes) {
	for _, a := range h {
		for _, b := range other {
			if from, to := max(a.From, b.From), min(a.To, b.To); from <= to {
				out = append(out, &borgpb.AuditHole{From: from, To: to, Why: a.Why})
			}
		}
	}
	return out.sorted()
}
