package borglet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"borg/pages"
	"borg/proto/borgpb"
)

const (
	program = "borglet"
	// lookPatience is how long a page waits for the loop.
	lookPatience = 3 * time.Second
	// maxTasksShown bounds the rows of a page.
	maxTasksShown = 500
	// Without a poll for so long, no master reaches this machine: it is polled every
	// few seconds.
	pollLate = 15 * time.Second
	// A disk with less than this part free, in percent, is nearly full.
	diskFewPercent = 10
)

// meter counts what a borglet does.
type meter struct {
	calls    *pages.Calls
	interval prometheus.Histogram
	polls    *prometheus.CounterVec
	started  prometheus.Counter
	ended    *prometheus.CounterVec
	failed   *prometheus.CounterVec
	figures  *pages.Figures
	// Commands of health checks that waited for the rate of their user.
	checksDelayed prometheus.Counter

	// What follows belongs to the loop.
	last lastPoll
}

// lastPoll is the last poll that was answered.
type lastPoll struct {
	at     time.Time
	by     string
	fenced bool
}

func newMeter(a *Agent) *meter {
	m := &meter{
		calls:         pages.NewCalls(program),
		interval:      pages.NewHistogram(program, "poll_interval", "Time between two polls of this machine, by whichever replica."),
		polls:         pages.NewCounters(program, "polls", "Polls of this machine, by what came of them.", "result", "obeyed", "fenced", "refused"),
		started:       pages.NewCounter(program, "tasks_started", "Processes of tasks that began to run."),
		ended:         pages.NewCounters(program, "tasks_ended", "Processes of tasks that have ended, by how.", "how", "ok", "failed", "killed", "unknown"),
		failed:        pages.NewCounters(program, "effects_failed", "Things that could not be done and are tried again, by what.", "op", ops()...),
		checksDelayed: pages.NewCounter(program, "checks_delayed", "Commands of health checks that waited, because their user's tasks start many."),
		figures:       pages.NewFigures(program, figures, a.read),
	}
	return m
}

// polled notes a poll. Only the loop calls it.
func (m *meter) polled(by string, fenced bool, err error) {
	now := time.Now()
	if !m.last.at.IsZero() {
		m.interval.Observe(now.Sub(m.last.at).Seconds())
	}
	result := "obeyed"
	switch {
	case err != nil:
		result = "refused"
	case fenced:
		result = "fenced"
	}
	m.polls.WithLabelValues(result).Inc()
	m.last = lastPoll{now, by, fenced}
}

// note counts what happened to a run.
func (m *meter) note(ev Event) {
	switch ev := ev.(type) {
	case Observed:
		switch ev.Kind {
		case Running:
			m.started.Inc()
		case Exited:
			m.ended.WithLabelValues(howEnded(ev.Exit)).Inc()
		}
	case Failed:
		m.failed.WithLabelValues(ev.Op.String()).Inc()
	}
}

// ops are the names of what may fail.
func ops() (names []string) {
	for op := OpStart; op <= OpSave; op++ {
		names = append(names, op.String())
	}
	return names
}

func howEnded(e *borgpb.Exit) string {
	switch {
	case e.GetUnknown():
		return "unknown"
	case e.GetSignal() != 0:
		return "killed"
	case e.GetCode() != 0 || e.GetError() != "":
		return "failed"
	}
	return "ok"
}

// look is how the borglet stands, as its loop tells it to who asks.
type look struct {
	rows    []row
	more    int
	states  map[borgpb.AttemptState]int
	fence   Fence
	last    lastPoll
	leaving int
	// New copies are held back until a master was heard.
	held bool
	// Ports that tasks listen on and were not granted.
	strays int
	allocs allocRows
}

// row is one copy.
type row struct {
	name     string
	attempt  uint64
	state    borgpb.AttemptState
	restarts uint32
	pid      int64
	started  time.Time
	text     string
	shimLost bool
	limits   *borgpb.Resources
	memBytes int64
	measured bool
}

// look is called by the loop.
func (a *Agent) look() look {
	c := a.core
	l := look{states: map[borgpb.AttemptState]int{}, fence: a.master.Fence, last: a.meter.last, leaving: len(c.leaving), held: c.holdNs != 0, allocs: allocRows{}}
	used, stray := a.usage.memory(), a.strays.Load()
	inAllocs := a.usage.allocMemory()
	l.strays = stray.ports
	for _, id := range c.ids {
		t := c.copies[id]
		r := t.says(t.state())
		l.states[t.state()]++
		l.allocs.add(t, inAllocs)
		if len(l.rows) == maxTasksShown {
			l.more++
			continue
		}
		one := row{name: t.name(), attempt: id.Attempt, state: t.state(), restarts: r.restarts, pid: r.pid, text: r.text, shimLost: r.shimLost,
			limits: t.Desired.GetSpec().GetResources()}
		if t.addr != "" {
			one.text = strings.TrimSuffix("at "+t.addr+"; "+one.text, "; ")
		}
		if r.startedWallNs != 0 {
			one.started = time.Unix(0, r.startedWallNs)
		}
		if r.exit != nil {
			one.text = strings.TrimPrefix(one.text+"; "+ExitText(r.exit), "; ")
		}
		if text := stray.texts[id]; text != "" {
			one.text = strings.TrimPrefix(one.text+"; "+text, "; ")
		}
		one.memBytes, one.measured = used[id]
		l.rows = append(l.rows, one)
	}
	return l
}

var errBusy = errors.New("the borglet has no time to say how it stands; try again")

// askLook asks the loop.
func (a *Agent) askLook(ctx context.Context) (look, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	to := make(chan look, 1)
	select {
	case a.looks <- to:
		return <-to, nil
	case <-ctx.Done():
		return look{}, errBusy
	case <-a.done:
		return look{}, errStopped
	}
}

// Called counts a call of the borglet's service.
func (a *Agent) Called(method string, stream bool, code codes.Code, took time.Duration) {
	a.meter.calls.Ended(method, stream, code, took)
}

// Pages are the status page and the metrics of this borglet.
func (a *Agent) Pages() http.Handler {
	m := a.meter
	site := &pages.Site{Status: a.statusPage, View: a.readerView, Metrics: pages.NewRegistry(m.calls, m.interval, m.polls, m.started, m.ended, m.failed, m.checksDelayed, m.figures)}
	return site.Handler()
}

// disk is the room on the disk of the borglet's directory; zero: nobody knows.
func (a *Agent) disk() (free, size uint64) {
	var disk syscall.Statfs_t
	if syscall.Statfs(a.cfg.Dir, &disk) != nil {
		return 0, 0
	}
	return disk.Bavail * uint64(disk.Bsize), disk.Blocks * uint64(disk.Bsize)
}

func (a *Agent) statusPage(ctx context.Context) (*pages.Page, error) {
	l, err := a.askLook(ctx)
	if err != nil {
		return nil, err
	}
	p := &pages.Page{Program: program, Title: "machine " + a.cfg.Name, Build: a.cfg.Build}
	a.judge(&p.Verdict, l)
	running := l.states[borgpb.AttemptState_ATTEMPT_STATE_RUNNING]
	backoff := l.states[borgpb.AttemptState_ATTEMPT_STATE_BACKOFF]
	stopping := l.states[borgpb.AttemptState_ATTEMPT_STATE_STOPPING]
	p.Numbers = []pages.Fact{
		{Name: "tasks running", Value: pages.Number(running)},
		{Name: "starting", Value: pages.Number(l.states[borgpb.AttemptState_ATTEMPT_STATE_STARTING])},
		{Name: "in backoff", Value: pages.Number(backoff).If(backoff > 0, pages.Warn)},
		{Name: "stopping", Value: pages.Number(stopping)},
		{Name: "copies remembered", Value: pages.Number(len(l.rows) + l.more)},
	}
	p.Sections = append(p.Sections, a.masterSection(l), a.machineSection(), a.isolationSection(), a.paperSection())
	if a.cfg.Packages != nil {
		s := packageSection(a.cfg.Packages.State())
		if !a.showsAll(ctx) {
			s.Head, s.Rows, s.More = nil, nil, 0
		}
		p.Sections = append(p.Sections, s)
	}
	p.Sections = append(p.Sections, a.ownRows(ctx, taskSection(l), "tasks"))
	if len(l.allocs) > 0 {
		p.Sections = append(p.Sections, a.ownRows(ctx, allocSection(l.allocs), "allocs"))
	}
	if s := a.volumeSection(); len(s.Rows) > 0 {
		p.Sections = append(p.Sections, a.ownRows(ctx, s, "volumes"))
	}
	return p, nil
}

func (a *Agent) judge(v *pages.Verdict, l look) {
	switch {
	case l.last.at.IsZero():
		v.Found(pages.Warn, "is it in the cell? borgcfg machine list", "No master has polled this machine since its borglet was started; its tasks go on.")
	case time.Since(l.last.at) > pollLate:
		v.Found(pages.Bad, "do the masters run, and reach "+a.cfg.Spec.GetAddr()+"? borgcfg machine list", "No master has polled this machine for %s; its tasks go on.", pages.Span(time.Since(l.last.at)).Text)
	case l.last.fenced:
		v.Found(pages.Warn, "a replica that is behind catches up; if it stays, two cells claim this machine", "The last poll, of %s, was fenced: this machine has obeyed a later master.", l.last.by)
	}
	if n := l.states[borgpb.AttemptState_ATTEMPT_STATE_BACKOFF]; n > 0 {
		v.Found(pages.Warn, "below: why; borgcfg logs JOB/INDEX", "In backoff, to be started again: %s.", pages.Some(n, "task"))
	}
	if l.strays > 0 {
		v.Found(pages.Warn, "below: who; a job asks for its ports by name: docs/job-files.md", "Tasks listen on ports that they were not granted: %d.", l.strays)
	}
	if caps := a.cfg.Runtime.Capabilities(); !caps.Limits {
		v.Found(pages.Warn, "start the borglet as root where there are cgroups: --runtime container", "Tasks run as plain processes: no limits are enforced and nothing keeps tasks apart.")
	}
	if free, size := a.disk(); size > 0 && free*100/size < diskFewPercent {
		v.Found(pages.Warn, "make room below "+a.cfg.Dir, "The disk has %s free of %s.", pages.Bytes(free).Text, pages.Bytes(size).Text)
	}
	if a.cfg.CertificateExpires != nil {
		if left := time.Until(a.cfg.CertificateExpires()); left <= 0 {
			v.Found(pages.Bad, "an admin makes a token: borgcfg machine invite "+a.cfg.Name+"; with it: borglet serve --join TOKEN", "The certificate of this machine ran out %s ago: no master believes it, and it cannot renew it.", pages.Span(-left).Text)
		} else if left < 24*time.Hour {
			v.Found(pages.Warn, "a borglet renews its certificate from the masters: see its log", "The certificate of this machine runs out in %s.", pages.Span(left).Text)
		}
	}
	if n := a.papers.state(time.Now()).overdue; n > 0 {
		v.Found(pages.Warn, "do the masters answer this machine? see its log", "Certificates of tasks that were not renewed: %d.", n)
	}
	v.Otherwise("Healthy: %s running; %s polled %s ago.", pages.Some(l.states[borgpb.AttemptState_ATTEMPT_STATE_RUNNING], "task"), l.last.by, pages.Span(time.Since(l.last.at)).Text)
}

func (a *Agent) masterSection(l look) pages.Section {
	by := l.last.by
	if by == "" {
		by = "nobody yet"
	}
	s := pages.Section{Title: "Masters", Facts: []pages.Fact{
		{Name: "last poll", Value: pages.At(l.last.at)},
		{Name: "last poll by", Value: pages.Text(by)},
		{Name: "time between polls", Value: pages.Distribution(a.meter.interval)},
		{Name: "cell id obeyed", Value: pages.Text(l.fence.CellID)},
		{Name: "epoch", Value: pages.Number(l.fence.Epoch)},
		{Name: "term", Value: pages.Number(l.fence.Term)},
		{Name: "log index", Value: pages.Number(l.fence.Index)},
		{Name: "replicas not believed", Value: pages.Number(len(l.fence.Removed))},
		{Name: "starts are held", Value: pages.Yes(l.held)},
	}}
	return s
}

func (a *Agent) paperSection() pages.Section {
	s := pages.Section{Title: "Certificates"}
	if a.cfg.CertificateExpires != nil {
		s.Facts = append(s.Facts, pages.Fact{Name: "own certificate expires", Value: pages.At(a.cfg.CertificateExpires())})
	}
	papers := a.papers.state(time.Now())
	s.Facts = append(s.Facts,
		pages.Fact{Name: "tasks get certificates", Value: pages.Yes(a.cfg.PapersDir != "").If(a.cfg.PapersDir == "", pages.Warn)},
		pages.Fact{Name: "tasks that have one", Value: pages.Number(papers.copies)},
		pages.Fact{Name: "next is renewed", Value: pages.At(papers.next)},
		pages.Fact{Name: "renewals overdue", Value: pages.Number(papers.overdue).If(papers.overdue > 0, pages.Warn)},
	)
	return s
}

func (a *Agent) machineSection() pages.Section {
	c := a.cfg.Spec.GetCapacity()
	free, size := a.disk()
	room := pages.Bytes(free)
	room.Text = fmt.Sprintf("%s free of %s", room.Text, pages.Bytes(size).Text)
	room.Bar = []pages.Part{{Class: "used", N: int64(size - min(free, size))}, {Class: "free", N: int64(free)}}
	return pages.Section{Title: "Machine", Facts: []pages.Fact{
		{Name: "address", Value: pages.Text(a.cfg.Spec.GetAddr())},
		{Name: "offers processor", Value: pages.Value{Text: fmt.Sprintf("%.1f cores", float64(c.GetCpuMilli())/1000), Raw: c.GetCpuMilli(), Unit: "milli"}},
		{Name: "offers memory", Value: pages.Bytes(c.GetMemBytes())},
		{Name: "offers disk", Value: pages.Bytes(c.GetDiskBytes())},
		{Name: "task ports", Value: pages.Textf("%d to %d", a.cfg.Spec.GetPortFirst(), a.cfg.Spec.GetPortLast())},
		{Name: "disk", Value: room},
		{Name: "directory", Value: pages.Text(a.cfg.Dir)},
		{Name: "borglet since", Value: pages.At(a.start)},
		{Name: "build", Value: pages.Text(a.cfg.Build)},
	}}
}

// isolationSection says how tasks are kept apart here, and what is missing.
func (a *Agent) isolationSection() pages.Section {
	caps := a.cfg.Runtime.Capabilities()
	mode := "containers, cgroup " + caps.Cgroup
	switch {
	case caps.Runtime == "process":
		mode = "plain processes: the weaker mode"
	case caps.Cgroup == "v1":
		mode += ": the older hierarchy, without pressure figures"
	case caps.Cgroup == "none":
		mode = caps.Runtime + " without cgroups: the weaker mode"
	}
	weak := caps.Runtime == "process" || caps.Cgroup == "none"
	filter, users := "a list of what tasks may call; all else is refused", "of its own, for each copy"
	if caps.Seccomp == "none" {
		filter = "none: tasks may make every system call"
	}
	if caps.Userns == "none" {
		users = "the machine's: root in a task is the machine's root without capabilities"
	}
	return pages.Section{Title: "Isolation", Facts: []pages.Fact{
		{Name: "mode", Value: pages.Text(mode).If(weak, pages.Warn)},
		{Name: "runtime", Value: pages.Text(caps.Runtime)},
		{Name: "cgroup", Value: pages.Text(caps.Cgroup)},
		{Name: "system calls", Value: pages.Text(filter).If(caps.Seccomp == "none", pages.Warn)},
		{Name: "user ids", Value: pages.Text(users).If(caps.Userns == "none", pages.Warn)},
		{Name: "ports that were not granted", Value: pages.Text(caps.Ports)},
		{Name: "writes beyond a disk limit", Value: pages.Text(diskLimitText(caps.DiskLimit))},
		{Name: "limits are enforced", Value: pages.Yes(caps.Limits).If(!caps.Limits, pages.Warn)},
		{Name: "tasks have files of their own", Value: pages.Yes(caps.OwnFiles).If(!caps.OwnFiles, pages.Warn)},
	}}
}

// maxPackagesShown bounds the rows of a page.
const maxPackagesShown = 100

func packageSection(st PackageState) pages.Section {
	from := strings.Join(st.Sources, ", ")
	if from == "" {
		from = "nowhere: --package-source"
	}
	s := pages.Section{Title: "Packages", Facts: []pages.Fact{
		{Name: "come from", Value: pages.Text(from)},
		{Name: "packages here", Value: pages.Number(len(st.Digests))},
		{Name: "needed by tasks", Value: pages.Number(st.Held)},
		{Name: "on disk", Value: pages.Bytes(st.Bytes)},
		{Name: "in use", Value: pages.Bytes(st.HeldBytes)},
		{Name: "may take", Value: pages.Bytes(st.LimitBytes)},
		{Name: "brought", Value: pages.Number(st.Fetched)},
		{Name: "bytes brought", Value: pages.Bytes(st.FetchedBytes)},
		{Name: "of them from other machines", Value: pages.Bytes(st.PeerBytes)},
		{Name: "bytes sent to other machines", Value: pages.Bytes(st.ServedBytes)},
		{Name: "downloads gone on with", Value: pages.Number(st.Resumed)},
		{Name: "could not be had", Value: pages.Number(st.Failed).If(st.Failed > 0, pages.Warn)},
		{Name: "thrown away for room", Value: pages.Number(st.Dropped)},
	}, Head: []string{"package"}}
	for i, d := range st.Digests {
		if i == maxPackagesShown {
			s.More = len(st.Digests) - i
			break
		}
		s.Rows = append(s.Rows, []pages.Value{pages.Text(d)})
	}
	return s
}

func taskSection(l look) pages.Section {
	s := pages.Section{Title: "Tasks", Head: []string{"task", "attempt", "state", "restarts", "process", "started", "memory", "limit", "what is said of it"}, More: l.more}
	if len(l.rows) == 0 {
		s.Words = "There are none."
	}
	for _, r := range l.rows {
		mood := pages.Plain
		switch r.state {
		case borgpb.AttemptState_ATTEMPT_STATE_RUNNING:
			mood = pages.Good
		case borgpb.AttemptState_ATTEMPT_STATE_BACKOFF, borgpb.AttemptState_ATTEMPT_STATE_FAILED, borgpb.AttemptState_ATTEMPT_STATE_LOST:
			mood = pages.Warn
		}
		text := r.text
		if r.shimLost {
			text = strings.TrimSuffix("its shim died; "+text, "; ")
		}
		started, memory, process := pages.Text("–"), pages.Value{Text: "–", Unit: "bytes"}, pages.Value{Text: "–"}
		if !r.started.IsZero() {
			started = pages.Span(time.Since(r.started))
			started.Text += " ago"
		}
		if r.measured {
			memory = pages.Bytes(r.memBytes)
		}
		if r.pid != 0 {
			process = pages.Value{Text: fmt.Sprint(r.pid), Raw: r.pid}
		}
		s.Rows = append(s.Rows, []pages.Value{
			pages.Text(r.name), pages.Number(r.attempt), pages.Text(stateText(r.state)).In(mood), pages.Number(r.restarts), process, started,
			memory, pages.Bytes(r.limits.GetMemBytes()), pages.Text(text),
		})
	}
	return s
}

func stateText(s borgpb.AttemptState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "ATTEMPT_STATE_"))
}

var figures = []pages.Figure{
	{Name: "build_info", Help: "Always 1; the labels say which build runs and how tasks are kept apart.", Labels: []string{"build", "runtime", "cgroup"}},
	{Name: "tasks", Help: "Copies of tasks on this machine, by state.", Labels: []string{"state"}},
	{Name: "last_poll_timestamp_seconds", Help: "When a master last polled; 0: never since the start."},
	{Name: "obeyed_term", Help: "Term of the master that was obeyed last."},
	{Name: "obeyed_index", Help: "Log index of the poll that was obeyed last."},
	{Name: "disk_free_bytes", Help: "Room on the disk of the borglet's directory."},
	{Name: "disk_size_bytes", Help: "Size of the disk of the borglet's directory."},
	{Name: "offered_cores", Help: "Processors that the machine offers."},
	{Name: "offered_bytes", Help: "Memory and disk that the machine offers.", Labels: []string{"resource"}},
	{Name: "task_memory_bytes", Help: "Memory of all tasks together, as last measured."},
	{Name: "alloc_memory_bytes", Help: "Memory of what is in allocs, of all of them together, as last measured."},
	{Name: "packages", Help: "Packages of which all is on this machine."},
	{Name: "kept_output_bytes", Help: "Disk that the output of forgotten tasks takes."},
	{Name: "kept_output_dropped_total", Help: "Forgotten tasks whose output was removed before its time, to make room."},
	{Name: "package_bytes", Help: "Disk that packages take."},
	{Name: "package_limit_bytes", Help: "Disk that packages may take."},
	{Name: "package_fetched_bytes_total", Help: "What came of packages, from where they come from or from other machines.", Labels: []string{"from"}},
	{Name: "package_served_bytes_total", Help: "What was sent of packages to other machines."},
	{Name: "ungranted_ports", Help: "Ports of the machine that tasks listen on and were not granted."},
	{Name: "overdue_certificates", Help: "Certificates of tasks that should have been renewed more than five minutes ago."},
	{Name: "certificate_left_seconds", Help: "How long a certificate is still good for, below zero if it ran out: the machine's own (borglet), and that of the task whose runs out first (task).", Labels: []string{"of"}},
}

// states are those that a borglet tells of.
var states = []borgpb.AttemptState{
	borgpb.AttemptState_ATTEMPT_STATE_STARTING, borgpb.AttemptState_ATTEMPT_STATE_RUNNING, borgpb.AttemptState_ATTEMPT_STATE_BACKOFF,
	borgpb.AttemptState_ATTEMPT_STATE_STOPPING, borgpb.AttemptState_ATTEMPT_STATE_FINISHED, borgpb.AttemptState_ATTEMPT_STATE_FAILED,
	borgpb.AttemptState_ATTEMPT_STATE_STOPPED, borgpb.AttemptState_ATTEMPT_STATE_LOST,
}

func (a *Agent) read(r *pages.Reading) {
	caps := a.cfg.Runtime.Capabilities()
	r.Set("build_info", 1, a.cfg.Build, caps.Runtime, caps.Cgroup)
	free, size := a.disk()
	r.Set("disk_free_bytes", float64(free))
	r.Set("disk_size_bytes", float64(size))
	c := a.cfg.Spec.GetCapacity()
	r.Set("offered_cores", float64(c.GetCpuMilli())/1000)
	r.Set("offered_bytes", float64(c.GetMemBytes()), "memory")
	r.Set("offered_bytes", float64(c.GetDiskBytes()), "disk")
	if a.cfg.CertificateExpires != nil {
		r.Set("certificate_left_seconds", time.Until(a.cfg.CertificateExpires()).Seconds(), "borglet")
	}
	papers := a.papers.state(time.Now())
	if !papers.ends.IsZero() {
		r.Set("certificate_left_seconds", time.Until(papers.ends).Seconds(), "task")
	}
	r.Set("ungranted_ports", float64(a.strays.Load().ports))
	r.Set("overdue_certificates", float64(papers.overdue))
	var memory int64
	for _, bytes := range a.usage.memory() {
		memory += bytes
	}
	r.Set("task_memory_bytes", float64(memory))
	var inAllocs int64
	for _, bytes := range a.usage.allocMemory() {
		inAllocs += bytes
	}
	r.Set("alloc_memory_bytes", float64(inAllocs))
	var packages PackageState
	if a.cfg.Packages != nil {
		packages = a.cfg.Packages.State()
	}
	kept, dropped := a.store.kept.state()
	r.Set("kept_output_bytes", float64(kept))
	r.Set("kept_output_dropped_total", float64(dropped))
	r.Set("packages", float64(len(packages.Digests)))
	r.Set("package_bytes", float64(packages.Bytes))
	r.Set("package_limit_bytes", float64(packages.LimitBytes))
	r.Set("package_fetched_bytes_total", float64(packages.FetchedBytes-packages.PeerBytes), "source")
	r.Set("package_fetched_bytes_total", float64(packages.PeerBytes), "machine")
	r.Set("package_served_bytes_total", float64(packages.ServedBytes))
	l, err := a.askLook(context.Background())
	if err != nil {
		// It stops, or hangs: what is not known is not told.
		return
	}
	for _, s := range states {
		r.Set("tasks", float64(l.states[s]), stateText(s))
	}
	at := 0.0
	if !l.last.at.IsZero() {
		at = float64(l.last.at.UnixNano()) / 1e9
	}
	r.Set("last_poll_timestamp_seconds", at)
	r.Set("obeyed_term", float64(l.fence.Term))
	r.Set("obeyed_index", float64(l.fence.Index))
}
