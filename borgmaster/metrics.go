package borgmaster

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/pages"
	"borg/proto/door"
	"borg/proto/door/entrance"
)

// figures are what is read when somebody asks for metrics: names end in their units,
// where they have one. docs/metrics.md says the same, and a test holds the two alike.
var figures = []pages.Figure{
	{Name: "build_info", Help: "Always 1; the label says which build runs.", Labels: []string{"build"}},
	{Name: "simulated", Help: "1 if the cell is a simulated one, else 0."},
	{Name: "elected_replica", Help: "Number of the elected replica as this one knows it; 0: nobody is."},
	{Name: "ready", Help: "1 if this replica is elected and its cell is the truth, else 0."},
	{Name: "term", Help: "Term of the log."},
	{Name: "committed_index", Help: "Log index up to which this replica knows entries to be committed."},
	{Name: "applied_index", Help: "Log index up to which this replica has applied entries."},
	{Name: "format", Help: "Format of the cell."},
	{Name: "schedulers", Help: "Scheduler processes that follow this replica."},
	{Name: "wall_clock_suspect", Help: "1 if the wall clock has stepped and is not followed, else 0."},
	{Name: "certificate_left_seconds", Help: "How long a certificate is still good for, below zero if it ran out: of this replica (master), of the last key of the cell's authority (authority), and of the machine that this replica calls whose own runs out first (borglet).", Labels: []string{"of"}},

	{Name: "jobs", Help: "Jobs that are not dead, by band.", Labels: []string{"band"}},
	{Name: "tasks", Help: "Tasks, by band and state.", Labels: []string{"band", "state"}},
	{Name: "machines", Help: "Machines of the cell, by state; those that drain are up too.", Labels: []string{"state"}},
	{Name: "capacity_cores", Help: "Processors of the machines that are up."},
	{Name: "capacity_bytes", Help: "Memory and disk of the machines that are up.", Labels: []string{"resource"}},
	{Name: "reserved_cores", Help: "Processors held in the view of work that is not production, by reservations."},
	{Name: "reserved_bytes", Help: "Memory and disk held in that view.", Labels: []string{"resource"}},
	{Name: "limit_cores", Help: "Processors held in the view of production, by limits."},
	{Name: "limit_bytes", Help: "Memory and disk held in that view.", Labels: []string{"resource"}},
	{Name: "restore_held", Help: "1 if the cell was restored and places nothing yet, else 0."},
	{Name: "restore_unheard_machines", Help: "Machines of a restored cell that have not said what they run."},

	{Name: "shard_machines", Help: "Machines that this replica polls."},
	{Name: "shard_missed_machines", Help: "Machines of this replica's share that were not reached when last polled."},
	{Name: "poll_lag_seconds", Help: "How much later than due polls begin of late."},
	{Name: "poll_interval_now_seconds", Help: "Time between two polls of a machine at rest that this replica keeps to now: 2 s, and up to 16 s while it falls behind."},
	{Name: "late_seconds", Help: "How late timers of this process fire: the second longest delay of the last 10 s."},
	{Name: "admitted_total", Help: "Changes of users that got a place in the log of this replica, and reads that it took.", Labels: []string{"call"}},
	{Name: "turned_away_total", Help: "Changes and reads of users that were refused with a time to come back.", Labels: []string{"call"}},
	{Name: "read_turns_total", Help: "Turns of users' reads that look at much."},
	{Name: "admission_waited_total", Help: "Changes of users that waited for a place in the log."},
	{Name: "admission_users", Help: "Users who are remembered because they asked lately."},
	{Name: "admission_crowd_users", Help: "Users with changes that wait for a place in the log."},
	{Name: "admission_window", Help: "How many small changes may be on their way through the log at a time."},
	{Name: "admission_light_seconds", Help: "How long the log took of late for changes of users who ask for little."},
	{Name: "admission_quiet_seconds", Help: "How long it takes for them in quiet, as far as was seen."},
	{Name: "crash_reports_held_total", Help: "Reports of crashes that were left for later because their jobs have many."},
	{Name: "handshakes_dropped_total", Help: "Connections dropped before they said who they are, since newer ones came and their address or the door was full."},
	{Name: "hung_up_total", Help: "Connections closed for what they sent: too much at once, a message that took too long or was too large, or too many frames without a message."},
	{Name: "received_bytes_total", Help: "Bytes read from connections, without what TLS adds, by the role of who is on the other end.", Labels: []string{"from"}},
	{Name: "lane_items", Help: "What waits or is under way, by lane.", Labels: []string{"lane"}},
	{Name: "lane_limit_items", Help: "How much may wait or be under way, by lane.", Labels: []string{"lane"}},
}

// insideFigures are those of a replica that keeps its log on a disk.
var insideFigures = []pages.Figure{
	{Name: "log_entries", Help: "Entries that the log holds on disk."},
	{Name: "log_bytes", Help: "Size of the entries that the log holds on disk."},
	{Name: "records_index", Help: "Log index that the records on disk stand for."},
	{Name: "appends", Help: "Writes of the log that the disk has not confirmed."},
	{Name: "pending_ops", Help: "Ops in entries that are not committed yet."},
	{Name: "disk_free_bytes", Help: "Room on the disk of the replica's directory."},
	{Name: "disk_size_bytes", Help: "Size of the disk of the replica's directory."},
	{Name: "peer_heard_seconds", Help: "How long ago another replica last said something.", Labels: []string{"peer"}},
	{Name: "peer_match_index", Help: "Log index up to which another replica has the log; while elected.", Labels: []string{"peer"}},
	{Name: "archive_failing", Help: "1 if the past is not kept at this time, else 0."},
	{Name: "archive_index", Help: "Log index up to which the change log is written."},
	{Name: "checkpoint_index", Help: "Log index of the last checkpoint that was kept."},
	{Name: "checkpoint_timestamp_seconds", Help: "The moment that the last checkpoint stands for; 0: there is none."},
	{Name: "checkpoint_bytes", Help: "Size of the last checkpoint."},
}

// journalFigures are those of a replica that keeps a history of events.
var journalFigures = []pages.Figure{
	{Name: "history_entries_total", Help: "Entries of the log whose events were written to the history."},
	{Name: "history_dropped_entries_total", Help: "Entries that the disk was too slow for, and that the history of this replica lacks."},
	{Name: "history_failed_writes_total", Help: "Writes of the history that came to nothing."},
	{Name: "history_bytes", Help: "Size of the history."},
	{Name: "history_displaced_total", Help: "Events, requests and rows of the history that were dropped because their user passed his share."},
	{Name: "usage_drafts", Help: "Copies and allocs of which this replica holds what others were told in windows that have not ended."},
	{Name: "usage_unkept_total", Help: "Usage that machines told and that is in no window, because there were too many."},
	{Name: "usage_drafts_refused_total", Help: "What others told in windows that have not ended and for which this replica had no room."},
	{Name: "usage_rescued_rows_total", Help: "Rows that were made of what it held, because another replica fell silent or forgot it."},
}

// auditFigures are those of a replica that keeps an audit.
var auditFigures = []pages.Figure{
	{Name: "audit_bytes", Help: "Size of the audit: of what reached the log, and of what this replica alone refused.", Labels: []string{"journal"}},
	{Name: "audit_dropped_records_total", Help: "Records of the audit that were dropped because their caller passed his share.", Labels: []string{"journal"}},
}

// collectors are all that a replica counts.
func (m *Master) collectors() []prometheus.Collector {
	all := []prometheus.Collector{m.calls, m.elections, m.shareSets, pages.NewFigures(program, figures, m.read)}
	all = append(all, m.shard.Collectors()...)
	if m.cfg.Journal != nil {
		all = append(all, pages.NewFigures(program, journalFigures, m.readJournal))
	}
	if m.cfg.Audit != nil {
		all = append(all, pages.NewFigures(program, auditFigures, m.readAudit))
	}
	if m.cfg.Insides != nil {
		all = append(all, pages.NewFigures(program, insideFigures, m.readInsides))
		all = append(all, m.cfg.Insides.Collectors()...)
	}
	return all
}

func (m *Master) read(r *pages.Reading) {
	l := &look{m: m, state: m.cfg.Log.State(), tally: m.tally(), shard: m.shard.Stats()}
	if m.cfg.Insides != nil {
		v := m.cfg.Insides.Vitals()
		l.vitals = &v
	}
	t := &l.tally
	r.Set("build_info", 1, m.cfg.Build)
	r.SetIf("simulated", m.cfg.Simulated != nil)
	r.Set("elected_replica", float64(l.state.Elected))
	r.SetIf("ready", l.state.Ready)
	r.Set("term", float64(l.state.Term))
	r.Set("committed_index", float64(l.state.Commit))
	r.Set("applied_index", float64(l.state.Applied))
	r.Set("format", float64(t.format))
	r.Set("schedulers", float64(m.followers.Load()))
	r.SetIf("wall_clock_suspect", t.wallSuspect)
	m.readCertificates(r)
	for i, b := range bands {
		r.Set("jobs", float64(t.jobs[i]), b.name)
		r.Set("tasks", float64(t.tasks[i].pending), b.name, "pending")
		r.Set("tasks", float64(t.tasks[i].running), b.name, "running")
		r.Set("tasks", float64(t.tasks[i].dead), b.name, "dead")
	}
	r.Set("machines", float64(t.up), "up")
	r.Set("machines", float64(t.down), "down")
	r.Set("machines", float64(t.draining), "draining")
	for _, sum := range []struct {
		name string
		of   cell.Resources
	}{{"capacity", t.capacity}, {"reserved", t.held}, {"limit", t.limits}} {
		r.Set(sum.name+"_cores", float64(sum.of.CPUMilli)/1000)
		r.Set(sum.name+"_bytes", float64(sum.of.MemBytes), "memory")
		r.Set(sum.name+"_bytes", float64(sum.of.DiskBytes), "disk")
	}
	r.SetIf("restore_held", t.restore.held)
	r.Set("restore_unheard_machines", float64(t.restore.unheard))
	r.Set("shard_machines", float64(l.shard.Share))
	r.Set("shard_missed_machines", float64(l.shard.Missed))
	r.Set("poll_lag_seconds", l.shard.Lag.Seconds())
	r.Set("poll_interval_now_seconds", l.shard.Interval.Seconds())
	r.Set("late_seconds", l.shard.Late.Seconds())
	a, turns := m.admit.stats()
	r.Set("admitted_total", float64(a.Writes), "change")
	r.Set("admitted_total", float64(a.Reads), "read")
	r.Set("turned_away_total", float64(a.WritesRefused+a.WritesExpired), "change")
	r.Set("turned_away_total", float64(a.ReadsRefused+turns.Refused), "read")
	r.Set("read_turns_total", float64(turns.Turns))
	r.Set("admission_waited_total", float64(a.WritesWaited))
	r.Set("admission_users", float64(a.Users))
	r.Set("admission_crowd_users", float64(a.Crowd))
	r.Set("admission_window", float64(a.Window))
	r.Set("admission_light_seconds", float64(a.LightNs)/1e9)
	r.Set("admission_quiet_seconds", float64(a.BaseNs)/1e9)
	r.Set("crash_reports_held_total", float64(l.shard.CrashesHeld))
	r.Set("hung_up_total", float64(door.HungUp()))
	r.Set("handshakes_dropped_total", float64(entrance.Dropped()))
	for _, role := range []identity.Role{identity.Master, identity.Borglet, identity.User, identity.Task} {
		r.Set("received_bytes_total", float64(door.Received(role)), string(role))
	}
	for _, q := range l.lanes() {
		r.Set("lane_items", float64(q.waiting), q.label)
		r.Set("lane_limit_items", float64(q.most), q.label)
	}
}

func (m *Master) readJournal(r *pages.Reading) {
	s := m.cfg.Journal.Stats()
	r.Set("history_entries_total", float64(s.Written))
	r.Set("history_dropped_entries_total", float64(s.Dropped))
	r.Set("history_failed_writes_total", float64(s.Failed))
	r.Set("history_bytes", float64(s.Bytes))
	r.Set("history_displaced_total", float64(s.Displaced))
	r.Set("usage_drafts", float64(s.Drafts))
	r.Set("usage_unkept_total", float64(s.Unkept))
	r.Set("usage_drafts_refused_total", float64(s.Unheld))
	r.Set("usage_rescued_rows_total", float64(s.Rescued))
}

func (m *Master) readAudit(r *pages.Reading) {
	s := m.cfg.Audit.Stats()
	r.Set("audit_bytes", float64(s.LogBytes), "log")
	r.Set("audit_bytes", float64(s.LocalBytes), "local")
	r.Set("audit_dropped_records_total", float64(s.LogDropped), "log")
	r.Set("audit_dropped_records_total", float64(s.LocalDropped), "local")
}

func (m *Master) readInsides(r *pages.Reading) {
	v := m.cfg.Insides.Vitals()
	r.Set("log_entries", float64(v.LogEntries))
	r.Set("log_bytes", float64(v.LogBytes))
	r.Set("records_index", float64(v.Flushed))
	r.Set("appends", float64(v.Appending))
	r.Set("pending_ops", float64(v.OpsPending))
	r.Set("disk_free_bytes", float64(v.DiskFreeBytes))
	r.Set("disk_size_bytes", float64(v.DiskSizeBytes))
	for _, p := range v.Peers {
		r.Set("peer_heard_seconds", p.Heard.Seconds(), fmt.Sprint(p.ID))
		if p.Following {
			r.Set("peer_match_index", float64(p.Match), fmt.Sprint(p.ID))
		}
	}
	r.SetIf("archive_failing", v.Archive.Failing != "")
	r.Set("archive_index", float64(v.Archive.Last))
	r.Set("checkpoint_index", float64(v.Archive.CheckpointIndex))
	at := 0.0
	if !v.Archive.CheckpointAt.IsZero() {
		at = float64(v.Archive.CheckpointAt.UnixNano()) / float64(time.Second)
	}
	r.Set("checkpoint_timestamp_seconds", at)
	r.Set("checkpoint_bytes", float64(v.Archive.CheckpointBytes))
}
