package borgmaster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"borg/borgmaster/linkshard"
	"borg/pages"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	program = "borgmaster"
	// A replica that was not heard for so long is missed, on pages.
	heardLate = 2 * time.Second
	// A replica that is so many entries behind is, too.
	behindLate = 10_000
	// A disk with less than this part free, in percent, is nearly full.
	diskFewPercent = 10
	// What a scheduler's page may have: a page, not a flood.
	maxPassedBytes = 16 << 20
)

// looked is what a master notes for its pages.
type looked struct {
	counter counter
	calls   *pages.Calls
	// Times that this replica became the elected one and was ready, and that it decided who
	// shares the machines.
	elections, shareSets prometheus.Counter
}

func newLooked() looked {
	return looked{
		calls:     pages.NewCalls(program),
		elections: pages.NewCounter(program, "elections", "Times that this replica became the elected master since it was started."),
		shareSets: pages.NewCounter(program, "share_sets", "Times that this replica, elected, decided which replicas share the machines; once for each election, and again when a share moves."),
	}
}

// standing is who was elected since when, as this replica saw it.
type standing struct {
	elected, term uint64
	ready         bool
	since         time.Time
}

// noteState keeps since when the elected one is that.
func (m *Master) noteState(s LogState) {
	m.standingMu.Lock()
	defer m.standingMu.Unlock()
	if was := m.standing; was.elected != s.Elected || was.term != s.Term {
		m.standing.since = time.Now()
		m.standing.ready = false
	}
	if s.Ready && !m.standing.ready {
		m.elections.Inc()
	}
	m.standing.elected, m.standing.term, m.standing.ready = s.Elected, s.Term, s.Ready
}

func (m *Master) electedSince() time.Time {
	m.standingMu.Lock()
	defer m.standingMu.Unlock()
	return m.standing.since
}

// Pages are the status page and the metrics of this replica, and those of its
// scheduler processes.
func (m *Master) Pages() http.Handler {
	site := &pages.Site{
		Status:  func(ctx context.Context) (*pages.Page, error) { return m.statusPage(ctx), nil },
		View:    m.view,
		Metrics: pages.NewRegistry(m.collectors()...),
		Others:  map[string]http.Handler{},
	}
	for i, socket := range m.cfg.SchedulerPages {
		site.Others[schedulerPath(i)] = m.passOn(socket)
	}
	return site.Handler()
}

// schedulerPath is where the pages of a scheduler process are.
func schedulerPath(i int) string {
	if i == 0 {
		return "/scheduler"
	}
	return fmt.Sprintf("/scheduler-%d", i+1)
}

// passOn shows the pages of a scheduler process, which runs beside the elected
// master alone and has no door of its own.
func (m *Master) passOn(socket string) http.Handler {
	client := door.HTTPOn(socket)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := "http://scheduler" + r.URL.EscapedPath()
		if r.URL.RawQuery != "" {
			to += "?" + r.URL.RawQuery
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, to, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req.Header.Set("Accept", r.Header.Get("Accept"))
		resp, err := client.Do(req)
		if err != nil {
			where := "nobody is elected"
			if state := m.cfg.Log.State(); state.Elected == state.Replica {
				where = "it has just been elected; try again"
			} else if state.Elected != 0 {
				where = fmt.Sprintf("replica %d is elected: ask there", state.Elected)
			}
			http.Error(w, fmt.Sprintf("no scheduler process runs beside replica %d: %s", m.cfg.Replica, where), http.StatusServiceUnavailable)
			return
		}
		defer resp.Body.Close()
		for _, name := range []string{"Content-Type", "Retry-After"} {
			if v := resp.Header.Get(name); v != "" {
				w.Header().Set(name, v)
			}
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, io.LimitReader(resp.Body, maxPassedBytes))
	})
}

// look is all that one status page is made of.
type look struct {
	m        *Master
	state    LogState
	tally    tally
	shard    linkshard.Stats
	members  *borgrpc.ListMembersResponse
	vitals   *Vitals
	expires  time.Time
	lifetime time.Duration
	// Machines that do not answer are named, so their number is no finding of its own.
	named bool
}

func (m *Master) look() *look {
	l := &look{m: m, state: m.cfg.Log.State(), tally: m.tally(), shard: m.shard.Stats(), members: m.listMembers()}
	if m.cfg.Insides != nil {
		v := m.cfg.Insides.Vitals()
		l.vitals = &v
	}
	current := m.cfg.Identity.Current()
	l.expires, l.lifetime = current.Expires(), current.Expires().Sub(current.IssuedAt())
	return l
}

func (l *look) elected() bool { return l.state.Elected == l.state.Replica }

func (m *Master) statusPage(ctx context.Context) *pages.Page {
	l := m.look()
	l.leaveOut(m.hidden(ctx, l.tally.waiting))
	p := &pages.Page{
		Program: program, Title: fmt.Sprintf("replica %d of cell %s", m.cfg.Replica, m.cfg.CellName), Build: m.cfg.Build,
		Notice: m.Notice(), Verdict: l.verdict(), Numbers: l.numbers(),
	}
	p.Sections = append(p.Sections, l.bandSection(), l.memberSection())
	for _, s := range []pages.Section{l.waitingSection(), l.missedSection()} {
		if len(s.Rows) > 0 {
			p.Sections = append(p.Sections, s)
		}
	}
	p.Sections = append(p.Sections, l.replica(), l.machines(), l.shardSection(), l.log(), l.admissionSection())
	if l.vitals != nil {
		p.Sections = append(p.Sections, l.disk())
	}
	p.Sections = append(p.Sections, l.certificates())
	if l.tally.restore.restored {
		p.Sections = append(p.Sections, l.restore())
	}
	p.Sections = append(p.Sections, l.laneSection())
	for i := range m.cfg.SchedulerPages {
		if l.elected() {
			path := strings.TrimPrefix(schedulerPath(i), "/")
			p.Links = append(p.Links, pages.Link{Name: path, Href: path + "/"})
		}
	}
	return p
}

// Notice stands above the pages of a simulated cell; empty: it is a real one.
func (m *Master) Notice() string {
	if m.cfg.Simulated == nil {
		return ""
	}
	s := m.cfg.Simulated()
	return fmt.Sprintf("simulated, as of %s (index %d); time goes: %s", time.Unix(0, s.GetAsOfWallNs()).UTC().Format(time.RFC3339), s.GetAsOfIndex(), s.GetSpeed())
}

// verdict says whether it is all right, and if not what first.
func (l *look) verdict() pages.Verdict {
	var v pages.Verdict
	l.judgeElection(&v)
	l.judgeReplicas(&v)
	t := &l.tally
	switch {
	case t.down > 0 && t.up == 0:
		v.Found(pages.Bad, "borgcfg machine list", "All %d machines are down.", t.down)
	case t.down > 0:
		v.Found(pages.Warn, "borgcfg machine list", "%d of %d machines %s down.", t.down, t.up+t.down, are(t.down))
	}
	if n := t.prodPending(); n > 0 {
		v.Found(pages.Warn, "below: what waits; borgcfg status, borgcfg why JOB/INDEX", "%s of production or monitoring %s for a machine.", pages.Some(n, "task"), one(n, "waits", "wait"))
	}
	if t.wallSuspect {
		v.Found(pages.Warn, "compare the clocks of the masters with a good one: timedatectl; the cell goes on by its own time meanwhile", "The wall clock has stepped and is not followed.")
	}
	if t.restore.held {
		v.Found(pages.Warn, "borgcfg restore status", "The cell was restored and places nothing until its machines have said what they run.")
	}
	if !l.named && l.shard.Missed > 0 {
		v.Found(pages.Warn, "below: machines not reached; borgcfg machine list", "%d of the %d machines that this replica polls %s not answer.", l.shard.Missed, l.shard.Share, one(int64(l.shard.Missed), "does", "do"))
	}
	l.judgeSelf(&v)
	role := fmt.Sprintf("replica %d is elected", l.state.Elected)
	if l.elected() {
		role = "this replica is elected"
	}
	v.Otherwise("Healthy: %s, %d of %s run on %s.", role, t.all.running, pages.Some(t.all.running+t.all.pending, "task"), pages.Some(t.up, "machine"))
	return v
}

func (l *look) judgeElection(v *pages.Verdict) {
	switch {
	case l.state.Elected == 0:
		v.Found(pages.Bad, "see which answer: borgcfg status -o wide; a majority must run and reach each other; tasks go on meanwhile",
			"Nobody is elected: the cell takes no changes and places nothing.")
	case l.elected() && !l.state.Ready:
		v.Found(pages.Warn, "it takes seconds; look again: borgcfg doctor", "This replica has just been elected and is not ready yet.")
	case l.state.Ready && l.m.followers.Load() == 0:
		v.Found(pages.Bad, "the log of the elected replica says why its scheduler ends; which one that is: borgcfg master list", "No scheduler follows this replica: nothing that waits is placed.")
	case !l.elected() && l.shard.Live != nil && !l.shard.SchedulerConnected:
		v.Found(pages.Warn, fmt.Sprintf("see the log of replica %d; where it is: borgcfg master list", l.state.Elected), "The elected replica has no scheduler, or has not said that it has one.")
	}
	if behind := int64(l.state.Commit) - int64(l.state.Applied); behind > behindLate {
		v.Found(pages.Warn, "see whether it catches up: borgcfg status -o wide", "This replica is %d entries behind what it knows to be committed.", behind)
	}
}

// judgeReplicas looks at those that the elected one does not hear.
func (l *look) judgeReplicas(v *pages.Verdict) {
	if l.vitals == nil || !l.elected() {
		return
	}
	var silent []string
	for _, p := range l.vitals.Peers {
		if p.Heard > heardLate {
			silent = append(silent, fmt.Sprint(p.ID))
		}
	}
	voters := len(l.members.Members) - len(l.m.cfg.Members.Learners())
	if voters == 2 {
		v.Found(pages.Warn, "add a third: borgcfg master grow ADDRESS", "The cell has two masters: without either of them it takes no changes. One alone would do as well.")
	}
	if len(silent) == 0 {
		return
	}
	mood := pages.Warn
	if left := voters - len(silent); left <= voters/2+1 {
		// One more, and nobody is elected.
		mood = pages.Bad
	}
	v.Found(mood, "start it again, or replace it: borgcfg master list", "Replica %s %s silent; %d of %d are heard.", strings.Join(silent, ", "), are(len(silent)), voters-len(silent), voters)
}

// judgeSelf looks at this process and its disk.
func (l *look) judgeSelf(v *pages.Verdict) {
	l.judgeCertificates(v)
	if l.m.cfg.Keys != nil && len(l.m.cfg.Keys.IDs()) == 0 {
		v.Found(pages.Warn, "borgcfg secret rotate-key", "This replica has no cell key and can keep no secrets.")
	}
	if l.vitals == nil {
		return
	}
	if why := l.vitals.Archive.Failing; why != "" {
		v.Found(pages.Warn, "see what is kept: borgcfg checkpoint list; what is missed becomes a gap", "The past is not kept: %s", why)
	}
	if size := l.vitals.DiskSizeBytes; size > 0 && l.vitals.DiskFreeBytes*100/size < diskFewPercent {
		mood := pages.Warn
		if l.vitals.DiskFreeBytes*100/size < diskFewPercent/4 {
			mood = pages.Bad
		}
		v.Found(mood, "a replica ends when its disk is full; see what fills it: du -sh "+l.vitals.Dir, "The disk has %s free of %s.", pages.Bytes(l.vitals.DiskFreeBytes).Text, pages.Bytes(size).Text)
	}
}

func (l *look) numbers() []pages.Fact {
	t := &l.tally
	elected := pages.Value{Text: "nobody", Raw: 0, Mood: pages.Bad}
	if l.state.Elected != 0 {
		elected = pages.Number(l.state.Elected)
	}
	return []pages.Fact{
		{Name: "elected replica", Value: elected},
		{Name: "tasks running", Value: pages.Number(t.all.running)},
		{Name: "tasks pending", Value: pages.Number(t.all.pending).If(t.prodPending() > 0, pages.Warn)},
		{Name: "machines up", Value: pages.Number(t.up)},
		{Name: "machines down", Value: pages.Number(t.down).If(t.down > 0, pages.Bad)},
		{Name: "log index", Value: pages.Number(l.state.Applied)},
	}
}

func are(n int) string { return one(int64(n), "is", "are") }

func one(n int64, single, many string) string {
	if n == 1 {
		return single
	}
	return many
}

// liveReplicas are those that share the machines, as far as this replica knows.
func (l *look) liveReplicas() []uint64 {
	if live := l.m.duty.live(); live != nil {
		return live
	}
	return l.shard.Live
}

func role(member *borgrpc.MemberStatus) string {
	switch {
	case member.Elected:
		return "elected"
	case member.Learner:
		return "learner, no vote yet"
	}
	return "follower"
}

func numbersText(ids []uint64) string {
	var texts []string
	for _, id := range slices.Sorted(slices.Values(ids)) {
		texts = append(texts, fmt.Sprint(id))
	}
	if texts == nil {
		return "not known yet"
	}
	return strings.Join(texts, ", ")
}

// member is this replica's own entry among the members; nil: it is not there yet.
func (l *look) member() *borgpb.Member {
	for _, m := range l.members.Members {
		if m.Member.GetId() == l.m.cfg.Replica {
			return m.Member
		}
	}
	return nil
}
