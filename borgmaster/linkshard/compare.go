package linkshard

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// A difference that was reported is not reported again for so long, doubled
	// each time: it is on its way through the log, or the cell refuses it.
	tellAgainNs    int64 = 1e9
	tellAgainMaxNs int64 = 32e9
)

// Comparison is what a poll's answer means.
type Comparison struct {
	// What the cell does not know yet, for the log.
	Reports []*borgpb.TaskReport
	// Copies that run there and that the cell does not have. The cell hears of those that it
	// has given up and stops them; an operator decides about the others.
	Unknown []*borgpb.TaskReport
	// What a restored cell should hear of the machine; nil: nothing.
	Heard *borgpb.HeardMachine
	// What the cell should hear of its volumes; nil: nothing.
	Volumes *borgpb.MachineReport
	// Something is starting or stopping.
	Busy bool
	// The cell has the machine as down.
	Down bool
	// What the cell should be told of the machine; nil: nothing.
	Set *borgpb.SetMachine
}

// Compare sets what the borglet said (taken into known) against the cell as it
// is now. sent is the poll it answered. The cell itself is the measure, again
// with every poll, so nothing is lost for good when a report is.
func Compare(now int64, c *cell.Cell, m *cell.Machine, sent *borgrpc.PollRequest, resp *borgrpc.PollResponse, known *Known) *Comparison {
	cmp := &Comparison{Down: !m.Up()}
	// The borglet may have obeyed a replica that is ahead between our order and
	// its answer; then what we do not know is merely new.
	ahead := later(resp.GetHighest(), FenceOf(c))
	told := known.told
	known.told = make(map[cell.CopyID]telling, len(told))
	seen := make(map[cell.CopyID]bool, len(known.Tasks))
	known.withoutNews(c.Format())
	for _, t := range known.Tasks {
		id, ok := idOf(t)
		if !ok {
			cmp.unknown(t)
			continue
		}
		seen[id] = true
		p := m.Copy(id)
		switch {
		case p == nil && !ahead && (!terminal(t.State) || !remembers(c, id, t)):
			cmp.unknown(t)
		case p != nil && c.Attests(p, t, known.sentNs):
			t = proto.CloneOf(t)
			t.AsOfNs = known.sentNs
			cmp.tell(now, id, t, told, known.told)
		case p != nil && (differs(p, t) || readdressed(c, p, t)):
			cmp.tell(now, id, t, told, known.told)
		}
		if p != nil {
			cmp.Busy = cmp.Busy || underWay(p, t)
		}
	}
	if !ahead {
		cmp.gone(now, m, sent, seen, told, known.told)
	}
	for p := range m.Copies() {
		if !seen[p.ID()] && p.State() != borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE {
			cmp.Busy = true
		}
	}
	if !ahead {
		cmp.hear(now, c, m, known, seen)
		cmp.volumes(now, c, m, resp, known)
	}
	cmp.Busy = cmp.Busy && !cmp.Down
	cmp.Set = Change(c.Format(), m.Name(), specOf(m), known.Followed, known.Word)
	if cmp.Set == nil {
		known.Followed = known.Word
	}
	return cmp
}

// maxUnknown bounds the unknown copies that are listed of one machine.
const maxUnknown = 64

func (cmp *Comparison) unknown(t *borgpb.TaskReport) {
	if len(cmp.Unknown) < maxUnknown {
		cmp.Unknown = append(cmp.Unknown, clipped(t))
	}
}

// tell reports a difference unless the same was reported a moment ago.
func (cmp *Comparison) tell(now int64, id cell.CopyID, t *borgpb.TaskReport, before, after map[cell.CopyID]telling) {
	say := telling{state: t.State, restarts: t.Restarts, pid: t.Pid, addr: t.Addr, attests: t.AsOfNs != 0}
	if old, ok := before[id]; ok && old.state == say.state && old.restarts == say.restarts && old.pid == say.pid && old.addr == say.addr && old.attests == say.attests {
		say.untilNs, say.times = old.untilNs, old.times
	}
	if now >= say.untilNs && !mutant.Planted(mutant.ReportedOnce) || say.times == 0 {
		cmp.Reports = append(cmp.Reports, clipped(t))
		say.untilNs = now + min(tellAgainNs<<min(say.times, 10), tellAgainMaxNs)
		say.times++
	}
	after[id] = say
}

// maxTextBytes bounds the words that a borglet has on a copy.
const maxTextBytes = 1024

// clipped is a report whose words are not too many for the log.
func clipped(t *borgpb.TaskReport) *borgpb.TaskReport {
	if max(len(t.Text), len(t.GetExit().GetError()), len(t.GetExit().GetReason())) <= maxTextBytes {
		return t
	}
	t = proto.CloneOf(t)
	cut := func(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxTextBytes)], "") }
	t.Text = cut(t.Text)
	if t.Exit != nil {
		t.Exit.Error, t.Exit.Reason = cut(t.Exit.Error), cut(t.Exit.Reason)
	}
	return t
}

// gone reports copies that were ordered to stop, or that are in quarantine, and that
// the borglet does not have: the order came before the start, or the machine lost them.
func (cmp *Comparison) gone(now int64, m *cell.Machine, sent *borgrpc.PollRequest, seen map[cell.CopyID]bool, before, after map[cell.CopyID]telling) {
	for _, stop := range sent.GetStops() {
		uid, err := cell.ParseUID(stop.GetCopy().GetJobUid())
		id := cell.CopyID{Job: uid, Index: stop.GetCopy().GetIndex(), Attempt: stop.GetCopy().GetAttempt()}
		p := m.Copy(id)
		if err != nil || seen[id] || p == nil || p.State() != borgpb.AttemptState_ATTEMPT_STATE_STOPPING {
			continue
		}
		t := &borgpb.TaskReport{
			JobUid: uid.String(), Index: id.Index, Attempt: id.Attempt, Restarts: p.Restarts(),
			State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED), Text: "was stopped before it started",
		}
		if p.PID() != 0 {
			t.State, t.Text = int32(borgpb.AttemptState_ATTEMPT_STATE_LOST), "its machine no longer knows it"
			t.Exit = &borgpb.Exit{Unknown: true}
		}
		cmp.tell(now, id, t, before, after)
	}
	for p := range m.Copies() {
		if p.Quarantined() && !seen[p.ID()] && asked(sent, p.ID()) {
			id := p.ID()
			cmp.tell(now, id, &borgpb.TaskReport{
				JobUid: id.Job.String(), Index: id.Index, Attempt: id.Attempt, Restarts: p.Restarts(),
				State: int32(borgpb.AttemptState_ATTEMPT_STATE_LOST), Text: "its machine no longer knows it", Exit: &borgpb.Exit{Unknown: true},
			}, before, after)
		}
	}
}

// asked tells whether a poll named a copy as one in quarantine.
func asked(sent *borgrpc.PollRequest, id cell.CopyID) bool {
	return slices.ContainsFunc(sent.GetDesired(), func(d *borgrpc.Desired) bool {
		c := d.GetCopy()
		return d.GetQuarantined() && c.GetJobUid() == id.Job.String() && c.GetIndex() == id.Index && c.GetAttempt() == id.Attempt
	})
}

// differs tells whether the log should hear of a report. Of a copy that is
// stopping, in quarantine or on a machine that is down only the end counts.
func differs(p *cell.Copy, t *borgpb.TaskReport) bool {
	switch p.State() {
	case borgpb.AttemptState_ATTEMPT_STATE_STOPPING, borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE,
		borgpb.AttemptState_ATTEMPT_STATE_QUARANTINED:
		return terminal(t.State)
	}
	return int32(p.State()) != t.State || p.Restarts() != t.Restarts || p.PID() != t.Pid || healthDiffers(p, t) || killsDiffer(p, t)
}

// killsDiffer reports whether the borglet tells of processes of a copy that the kernel
// killed, in other words than the cell knows: their number is told at powers of two.
func killsDiffer(p *cell.Copy, t *borgpb.TaskReport) bool {
	return t.OomKills != 0 && t.Pid != 0 && len(t.Text) <= maxTextBytes && t.Text != p.Reason()
}

// healthDiffers tells whether a borglet says something else of the health of a copy
// than the cell knows. Other words alone are not worth an entry of the log; these come
// when the health changes, and not with each check.
func healthDiffers(p *cell.Copy, t *borgpb.TaskReport) bool {
	return t.Pid != 0 && len(t.Text) <= maxTextBytes && t.Text != p.Reason() && (p.TaskSpec().GetHealth() != nil || p.TaskSpec().GetReady() != nil)
}

// underWay tells whether the next word on a copy is awaited soon.
func underWay(p *cell.Copy, t *borgpb.TaskReport) bool {
	if p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING {
		return true
	}
	return borgpb.AttemptState(t.State) == borgpb.AttemptState_ATTEMPT_STATE_STARTING
}

// later tells whether a comes after b in the same cell.
func later(a, b *borgrpc.Fence) bool {
	if a == nil || a.CellId != b.CellId {
		return false
	}
	if a.Epoch != b.Epoch {
		return a.Epoch > b.Epoch
	}
	if a.Term != b.Term {
		return a.Term > b.Term
	}
	return a.Index > b.Index
}

// specOf is what the cell has of a machine, in the shape in which a borglet
// says it.
func specOf(m *cell.Machine) *borgpb.MachineSpec {
	first, last := m.PortRange()
	capacity := m.Capacity()
	return &borgpb.MachineSpec{
		Addr: m.Addr(), Capacity: capacity.Proto(), Attributes: m.Attributes(),
		PortFirst: uint32(first), PortLast: uint32(last), Packages: m.PackagesProto(),
	}
}
