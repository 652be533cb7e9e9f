package cfg

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	envName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	fileName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?([./][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	sha256Hex = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// faultAtPath reports what is wrong with a value of the object.
func (d *decoder) faultAtPath(o *Object, where, hint, format string, args ...any) {
	if !d.follows(where) {
		d.faults = append(d.faults, d.faultOf(o, where, hint, fmt.Sprintf(format, args...)))
	}
}

// follows reports whether what is wrong at a path may follow from a fault that was told:
// the value, a part of it, or what it is a part of has one.
func (d *decoder) follows(where string) bool {
	within := func(path, of string) bool {
		rest, ok := strings.CutPrefix(path, of)
		return ok && (of == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	return slices.ContainsFunc(d.faulty, func(f string) bool { return within(where, f) || where != "" && within(f, where) })
}

// faultOf is a fault at the place that a value came from or, when it came from
// nowhere, at the nearest thing around it.
func (d *decoder) faultOf(o *Object, where, hint, what string) *Fault {
	at := d.origins[""]
	for p := where; ; {
		if origin, ok := d.origins[p]; ok && origin.Pos.Line > 0 {
			at = origin
			break
		}
		i := strings.LastIndexAny(p, ".[")
		if i < 0 {
			break
		}
		p = p[:i]
	}
	said := what
	if o.Name != "" {
		what = fmt.Sprintf("%s %s: %s", o.Kind, o.Name, what)
	}
	return &Fault{Pos: at.Pos, Width: at.width, Source: d.sources.line(at.Pos), What: what, Hint: hint, said: said}
}

// check is one object under validation.
type check struct {
	d *decoder
	o *Object
}

func (c check) bad(where, hint, format string, args ...any) {
	c.d.faultAtPath(c.o, where, hint, format, args...)
}

// warn tells of what is right and may not be meant.
func (c check) warn(where, hint, format string, args ...any) {
	c.d.warnings = append(c.d.warnings, c.d.faultOf(c.o, where, hint, fmt.Sprintf(format, args...)))
}

// lacks is bad unless the cell fills it in.
func (c check) lacks(where, hint, what string) {
	c.o.lacks = c.d.faultOf(c.o, where, hint, what)
}

// validate checks what no single value can tell. It mirrors the cell's own
// checks, so that a file that passes here is refused only for what the file
// cannot know. The cell asks all of it of everybody (borgmaster/cell/wants.go), but
// for what is advice: the form of late-bound names, that there is a program, the
// form of a digest and less memory than any program needs, which the machine tells;
// overrides of tasks that the job does not have yet; and a count of ports, or the
// value of a constraint, that says nothing.
func (d *decoder) validate(o *Object) {
	c := check{d, o}
	c.name("name", "name", o.Name)
	c.name("user", "user", o.User)
	c.labels("labels", o.Labels, maxLabelBytes)
	c.annotations(o.Annotations)
	if o.Kind == KindAllocSet {
		c.allocSet(o.AllocSet)
	} else {
		c.job(o.Job)
	}
	if n := proto.Size(o.Spec()); n > maxSpecBytes && len(d.faults) == 0 {
		c.bad("", "", "the spec has %d bytes; it may have %d", n, maxSpecBytes)
	}
}

// name checks that something can be a part of a DNS name.
func (c check) name(where, what, s string) {
	if dnsLabel.MatchString(s) {
		return
	}
	if s == "" {
		c.bad(where, fmt.Sprintf(`write %s = "hello"`, what), "it has no %s", what)
		return
	}
	hint := "letters a-z, digits and dashes, at most 63, with a letter or digit at both ends"
	if near := DNSLabel(s); near != "" {
		hint = fmt.Sprintf("did you mean %q? (%s)", near, hint)
	}
	c.bad(where, hint, "%s %s cannot be part of a DNS name", what, quote(s))
}

// DNSLabel is the DNS label nearest to a name, or "" when nothing is left of
// it.
func DNSLabel(s string) string {
	label := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, s)
	if len(label) > 63 {
		label = label[:63]
	}
	return strings.Trim(label, "-")
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

func (c check) priority(p int32) {
	if p < 0 || p > maxPriority {
		c.bad("priority", `or write band = "production"`, "priority %d is not between 0 and %d", p, maxPriority)
	}
}

// update checks how updates to a job roll.
func (c check) update(j *borgpb.JobSpec) {
	p := j.Update
	if p.GetBatchSize() > maxTasks {
		c.bad("update.batch_size", "", "a batch of %d tasks; it may have %d", p.GetBatchSize(), maxTasks)
	}
	for _, t := range []struct {
		name     string
		ns, most int64
	}{
		{"watch", p.GetWatchNs(), maxUpdateWaitNs}, {"progress_deadline", p.GetProgressDeadlineNs(), maxUpdateWaitNs},
		{"canary_watch", p.GetCanaryWatchNs(), maxUpdateWaitNs}, {"pulse", p.GetPulseNs(), maxUpdateWaitNs},
		{"close_after", p.GetCloseAfterNs(), maxUpdateOpenNs},
	} {
		if t.ns < 0 || t.ns > t.most {
			c.bad("update."+t.name+"_ns", "", "%s is %v; it may be up to %v", t.name, time.Duration(t.ns), time.Duration(t.most))
		}
	}
	if p.GetMaxFailed() > maxFailures {
		c.bad("update.max_failed", "", "%d failures; there may be %d", p.GetMaxFailed(), maxFailures)
	}
	if p.GetCanaries() > maxTasks {
		c.bad("update.canaries", "", "%d canaries; there may be %d", p.GetCanaries(), maxTasks)
	}
	if p.GetCanaries() > 0 && j.Gang {
		c.bad("update.canaries", "leave one of both out", "a gang is placed as a whole and has no canaries")
	}
	c.pace(j)
	if p.GetCanaryWatchNs() > 0 && p.GetCanaries() == 0 {
		c.bad("update.canary_watch_ns", "say how many: canaries = 1", "there are no canaries to watch")
	}
	if d := p.GetProgressDeadlineNs(); d > 0 && d <= p.GetWatchNs() {
		c.bad("update.progress_deadline_ns", "", "no task is dealt with before it was watched for %v, and the update fails after %v; want more than that", time.Duration(p.WatchNs), time.Duration(d))
	}
}

// pace checks extra tasks, domains and the gate of an update.
func (c check) pace(j *borgpb.JobSpec) {
	p := j.Update
	if p.GetSpreadBy() != "" && p.Order != borgpb.UpdateOrder_UPDATE_ORDER_SPREAD {
		c.bad("update.spread_by", `order = "spread"`, "it is for updates that spread over failure domains")
	}
	switch {
	case p.GetSurge() == 0:
	case j.Kind != borgpb.JobKind_JOB_KIND_SERVICE:
		c.bad("update.surge", "", "only a service has extra tasks: one more of any other would do work of its own")
	case p.Surge > maxTasks || j.Tasks+p.Surge > maxTasks:
		c.bad("update.surge", "", "%d tasks and %d more; there may be %d", j.Tasks, p.Surge, maxTasks)
	case j.Gang || j.AllocSet != "" || j.MaxRunning > 0 || j.OnLost == borgpb.OnLost_ON_LOST_DEAD:
		c.bad("update.surge", "leave out one or the other", "a gang, a job in an alloc set, with max_running, or whose lost tasks stay dead has no extra tasks")
	}
	g := p.GetGate()
	if g == nil {
		return
	}
	if u, err := url.Parse(g.Url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		c.bad("update.gate.url", `such as "http://prometheus:9090"`, "%q is not the address of a server", g.Url)
	}
	if g.Query == "" {
		c.bad("update.gate.query", `such as query = "sum(rate(errors_total[5m]))"`, "there is nothing to ask")
	}
	switch {
	case g.LeastMicro == nil && g.MostMicro == nil:
		c.bad("update.gate", "want least or most, such as most = 0.01", "there is no bound")
	case g.LeastMicro != nil && g.MostMicro != nil && *g.LeastMicro > *g.MostMicro:
		c.bad("update.gate.least_micro", "", "no value is at least %s and at most %s", microText(*g.LeastMicro), microText(*g.MostMicro))
	}
	if g.FailAfterNs < 0 || g.FailAfterNs > maxUpdateWaitNs {
		c.bad("update.gate.fail_after_ns", "", "fail_after is %v; it may be up to %v", time.Duration(g.FailAfterNs), time.Duration(maxUpdateWaitNs))
	}
}

func (c check) job(j *borgpb.JobSpec) {
	c.priority(j.Priority)
	daemon := j.Kind == borgpb.JobKind_JOB_KIND_DAEMON
	switch {
	case daemon && j.Tasks != 0:
		c.bad("tasks", "leave it out", "a daemon job has one task per machine that matches")
	case daemon && j.AllocSet != "":
		c.bad("alloc_set", "leave it out", "a daemon job has one task per machine that matches")
	case !daemon && (j.Tasks < 1 || j.Tasks > maxTasks):
		c.bad("tasks", "", "%d tasks; a job has 1 to %d", j.Tasks, maxTasks)
	}
	c.gang(j)
	for _, ref := range []struct{ where, value string }{{"alloc_set", j.AllocSet}, {"parent", j.Parent}} {
		if ref.value != "" {
			c.key(ref.where, ref.value)
		}
	}
	if j.AllocByIndex && j.AllocSet == "" {
		c.bad("alloc_by_index", `name the set, such as alloc_set = "place", or leave it out`, "it says in which alloc of a set each task runs")
	}
	if j.MaxFailures > maxFailures {
		c.bad("max_failures", "", "%d failures of one task; there may be %d", j.MaxFailures, maxFailures)
	}
	c.update(j)
	c.network(j)
	c.volumes(j)
	if j.Scheduler != "" {
		c.bad("scheduler", "leave it out", "a job cannot choose its scheduler")
	}
	extensions := 0
	for k, v := range j.Extensions {
		extensions += len(k) + len(v)
	}
	if len(j.Extensions) > maxExtensions {
		c.bad("extensions", "", "%d extensions; there may be %d", len(j.Extensions), maxExtensions)
	}
	if extensions > maxExtensionBytes {
		c.bad("extensions", "", "extensions of %d bytes; they may have %d", extensions, maxExtensionBytes)
	}
	if j.Parent == c.o.Key() {
		c.bad("parent", "", "it is its own parent")
	}
	if len(j.StartAfter) > maxStartAfter {
		c.bad("start_after", "", "it waits for %d jobs; it may wait for %d", len(j.StartAfter), maxStartAfter)
	}
	for i, after := range j.StartAfter {
		c.key(fmt.Sprintf("start_after[%d]", i), after)
		if after == c.o.Key() {
			c.bad(fmt.Sprintf("start_after[%d]", i), "", "it waits for itself")
		}
	}
	if j.AfterFailure != borgpb.AfterFailure_AFTER_FAILURE_UNSPECIFIED && len(j.StartAfter) == 0 {
		c.bad("after_failure", `name that one, such as start_after = ["load"], or leave it out`, "it says what becomes of the job when one that it starts after fails")
	}
	c.maxPer(j.MaxPer)
	c.budget(j)
	c.preemptWait(j.PreemptWaitNs, j.Preempt)
	c.kindOf(j)
	if j.Task == nil {
		c.bad("task", `write task = task(args = ["/bin/program"], resources = resources(cpu = 0.1, mem = "64MiB"))`, "it has no task")
		return
	}
	c.task("task", j.Task, j.AllocSet != "")
	c.overrides(j)
	c.cores(j)
	c.maxRuntime("task", j, j.Task)
	for i, ov := range j.Overrides {
		c.maxRuntime(fmt.Sprintf("overrides[%d].spec", i), j, ov.Spec)
	}
}

// gang checks that all tasks of a gang may start at once.
func (c check) gang(j *borgpb.JobSpec) {
	if j.Gang && j.Tasks > maxGang {
		c.bad("gang", "", "a gang of %d tasks; it may have %d", j.Tasks, maxGang)
	}
	if j.Gang && j.MaxRunning > 0 && j.MaxRunning < j.Tasks {
		c.bad("max_running", "leave out one or the other", "a gang starts as a whole, and %d of its %d tasks may run at once", j.MaxRunning, j.Tasks)
	}
}

// maxRuntime checks how long a run may take.
func (c check) maxRuntime(where string, j *borgpb.JobSpec, t *borgpb.TaskSpec) {
	batch := j.Kind == borgpb.JobKind_JOB_KIND_BATCH || j.Kind == borgpb.JobKind_JOB_KIND_CRON
	switch {
	case t.GetMaxRuntimeNs() > 0 && !batch:
		c.bad(join(where, "max_runtime_ns"), `leave it out, or write kind = "batch"`, "only a batch or cron job ends by itself; others run until they are ended")
	case t.GetMaxRuntimeNs() > maxRuntimeNs:
		c.bad(join(where, "max_runtime_ns"), "", "%s is too long; at most 366d", quantityText(t.MaxRuntimeNs, unitTime))
	case t.GetMaxRuntimeFinishes() && t.GetMaxRuntimeNs() == 0 && j.Task.GetMaxRuntimeNs() == 0:
		c.bad(join(where, "max_runtime_finishes"), `write max_runtime = "1h" too`, "there is no max_runtime at which it could finish")
	}
}

// budget checks how far the cell may disturb the tasks.
func (c check) budget(j *borgpb.JobSpec) {
	const at = "disruption_budget"
	b := j.DisruptionBudget
	switch {
	case b == nil:
	case b.MaxDown == 0 && b.MaxPerTask == 0 && b.WindowNs == 0:
		c.bad(at, `write disruption_budget(max_down = 1), or add max_per_task = 1, window = "7d"`, "it bounds nothing, and with nothing allowed no machine could ever be emptied")
	case b.MaxDown > maxTasks:
		c.bad(at+".max_down", "", "%d tasks down; there may be %d", b.MaxDown, maxTasks)
	case b.MaxPerTask > maxDisruptions:
		c.bad(at+".max_per_task", "", "%d disruptions of one task; there may be %d", b.MaxPerTask, maxDisruptions)
	case b.WindowNs > maxWindowNs:
		c.bad(at+".window_ns", "", "%s is too long; at most 90d", quantityText(b.WindowNs, unitTime))
	case b.MaxPerTask > 0 && b.WindowNs == 0:
		c.bad(at, `write window = "7d"`, "max_per_task allows so many disruptions of one task in a window, and there is none")
	case b.WindowNs > 0 && b.MaxPerTask == 0:
		c.bad(at, "write max_per_task = 1", "the window is that of max_per_task, and there is none")
	}
}

// maxPer checks the limits per value of an attribute.
func (c check) maxPer(most map[string]uint32) {
	if len(most) > maxAttributeLimits {
		c.bad("max_per", "", "limits by %d attributes; there may be %d", len(most), maxAttributeLimits)
	}
	for _, key := range sortedKeys(most) {
		at := join("max_per", key)
		switch {
		case key == "" || len(key) > maxLabelKeyBytes:
			c.bad(at, "", "the key %s has %d bytes; it must have 1 to %d", quote(key), len(key), maxLabelKeyBytes)
		case key == "machine" || key == "rack" || key == "power":
			c.bad(at, fmt.Sprintf("write max_per_%s = %d", key, max(most[key], 1)), "there is a limit per %s of its own", key)
		case most[key] == 0:
			c.bad(at, "leave it out for no limit", "at most 0 tasks have a place")
		}
	}
}

// kindOf checks what depends on the kind of job.
func (c check) kindOf(j *borgpb.JobSpec) {
	isCron := j.Kind == borgpb.JobKind_JOB_KIND_CRON
	switch {
	case isCron && j.Cron.GetSchedule() == "":
		c.bad("cron", `write cron = cron(schedule = "0 3 * * *")`, "a cron job needs a schedule")
	case isCron:
		c.cron(j.Cron)
	case j.Cron != nil:
		c.bad("cron", `write kind = "cron", or leave it out`, "only a cron job has a schedule")
	case j.Kind == borgpb.JobKind_JOB_KIND_DAEMON && len(j.Overrides) > 0:
		c.bad("overrides", "leave them out", "a daemon job has one task per machine that matches; its indices belong to none in particular")
	}
}

// key checks "<user>/<name>".
func (c check) key(where, key string) {
	user, name, ok := strings.Cut(key, "/")
	if !ok || !dnsLabel.MatchString(user) || !dnsLabel.MatchString(name) {
		c.bad(where, `write "name" for your own, or "user/name"`, "%s is not the name of an object", quote(key))
	}
}

func (c check) overrides(j *borgpb.JobSpec) {
	if len(j.Overrides) > maxOverrides {
		c.bad("overrides", "", "%d overrides; a job may have %d", len(j.Overrides), maxOverrides)
		return
	}
	// Where what is different begins or ends; every run of tasks in between has
	// an environment of its own.
	cuts, env := map[uint32]bool{0: true}, 0
	for _, ov := range j.Overrides {
		cuts[ov.First], cuts[ov.Last+1] = true, true
		env += len(ov.Spec.GetEnv())
	}
	if n := len(cuts) * (len(j.Task.Env) + env); env > 0 && n > maxOverriddenEnv {
		c.bad("overrides", "set them by {{task.index}}, or in the program",
			"up to %d environment variables over %d runs of tasks; there may be %d in all", n, len(cuts), maxOverriddenEnv)
	}
	for i, ov := range j.Overrides {
		where := fmt.Sprintf("overrides[%d]", i)
		switch {
		case ov.First > ov.Last:
			c.bad(join(where, "first"), "", "first is %d and last is %d", ov.First, ov.Last)
		case ov.Last >= j.Tasks:
			c.bad(join(where, "last"), fmt.Sprintf("indices run from 0 to %d", j.Tasks-1), "it overrides task %d of a job with %d tasks", ov.Last, j.Tasks)
		}
		if ov.Spec == nil {
			c.bad(where, "write task = task(...) in it", "it changes nothing")
			continue
		}
		if r := ov.Spec.Resources; r != nil && (r.CpuMilli == 0 || r.MemBytes == 0) {
			c.bad(join(join(where, "spec"), "resources"), "write all of them again: what an override says of resources takes the place of the job's",
				"these tasks would ask for no cpu or no mem")
		}
		ports := j.Task.Ports
		if len(ov.Spec.Ports) > 0 {
			ports = ov.Spec.Ports
		}
		c.texts(join(where, "spec"), ov.Spec, ports, j.AllocSet != "")
		c.parts(join(where, "spec"), ov.Spec, ports)
	}
}

func (c check) task(where string, t *borgpb.TaskSpec, inAlloc bool) {
	if len(t.Args) == 0 || t.Args[0] == "" {
		c.bad(join(where, "args"), `write args = ["/bin/program", "--flag"]`, "the task has no program to run")
	}
	if t.Resources.GetCpuMilli() == 0 || t.Resources.GetMemBytes() == 0 {
		const hint, what = `write resources = resources(cpu = 0.1, mem = "64MiB")`, "the task must say how much cpu and mem it may use"
		if c.o.Kind == KindJob {
			c.lacks(join(where, "resources"), hint, what)
		} else {
			// Of savers the cell fills in nothing.
			c.bad(join(where, "resources"), hint, what)
		}
	}
	c.texts(where, t, t.Ports, inAlloc)
	c.parts(where, t, t.Ports)
}

// texts checks late-bound names wherever a borglet replaces them.
func (c check) texts(where string, t *borgpb.TaskSpec, ports []string, inAlloc bool) {
	one := func(where, text string) {
		if what, hint := checkLateBound(text, ports, inAlloc); what != "" {
			c.bad(where, hint, "%s", what)
		}
	}
	for i, a := range t.Args {
		one(fmt.Sprintf("%s[%d]", join(where, "args"), i), a)
	}
	if len(t.Env) > maxEnv {
		c.bad(join(where, "env"), "give it more in a file", "%d environment variables; a task may have %d", len(t.Env), maxEnv)
	}
	for _, k := range sortedKeys(t.Env) {
		one(join(join(where, "env"), k), t.Env[k])
	}
	one(join(where, "cwd"), t.Cwd)
}

// parts checks the parts of a task spec that overrides may have too.
func (c check) parts(where string, t *borgpb.TaskSpec, ports []string) {
	for _, n := range []struct {
		name       string
		have, most int
	}{
		{"packages", len(t.Packages), maxPackages}, {"mounts", len(t.Mounts), maxMounts},
		{"secrets", len(t.Secrets), maxSecrets}, {"files", len(t.Files), maxPushedFiles}, {"tolerations", len(t.Tolerations), maxTolerations},
	} {
		if n.have > n.most {
			c.bad(join(where, n.name), "", "%d %s; a task may have %d", n.have, n.name, n.most)
		}
	}
	for _, k := range sortedKeys(t.Env) {
		if !envName.MatchString(k) {
			c.bad(join(join(where, "env"), k), "letters, digits and _, not beginning with a digit", "%s cannot be the name of an environment variable", quote(k))
		}
	}
	c.resources(join(where, "resources"), t.Resources, true)
	c.ports(join(where, "ports"), t.Ports)
	c.paths(where, t)
	c.span(join(where, "grace_ns"), t.GraceNs)
	c.notice(where, t)
	c.constraints(join(where, "constraints"), t.Constraints)
	for i, tol := range t.Tolerations {
		if tol.Key == "" || len(tol.Key) > maxLabelKeyBytes || len(tol.Value) > maxLabelBytes {
			c.bad(fmt.Sprintf("%s[%d]", join(where, "tolerations"), i), `write toleration(key = "maintenance")`, "a toleration needs a key")
		}
	}
	for i, p := range t.Packages {
		at := fmt.Sprintf("%s[%d]", join(where, "packages"), i)
		if p.Name == "" || !sha256Hex.MatchString(p.Digest) {
			c.bad(at, `digest is "sha256:" and 64 hexadecimal digits`, "a package needs a name and a digest")
		}
		if p.Credentials != "" {
			c.name(join(at, "credentials"), "secret", p.Credentials)
		}
	}
	for i, s := range t.Secrets {
		c.name(fmt.Sprintf("%s[%d]", join(where, "secrets"), i), "secret", s)
	}
	for i, f := range t.Files {
		at := join(fmt.Sprintf("%s[%d]", join(where, "files"), i), "name")
		if len(f.Name) > maxFileNameBytes || !fileName.MatchString(f.Name) {
			c.bad(at, `write the name of a small file of yours, such as file(name = "conf/app.json")`, "%s is not the name of a file", quote(f.Name))
		}
		for _, other := range t.Files[:i] {
			if strings.HasPrefix(f.Name+"/", other.Name+"/") || strings.HasPrefix(other.Name+"/", f.Name+"/") {
				c.bad(at, "", "%s and %s cannot be files beside each other", quote(other.Name), quote(f.Name))
			}
		}
	}
	if t.Health != nil {
		c.health(join(where, "health"), t.Health, ports)
	}
	if t.Ready != nil {
		c.health(join(where, "ready"), t.Ready, ports)
		if t.Ready.StartGraceNs != 0 {
			c.bad(join(join(where, "ready"), "start_grace_ns"), "leave it out: a task that is not ready yet goes on", "a check of readiness has no grace")
		}
	}
}

func (c check) ports(where string, ports []string) {
	if len(ports) > maxPorts {
		c.bad(where, "", "%d ports; a task may have %d", len(ports), maxPorts)
	}
	seen := make(map[string]bool)
	for i, p := range ports {
		at := fmt.Sprintf("%s[%d]", where, i)
		if _, err := strconv.Atoi(p); err == nil {
			c.bad(at, `name it, such as ports = ["http"], and use {{port.http}} or $PORT_HTTP`, "port %s is a number; the cell grants the numbers", p)
		} else {
			c.name(at, "port", p)
		}
		if seen[p] {
			c.bad(at, "", "port %q is named twice", p)
		}
		seen[p] = true
	}
}

// noMounts are the top-level names in which no machine mounts anything.
var noMounts = []string{"proc", "sys", "dev", ".borg"}

func (c check) paths(where string, t *borgpb.TaskSpec) {
	absolute := func(where, what, p string) {
		if len(p) > maxPathBytes {
			c.bad(where, "", "%s has %d bytes; it may have %d", what, len(p), maxPathBytes)
		} else if !path.IsAbs(p) {
			c.bad(where, fmt.Sprintf("write %q", "/"+strings.TrimPrefix(p, "./")), "%s %s is not an absolute path", what, quote(p))
		} else if path.Clean(p) != strings.TrimSuffix(p, "/") && p != "/" {
			c.bad(where, fmt.Sprintf("write %q", path.Clean(p)), "%s %s has empty, . or .. parts", what, quote(p))
		}
	}
	if t.Rootfs != "" {
		absolute(join(where, "rootfs"), "rootfs", t.Rootfs)
	}
	if t.Cwd != "" {
		absolute(join(where, "cwd"), "cwd", t.Cwd)
	}
	for i, m := range t.Mounts {
		at := fmt.Sprintf("%s[%d]", join(where, "mounts"), i)
		absolute(join(at, "source"), "source", m.Source)
		absolute(join(at, "path"), "path", m.Path)
		if m.Path == "/" {
			c.bad(join(at, "path"), "a whole root is rootfs = \"/dir\"", "a mount cannot hide the root of the task")
		}
		if top, _, _ := strings.Cut(strings.TrimPrefix(m.Path, "/"), "/"); slices.Contains(noMounts, top) {
			c.bad(join(at, "path"), "choose another path, such as "+quote("/opt/"+path.Base(m.Path)), "nothing can be mounted in /%s", top)
		}
	}
	for i, p := range t.Packages {
		at := fmt.Sprintf("%s[%d].path", join(where, "packages"), i)
		absolute(at, "path", p.Path)
	}
}

// span checks a time that was given as a bare number; text is checked when it
// is read.
func (c check) span(where string, ns int64) {
	if ns > maxSpanNs {
		c.bad(where, "", "%s is too long; at most 24h", quantityText(ns, unitTime))
	}
}

func (c check) health(where string, h *borgpb.HealthCheck, ports []string) {
	c.span(join(where, "period_ns"), h.PeriodNs)
	if h.TimeoutNs > maxCheckTimeoutNs {
		c.bad(join(where, "timeout_ns"), "", "%s is too long for one check; at most %s", quantityText(h.TimeoutNs, unitTime), quantityText(maxCheckTimeoutNs, unitTime))
	}
	c.span(join(where, "start_grace_ns"), h.StartGraceNs)
	switch {
	case h.HttpPath == "" && len(h.Command) == 0 && len(ports) == 0:
		c.bad(where, `write http = "/healthz" or command = ["/bin/check"], or add ports = ["http"] to the task`, "a health check needs a path, a command or a port")
	case h.HttpPath != "" && len(h.Command) > 0:
		c.bad(where, "leave one of them out", "a health check has a path or a command, not both")
	case h.HttpPath != "" && len(ports) == 0:
		c.bad(where, `add ports = ["http"] to the task`, "an HTTP check needs a port")
	case h.HttpPath != "" && !strings.HasPrefix(h.HttpPath, "/"):
		c.bad(join(where, "http_path"), fmt.Sprintf("write %q", "/"+h.HttpPath), "path %s does not begin with /", quote(h.HttpPath))
	case h.Port != "" && len(h.Command) > 0:
		c.bad(join(where, "port"), "leave it out", "a command is not asked by a port")
	case h.Port != "" && !contains(ports, h.Port):
		c.bad(join(where, "port"), "it has "+strings.Join(ports, ", "), "the task has no port %q", h.Port)
	}
}

func (c check) constraints(where string, list []*borgpb.Constraint) {
	if len(list) > maxConstraints {
		c.bad(where, "", "%d constraints; there may be %d", len(list), maxConstraints)
	}
	for i, k := range list {
		at := fmt.Sprintf("%s[%d]", where, i)
		if k.Key == "" || len(k.Key) > maxLabelKeyBytes {
			c.bad(at, `write "arch=amd64", or constraint(key = "arch", value = "amd64")`, "a constraint needs a key of 1 to %d bytes", maxLabelKeyBytes)
		}
		switch k.Relation {
		case borgpb.Relation_RELATION_LESS_THAN, borgpb.Relation_RELATION_GREATER_THAN,
			borgpb.Relation_RELATION_LESS_THAN_EQUAL, borgpb.Relation_RELATION_GREATER_THAN_EQUAL:
			if _, err := strconv.ParseInt(k.Value, 10, 64); err != nil {
				c.bad(at, "=, != compare text", "%s is not a whole number, and only those are larger or smaller", quote(k.Value))
			}
		case borgpb.Relation_RELATION_PRESENT, borgpb.Relation_RELATION_NOT_PRESENT:
			if k.Value != "" {
				c.bad(at, "leave the value out, or use =", "a constraint on presence has no value")
			}
		}
		if len(k.Value) > maxLabelBytes {
			c.bad(at, "", "a value of %d bytes; it may have %d", len(k.Value), maxLabelBytes)
		}
	}
}

func (c check) resources(where string, r *borgpb.Resources, ofTask bool) {
	if r == nil {
		return
	}
	if ofTask && r.Ports != 0 {
		c.bad(join(where, "ports"), `write ports = ["http"] in the task`, "a task's ports are named, not counted")
	}
	if r.MemBytes > 0 && r.MemBytes < minMemBytes {
		c.bad(join(where, "mem_bytes"), fmt.Sprintf("did you mean %q?", tooSmall(c.d.origins[join(where, "mem_bytes")].text)), "%d bytes of memory are less than any program needs", r.MemBytes)
	}
	for _, q := range []struct {
		name    string
		n, most int64
		unit    unit
	}{
		{"cpu_milli", r.CpuMilli, maxCPUMilli, unitCPU}, {"mem_bytes", r.MemBytes, maxAmountBytes, unitBytes},
		{"disk_bytes", r.DiskBytes, maxAmountBytes, unitBytes}, {"disk_bytes_per_s", r.DiskBytesPerS, maxAmountBytes, unitBytes},
		{"ports", r.Ports, maxPortCount, unitNone},
	} {
		if q.n > q.most {
			c.bad(join(where, q.name), "", "%s is too large; at most %s", amountText(q.n, q.unit), amountText(q.most, q.unit))
		}
	}
	if len(r.Devices) > maxDevices {
		c.bad(join(where, "devices"), "", "%d kinds of devices; there may be %d", len(r.Devices), maxDevices)
	}
	for _, k := range sortedKeys(r.Devices) {
		c.name(join(join(where, "devices"), k), "device", k)
		if r.Devices[k] > maxDeviceCount {
			c.bad(join(join(where, "devices"), k), "", "%d devices are too many; at most %d", r.Devices[k], maxDeviceCount)
		}
	}
	if r.Devices[borgpb.ExclusiveCPU] != 0 || r.DeviceMilli[borgpb.ExclusiveCPU] != 0 {
		c.bad(where, "write exclusive_cores = True, and how much cpu", "%s cannot be asked for as a device", borgpb.ExclusiveCPU)
	}
	c.shares(where, r)
}

// shares checks what is asked for of single devices.
func (c check) shares(where string, r *borgpb.Resources) {
	shares := join(where, "device_milli")
	if n := len(r.Devices) + len(r.DeviceMilli); len(r.DeviceMilli) > 0 && n > maxDevices {
		c.bad(shares, "", "%d kinds of devices; there may be %d", n, maxDevices)
	}
	for _, k := range sortedKeys(r.DeviceMilli) {
		at, n := join(shares, k), r.DeviceMilli[k]
		c.name(at, "device", k)
		switch {
		case n < 1 || n > 999:
			c.bad(at, fmt.Sprintf(`a share is 1 to 999 thousandths of one device; whole ones are devices = {%q: 1}`, k), "%d is no share of a device", n)
		case r.Devices[k] != 0:
			c.bad(at, "leave one of them out", "a share of %s and whole ones are asked for", quote(k))
		}
	}
}

func amountText(n int64, u unit) string {
	if u == unitNone {
		return strconv.FormatInt(n, 10)
	}
	return quantityText(n, u)
}

func (c check) allocSet(a *borgpb.AllocSetSpec) {
	c.priority(a.Priority)
	if a.Allocs < 1 || a.Allocs > maxTasks {
		c.bad("allocs", "", "%d allocs; an alloc set has 1 to %d", a.Allocs, maxTasks)
	}
	if a.Gang && a.Allocs > maxGang {
		c.bad("gang", "", "a gang of %d allocs; it may have %d", a.Allocs, maxGang)
	}
	if a.Resources.GetCpuMilli() == 0 || a.Resources.GetMemBytes() == 0 {
		c.lacks("resources", `write resources = resources(cpu = 1, mem = "1GiB")`, "an alloc set must say how much cpu and mem each alloc holds")
	}
	c.resources("resources", a.Resources, false)
	c.constraints("constraints", a.Constraints)
	c.maxPer(a.MaxPer)
	c.preemptWait(a.PreemptWaitNs, a.Preempt)
	c.saver(a.Saver, a.Resources)
	c.volumesOf("volumes", nil, a.Volumes)
}
