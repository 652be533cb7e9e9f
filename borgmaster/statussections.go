package borgmaster

import (
	"fmt"
	"time"

	"borg/pages"
)

// The sections of a replica's status page.

func (l *look) replica() pages.Section {
	m, t := l.m, &l.tally
	role := "follower"
	if l.elected() {
		role = "elected"
	}
	elected := pages.Value{Text: "nobody", Raw: 0, Mood: pages.Bad}
	if l.state.Elected != 0 {
		elected = pages.Number(l.state.Elected)
	}
	return pages.Section{Title: "This replica", Facts: []pages.Fact{
		{Name: "role", Value: pages.Text(role)},
		{Name: "elected replica", Value: elected},
		{Name: "elected since", Value: pages.At(m.electedSince())},
		{Name: "term", Value: pages.Number(l.state.Term)},
		{Name: "takes changes", Value: l.takesChanges()},
		{Name: "address", Value: pages.Text(l.member().GetAddr())},
		{Name: "build", Value: pages.Text(m.cfg.Build)},
		{Name: "cell id", Value: pages.Text(m.cellID)},
		{Name: "epoch", Value: pages.Number(t.epoch)},
		{Name: "format", Value: pages.Number(t.format)},
		{Name: "wall clock followed", Value: pages.Yes(!t.wallSuspect).If(t.wallSuspect, pages.Warn)},
		{Name: "scheduler follows", Value: pages.Yes(m.schedulerConnected())},
		{Name: "admins granted", Value: pages.Number(t.admins)},
		{Name: "users read", Value: pages.Text(l.m.visibilityWords())},
	}}
}

// takesChanges reports whether changes are decided here. Those that reach a
// follower are passed to the elected replica, which is no fault of the follower.
func (l *look) takesChanges() pages.Value {
	v := pages.Yes(l.state.Ready)
	switch {
	case l.elected() && !l.state.Ready:
		v.Text = "not yet: it has just been elected"
	case !l.elected() && l.state.Elected != 0:
		v.Text = fmt.Sprintf("passes them to replica %d", l.state.Elected)
	}
	return v
}

// certificates are this replica's own, and the keys by which the cell believes others.
func (l *look) certificates() pages.Section {
	s := pages.Section{Title: "Certificates", Facts: []pages.Fact{{Name: "own certificate expires", Value: pages.At(l.expires)}}}
	if l.m.cfg.Authority == nil {
		return s
	}
	s.Facts = append(s.Facts, pages.Fact{Name: "generation of the authority", Value: pages.Number(l.m.cfg.Authority.Version().Generation)})
	for _, key := range l.m.cfg.Authority.Signers(time.Now()) {
		does := "is believed"
		if key.Issues {
			does = "issues"
		}
		until := pages.At(key.Until)
		s.Facts = append(s.Facts, pages.Fact{Name: fmt.Sprintf("key %x %s, until", key.Fingerprint[:min(len(key.Fingerprint), 4)], does), Value: until})
	}
	return s
}

func (l *look) machines() pages.Section {
	t := &l.tally
	used := func(held, limits, capacity int64, of func(int64) pages.Value) pages.Value {
		v := of(held)
		v.Text = fmt.Sprintf("%s reserved (limits %s) of %s", of(held).Text, of(limits).Text, of(capacity).Text)
		v.Bar = []pages.Part{{Class: "used", N: held}, {Class: "free", N: max(capacity-held, 0)}}
		return v
	}
	cores := func(milli int64) pages.Value {
		return pages.Value{Text: fmt.Sprintf("%.1f cores", float64(milli)/1000), Raw: milli, Unit: "milli"}
	}
	count := func(n int64) pages.Value { return pages.Number(n) }
	machines := pages.Number(t.up)
	machines.Bar = []pages.Part{{Class: "run", N: int64(t.up)}, {Class: "down", N: int64(t.down)}}
	return pages.Section{Title: "Machines", Facts: []pages.Fact{
		{Name: "up", Value: machines},
		{Name: "down", Value: pages.Number(t.down).If(t.down > 0, pages.Bad)},
		{Name: "draining", Value: pages.Number(t.draining)},
		{Name: "processor", Value: used(t.held.CPUMilli, t.limits.CPUMilli, t.capacity.CPUMilli, cores)},
		{Name: "memory", Value: used(t.held.MemBytes, t.limits.MemBytes, t.capacity.MemBytes, pages.Bytes[int64])},
		{Name: "disk", Value: used(t.held.DiskBytes, t.limits.DiskBytes, t.capacity.DiskBytes, pages.Bytes[int64])},
		{Name: "ports", Value: used(t.held.Ports, t.limits.Ports, t.capacity.Ports, count)},
	}}
}

func (l *look) shardSection() pages.Section {
	s := &l.shard
	poll, interval := l.m.shard.Times()
	return pages.Section{Title: "Link shard", Words: "The machines that this replica polls, and how that goes.", Facts: []pages.Fact{
		{Name: "share", Value: pages.Value{Text: fmt.Sprintf("%d of %d machines", s.Share, l.tally.up+l.tally.down), Raw: s.Share, Unit: "machines"}},
		{Name: "replicas that share", Value: pages.Value{Text: numbersText(l.liveReplicas()), Raw: l.liveReplicas()}},
		{Name: "time between polls", Value: pages.Distribution(interval)},
		{Name: "time of a poll", Value: pages.Distribution(poll)},
		{Name: "polls begin late by", Value: pages.Span(s.Lag)},
		{Name: "interval between polls now", Value: pages.Span(s.Interval).If(s.Interval > s.RestInterval*lateIntervalPercent/100, pages.Warn)},
		{Name: "timers fire late by", Value: pages.Span(s.Late)},
		{Name: "machines not reached", Value: pages.Number(s.Missed).If(s.Missed > 0, pages.Warn)},
	}}
}

func (l *look) log() pages.Section {
	s := pages.Section{Title: "Log", Facts: []pages.Fact{
		{Name: "committed up to", Value: pages.Number(l.state.Commit)},
		{Name: "applied up to", Value: pages.Number(l.state.Applied)},
	}}
	v := l.vitals
	if v == nil {
		s.Words = "In memory: nothing is written."
		return s
	}
	s.Facts = append(s.Facts,
		pages.Fact{Name: "records written up to", Value: pages.Number(v.Flushed)},
		pages.Fact{Name: "entries on disk", Value: pages.Number(v.LogEntries)},
		pages.Fact{Name: "size", Value: pages.Bytes(v.LogBytes)},
		pages.Fact{Name: "from proposal to result", Value: pages.Distribution(v.Commit)},
		pages.Fact{Name: "write and sync", Value: pages.Distribution(v.Append)},
		pages.Fact{Name: "apply", Value: pages.Distribution(v.Apply)},
	)
	return s
}

func (l *look) disk() pages.Section {
	v := l.vitals
	free := pages.Bytes(v.DiskFreeBytes)
	free.Text = fmt.Sprintf("%s free of %s", free.Text, pages.Bytes(v.DiskSizeBytes).Text)
	free.Bar = []pages.Part{{Class: "used", N: int64(v.DiskSizeBytes - min(v.DiskFreeBytes, v.DiskSizeBytes))}, {Class: "free", N: int64(v.DiskFreeBytes)}}
	s := pages.Section{Title: "Disk and past", Facts: []pages.Fact{
		{Name: "directory", Value: pages.Text(v.Dir)},
		{Name: "disk free", Value: free},
	}}
	a := v.Archive
	switch {
	case a.Off:
		s.Facts = append(s.Facts, pages.Fact{Name: "archive", Value: pages.Text("off")})
		return s
	case a.Failing != "":
		s.Facts = append(s.Facts, pages.Fact{Name: "archive", Value: pages.Text(a.Failing).In(pages.Bad)})
	default:
		s.Facts = append(s.Facts, pages.Fact{Name: "archive", Value: pages.Text("is kept")})
	}
	size := pages.Bytes(a.CheckpointBytes)
	if a.CheckpointAt.IsZero() {
		size = pages.Value{Text: "none yet"}
	}
	s.Facts = append(s.Facts,
		pages.Fact{Name: "change log up to", Value: pages.Number(a.Last)},
		pages.Fact{Name: "last checkpoint", Value: pages.At(a.CheckpointAt)},
		pages.Fact{Name: "last checkpoint index", Value: pages.Number(a.CheckpointIndex)},
		pages.Fact{Name: "last checkpoint size", Value: size},
	)
	return s
}

func (l *look) bandSection() pages.Section {
	s := pages.Section{Title: "Tasks by band", Head: []string{"band", "jobs", "running", "pending", "dead", "share"}}
	for i, b := range bands {
		c := l.tally.tasks[i]
		if c == (taskCounts{}) && l.tally.jobs[i] == 0 {
			continue
		}
		all := c.running + c.pending
		percent := "–"
		if all > 0 {
			percent = fmt.Sprintf("%d %% run", c.running*100/all)
		}
		s.Rows = append(s.Rows, []pages.Value{
			pages.Text(b.name), pages.Number(l.tally.jobs[i]), pages.Number(c.running),
			pages.Number(c.pending).If(i < prodBands && c.pending > 0, pages.Warn), pages.Number(c.dead),
			{Text: percent, Raw: percent, Bar: []pages.Part{{Class: "run", N: c.running}, {Class: "wait", N: c.pending}}},
		})
	}
	if len(s.Rows) == 0 {
		s.Words = "The cell has no jobs."
	}
	return s
}

func (l *look) memberSection() pages.Section {
	s := pages.Section{Title: "Replicas", Head: []string{"replica", "address", "role", "shares machines", "heard", "has log up to", "behind"}}
	if !l.elected() {
		s.Words = "How far each is, the elected one knows."
	}
	live := l.liveReplicas()
	for _, member := range l.members.Members {
		id := member.Member.GetId()
		heard, match, behind := pages.Text("–"), pages.Value{Text: "–"}, pages.Value{Text: "–"}
		if id == l.m.cfg.Replica {
			heard, match, behind = pages.Text("this one"), pages.Number(l.state.Commit), pages.Number(0)
		} else if p := l.peer(id); p != nil {
			heard = pages.Span(p.Heard)
			if l.elected() || id == l.state.Elected {
				heard = heard.If(p.Heard > heardLate, pages.Bad)
			}
			heard.Text += " ago"
			if p.Heard == 0 {
				heard.Text = "now"
			}
			if p.Following {
				lag := int64(l.state.Commit) - int64(p.Match)
				match, behind = pages.Number(p.Match), pages.Number(max(lag, 0)).If(lag > behindLate, pages.Warn)
			}
		}
		shares := false
		for _, other := range live {
			shares = shares || other == id
		}
		s.Rows = append(s.Rows, []pages.Value{
			pages.Number(id), pages.Text(member.Member.GetAddr()), pages.Text(role(member)), pages.Yes(shares), heard, match, behind,
		})
	}
	return s
}

func (l *look) peer(id uint64) *Peer {
	if l.vitals == nil {
		return nil
	}
	for i := range l.vitals.Peers {
		if l.vitals.Peers[i].ID == id {
			return &l.vitals.Peers[i]
		}
	}
	return nil
}

func (l *look) waitingSection() pages.Section {
	s := pages.Section{
		Title: "What waits", Words: "Jobs with tasks that have no machine, the most important first.",
		Head: []string{"job", "band", "priority", "tasks pending", "of", "why"}, More: l.tally.waitingMore,
	}
	for _, w := range l.tally.waiting {
		band := bandOf(w.priority)
		why := pages.Text("borgcfg why " + w.key.String())
		if w.queued {
			why = pages.Text("held in the batch queue")
		}
		s.Rows = append(s.Rows, []pages.Value{
			pages.Text(w.key.String()), pages.Text(bands[band].name), pages.Number(int64(w.priority)),
			pages.Number(w.pending).If(band < prodBands, pages.Warn), pages.Number(w.tasks), why,
		})
	}
	return s
}

func (l *look) missedSection() pages.Section {
	s := pages.Section{Title: "Machines not reached", Words: "Of those that this replica polls, missed most often first.",
		Head: []string{"machine", "polls missed in a row", "why"}, More: l.shard.Missed - len(l.shard.MissedWorst)}
	for _, m := range l.shard.MissedWorst {
		s.Rows = append(s.Rows, []pages.Value{pages.Text(m.Machine), pages.Number(m.Times), pages.Text(m.Err)})
	}
	return s
}

// lane is something that may queue, with its bound.
type lane struct {
	name, label   string
	waiting, most int
}

// lanes are all queues of a replica.
func (l *look) lanes() []lane {
	m := l.m
	a, turns := m.admit.stats()
	audits, histories := m.admit.longReads(ofAudits), m.admit.longReads(ofHistories)
	lanes := []lane{
		{"polls of machines under way", "polls", l.shard.InFlight, l.shard.MaxInFlight},
		{"task reports for the elected master", "reports", l.shard.Waiting, l.shard.MaxWaiting},
		{"probes and proposals of the duties", "duties", len(m.duty.actions), cap(m.duty.actions)},
		{"connections being made", "dials", len(m.conns.dialing), cap(m.conns.dialing)},
		{"changes of users that wait for a place in the log", "admission", a.Waiting, a.MaxWaiting},
		{"reads that wait for their turn", "turns", turns.Waiting, turns.MaxWaiting},
		{"users remembered for admission", "admission_users", a.Users, a.MaxUsers},
		{"logs and events being followed", "streams", m.streams.size(), maxStreams},
		{"writes of files", "file_writes", m.fileWriters.size(), maxFileWrites},
		{"watches of files", "file_watches", m.fileWatchers.size(), maxFileWatches},
		{"watches of the cell", "watches", m.watchers.size(), maxWatches},
		{"audits being read", "audits", audits.Taken, audits.Places},
		{"histories being read", "histories", histories.Taken, histories.Places},
		{"checkpoints being sent", "checkpoints", len(m.saving), cap(m.saving)},
	}
	if v := l.vitals; v != nil {
		lanes = append([]lane{
			{"ops that wait for a log entry", "ops", v.OpsQueued, v.MaxOpsQueued},
			{"reads that wait for the log", "reads", v.Readers, v.MaxReaders},
		}, lanes...)
	}
	return lanes
}

// admissionSection says who was served and who was asked to come back.
func (l *look) admissionSection() pages.Section {
	a, turns := l.m.admit.stats()
	refused := a.WritesRefused + a.WritesExpired
	return pages.Section{Title: "Admission", Words: "Who is served when too many ask: reads at this replica, and changes if it is elected.", Facts: []pages.Fact{
		{Name: "changes that got a place in the log", Value: pages.Number(a.Writes)},
		{Name: "that waited for it", Value: pages.Number(a.WritesWaited)},
		{Name: "changes turned away", Value: pages.Number(refused)},
		{Name: "reads", Value: pages.Number(a.Reads)},
		{Name: "that waited for their turn", Value: pages.Number(turns.Waited)},
		{Name: "reads turned away", Value: pages.Number(a.ReadsRefused + turns.Refused)},
		{Name: "users who wait now", Value: pages.Number(a.Crowd).If(a.Crowd > 0, pages.Warn)},
		{Name: "places in the log", Value: pages.Number(a.Window)},
		{Name: "taken", Value: pages.Number(a.Used)},
		{Name: "who asks for little takes", Value: pages.Span(time.Duration(a.LightNs))},
		{Name: "in quiet", Value: pages.Span(time.Duration(a.BaseNs))},
		{Name: "reports of crashes left for later", Value: pages.Number(l.shard.CrashesHeld)},
	}}
}

func (l *look) laneSection() pages.Section {
	s := pages.Section{Title: "Queues", Words: "What waits or is under way in this process, and how much may.", Head: []string{"lane", "now", "at most", "full"}}
	for _, q := range l.lanes() {
		s.Rows = append(s.Rows, []pages.Value{
			pages.Text(q.name), pages.Number(q.waiting).If(q.waiting*10 >= q.most*9, pages.Warn), pages.Number(q.most),
			{Text: fmt.Sprintf("%d %%", q.waiting*100/max(q.most, 1)), Raw: q.waiting * 100 / max(q.most, 1), Unit: "percent",
				Bar: []pages.Part{{Class: "used", N: int64(q.waiting)}, {Class: "free", N: int64(max(q.most-q.waiting, 0))}}},
		})
	}
	return s
}

func (l *look) restore() pages.Section {
	r := &l.tally.restore
	return pages.Section{Title: "Restore", Words: "This cell goes on from a checkpoint: borgcfg restore status says more.", Facts: []pages.Fact{
		{Name: "placing is held", Value: pages.Yes(r.held).If(r.held, pages.Warn)},
		{Name: "held for at most", Value: pages.Span(r.heldLeft)},
		{Name: "machines not heard", Value: pages.Number(r.unheard)},
		{Name: "copies that the cell does not know", Value: pages.Number(r.unknown)},
	}}
}
