package borgmaster

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/sight"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// What callers may read of each other's work: the cell keeps the policy, package sight says
// what follows from it, and here is who the caller is. Each answer to a user or a task goes
// through answer on its way out, see Door.

// Sight is what a caller may read of the cell. Programs of the cell read everything. So do
// admins; their tasks do not.
func (g *Gate) Sight(c *cell.Cell, caller identity.Name) cell.Sight {
	if g.Open {
		return cell.SightOfAll()
	}
	switch caller.Role {
	case identity.User:
		return c.SightOf(caller.ID, c.Has(caller.ID, cell.Admin))
	case identity.Task:
		return c.SightOf(caller.User(), false)
	case identity.Master, identity.Scheduler, identity.Borglet:
		return cell.SightOfAll()
	}
	// Nobody knows who it is.
	return c.SightOf("", false)
}

// Lens is Sight with the cell; nil: everything.
func (g *Gate) Lens(c *cell.Cell, caller identity.Name) *sight.Lens {
	if !c.Private() {
		return nil
	}
	return sight.Of(c, caller.User(), g.Sight(c, caller))
}

func (m *Master) lens(ctx context.Context, c *cell.Cell) *sight.Lens {
	return m.gate.Lens(c, door.Caller(ctx))
}

// seesAll reports whether a caller reads everything.
func (m *Master) seesAll(caller identity.Name) (all bool) {
	if !m.private.Load() {
		return true
	}
	m.cfg.Log.View(func(c *cell.Cell) { all = m.gate.Lens(c, caller) == nil })
	return all
}

// notePolicy keeps whether the policy is private, so that nothing is asked while it is not.
func (m *Master) notePolicy(c *cell.Cell) { m.private.Store(c.Private()) }

// visibilityWords says what users read of each other's work.
func (m *Master) visibilityWords() string {
	if m.private.Load() {
		return "their own work, and what is shared with them"
	}
	return "everything of each other"
}

// answer makes of a message what its caller may be shown.
func (m *Master) answer(ctx context.Context, answer any) (any, error) {
	if !m.private.Load() {
		return answer, nil
	}
	caller := door.Caller(ctx)
	message, ok := answer.(proto.Message)
	if !ok || caller.Role != identity.User && caller.Role != identity.Task {
		return answer, nil
	}
	var err error
	m.cfg.Log.View(func(c *cell.Cell) { message, err = m.gate.Lens(c, caller).Clean(message) })
	if err != nil {
		return nil, status.Error(codes.Aborted, err.Error())
	}
	return message, nil
}

// job returns a job that the caller may see.
func (m *Master) job(ctx context.Context, c *cell.Cell, key cell.JobKey) *cell.Job {
	if j := c.Job(key); j != nil && m.lens(ctx, c).Job(j) {
		return j
	}
	return nil
}

// allocSet returns an alloc set that the caller may see.
func (m *Master) allocSet(ctx context.Context, c *cell.Cell, key cell.JobKey) *cell.AllocSet {
	if s := c.AllocSet(key); s != nil && m.lens(ctx, c).AllocSet(s) {
		return s
	}
	return nil
}

// stillSees is an error once the caller of a stream may not see a job any more.
func (m *Master) stillSees(ctx context.Context, key cell.JobKey) error {
	if !m.private.Load() {
		return nil
	}
	seen := false
	m.cfg.Log.View(func(c *cell.Cell) { seen = m.lens(ctx, c).Key(key) })
	if !seen {
		return noJob(key)
	}
	return nil
}

// view names what the reader of a page may see of it.
func (m *Master) view(ctx context.Context) string {
	if !m.private.Load() {
		return ""
	}
	return "as " + door.Caller(ctx).String()
}

// hidden are those of some jobs that the reader of a page may not see.
func (m *Master) hidden(ctx context.Context, jobs []waitingJob) map[cell.JobKey]bool {
	if !m.private.Load() {
		return nil
	}
	hidden := make(map[cell.JobKey]bool)
	m.cfg.Log.View(func(c *cell.Cell) {
		lens := m.lens(ctx, c)
		for i := range jobs {
			if !lens.Key(jobs[i].key) {
				hidden[jobs[i].key] = true
			}
		}
	})
	return hidden
}

// leaveOut leaves jobs out of those that a page names as waiting. Its figures are of the
// whole cell.
func (l *look) leaveOut(hidden map[cell.JobKey]bool) {
	if len(hidden) == 0 {
		return
	}
	// The list is shared by all pages of the moment.
	l.tally.waiting = slices.DeleteFunc(slices.Clone(l.tally.waiting), func(w waitingJob) bool { return hidden[w.key] })
	l.tally.waitingMore += len(hidden)
}

// seenEvents are those of some events that the caller may see.
func (m *Master) seenEvents(ctx context.Context, events []*borgpb.Event) []*borgpb.Event {
	if !m.private.Load() || len(events) == 0 {
		return events
	}
	m.cfg.Log.View(func(c *cell.Cell) {
		if lens := m.lens(ctx, c); lens != nil {
			events = slices.DeleteFunc(events, func(e *borgpb.Event) bool { return !lens.Event(e) })
		}
	})
	return events
}

// seenHistory leaves in a part of a history what the caller may see.
func (m *Master) seenHistory(ctx context.Context, part *borgrpc.HistoryResponse) {
	if !m.private.Load() {
		return
	}
	m.cfg.Log.View(func(c *cell.Cell) {
		lens := m.lens(ctx, c)
		if lens == nil {
			return
		}
		facts := func(f *borgpb.ObjectFacts) bool { return !lens.Facts(f) }
		part.Entries = slices.DeleteFunc(slices.Clone(part.Entries), func(e *borgpb.JournalEntry) bool {
			e.Events = slices.DeleteFunc(slices.Clone(e.Events), func(ev *borgpb.Event) bool { return !lens.Event(ev) })
			e.Facts = slices.DeleteFunc(slices.Clone(e.Facts), facts)
			return len(e.Events)+len(e.Facts)+len(e.Asked) == 0
		})
		part.Picture = slices.DeleteFunc(slices.Clone(part.Picture), facts)
		part.Usage = slices.DeleteFunc(slices.Clone(part.Usage), func(u *borgpb.UsageRow) bool { return !lens.Usage(u) })
	})
}

// seenUnknown are those of some unknown copies that the caller may see: such as say that they
// are of his jobs.
func (m *Master) seenUnknown(ctx context.Context, unknown []*borgrpc.Unknown) []*borgrpc.Unknown {
	m.cfg.Log.View(func(c *cell.Cell) {
		if lens := m.lens(ctx, c); lens != nil {
			unknown = slices.DeleteFunc(unknown, func(u *borgrpc.Unknown) bool { return u.Runs == nil || !lens.User(u.Runs.User) })
		}
	})
	return unknown
}

// GetVisibility tells what users may read of each other's work.
func (a *masterAPI) GetVisibility(ctx context.Context, _ *borgrpc.GetVisibilityRequest) (*borgrpc.GetVisibilityResponse, error) {
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &borgrpc.GetVisibilityResponse{}
	a.m.cfg.Log.View(func(c *cell.Cell) {
		resp.Index = c.Index()
		resp.Policy, resp.Version = c.Visibility()
		if a.m.lens(ctx, c) == nil {
			return
		}
		own := &borgpb.Visibility{Private: resp.Policy.Private}
		for _, g := range resp.Policy.Groups {
			if slices.Contains(g.Users, door.Caller(ctx).User()) {
				own.Groups = append(own.Groups, g)
			}
		}
		resp.Policy = own
	})
	return resp, nil
}

// countOwn counts a user's own jobs and their tasks.
func countOwn(resp *borgrpc.GetCellResponse, c *cell.Cell, user string) {
	n := c.CountsOf(user)
	resp.Jobs = uint32(n.Jobs)
	resp.TasksPending, resp.TasksRunning, resp.TasksDead = uint32(n.TasksPending), uint32(n.TasksRunning), uint32(n.TasksDead)
}

// countOthers counts the tasks on the machine that is asked for that the caller may not read.
func (q *taskQuery) countOthers(c *cell.Cell) {
	m := c.Machine(q.req.GetMachine())
	if m == nil || q.lens == nil {
		return
	}
	q.resp.Others = 0
	for p := range m.Copies() {
		if p.Current() && !q.lens.Key(p.Key()) {
			q.resp.Others++
		}
	}
}
