package cell

import (
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// checkJobSpec range-checks everything of a job spec except what single tasks
// ask for, which is checked after the overrides have been applied.
func checkJobSpec(key JobKey, s *borgpb.JobSpec, format uint32) *borgpb.Refusal {
	switch s.Kind {
	case borgpb.JobKind_JOB_KIND_SERVICE, borgpb.JobKind_JOB_KIND_BATCH:
	case borgpb.JobKind_JOB_KIND_DAEMON, borgpb.JobKind_JOB_KIND_CRON:
		if format >= FormatKinds {
			break
		}
		fallthrough
	default:
		return invalid("spec.kind", "want service or batch")
	}
	switch {
	case s.Kind == borgpb.JobKind_JOB_KIND_DAEMON:
		if r := checkDaemonSpec(s); r != nil {
			return r
		}
	case s.Kind == borgpb.JobKind_JOB_KIND_CRON:
		if r := checkCronSpec(key, s.Cron); r != nil {
			return r
		}
	}
	switch {
	case s.Kind != borgpb.JobKind_JOB_KIND_DAEMON && (s.Tasks < 1 || s.Tasks > maxTasksPerJob):
		return invalid("spec.tasks", "%d is not in 1 to %d", s.Tasks, maxTasksPerJob)
	case s.Priority < 0 || s.Priority > maxPriority:
		return invalid("spec.priority", "%d is not in 0 to %d", s.Priority, maxPriority)
	case s.Task == nil:
		return invalid("spec.task", "is missing")
	case s.MaxFailures > maxFailures:
		return invalid("spec.max_failures", "%d is over %d", s.MaxFailures, maxFailures)
	case s.Gang && s.Tasks > maxGangTasks:
		return limit("spec.gang", "%d tasks; a gang has at most %d", s.Tasks, maxGangTasks)
	case s.Gang && s.MaxRunning > 0 && s.MaxRunning < s.Tasks:
		return invalid("spec.max_running", "a gang starts as a whole, and %d of its %d tasks may run at once; leave out one or the other", s.MaxRunning, s.Tasks)
	case s.Cron != nil && s.Kind != borgpb.JobKind_JOB_KIND_CRON:
		return invalid("spec.cron", "only a cron job has one")
	case len(s.Overrides) > maxOverrides:
		return limit("spec.overrides", "%d overrides; at most %d", len(s.Overrides), maxOverrides)
	case s.Scheduler != "" && !validName(s.Scheduler):
		return invalid("spec.scheduler", "%q is not a name: want a-z, 0-9 and -", clip(s.Scheduler, 64))
	}
	for i, o := range s.Overrides {
		if o.First > o.Last || o.Spec == nil {
			return invalid("spec.overrides", "override %d: want first <= last and a spec", i)
		}
	}
	if n := len(s.Extensions); n > maxExtensions {
		return limit("spec.extensions", "%d extensions; at most %d", n, maxExtensions)
	}
	total := 0
	for k, v := range s.Extensions {
		total += len(k) + len(v)
	}
	if total > maxExtensionBytes {
		return limit("spec.extensions", "%d bytes; at most %d", total, maxExtensionBytes)
	}
	if r := checkMaxPer(s.MaxPer); r != nil {
		return r
	}
	if r := checkUpdatePolicy(s); r != nil {
		return r
	}
	if r := checkPreemptWait(s.PreemptWaitNs, s.Preempt); r != nil {
		return r
	}
	if r := checkBudget(s.DisruptionBudget); r != nil {
		return r
	}
	return checkJobLinks(key, s)
}

// checkJobLinks checks the names of other objects in a job spec.
func checkJobLinks(key JobKey, s *borgpb.JobSpec) *borgpb.Refusal {
	if r := checkAllocIndex(s); r != nil {
		return r
	}
	if s.AllocSet != "" {
		if _, err := ParseJobKey(s.AllocSet); err != nil {
			return invalid("spec.alloc_set", "%v", err)
		}
	}
	if r := checkStartAfter(key, s); r != nil {
		return r
	}
	if s.Parent != "" {
		if k, err := ParseJobKey(s.Parent); err != nil {
			return invalid("spec.parent", "%v", err)
		} else if k == key {
			return invalid("spec.parent", "a job cannot be its own parent")
		}
	}
	return nil
}

func checkEnv(env map[string]string, field string) *borgpb.Refusal {
	for _, k := range sortedKeys(env) {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(env[k], 0) {
			return invalid(field+".env", "%q is not the name of an environment variable", clip(k, 64))
		}
	}
	return nil
}

// checkTask range-checks what a run of tasks asks for.
func checkTask(t *borgpb.TaskSpec, field string) *borgpb.Refusal {
	if r := checkResources(t.Resources, field+".resources"); r != nil {
		return r
	}
	if n := t.Resources.GetPorts(); n != 0 && n != int64(len(t.Ports)) {
		return invalid(field+".resources.ports", "%d, but %d ports are named; leave it out", n, len(t.Ports))
	}
	if r := checkPortNames(t.Ports, field+".ports"); r != nil {
		return r
	}
	if r := checkConstraints(t.Constraints, field+".constraints"); r != nil {
		return r
	}
	if r := checkTolerations(t.Tolerations, field+".tolerations"); r != nil {
		return r
	}
	if r := checkEnv(t.Env, field); r != nil {
		return r
	}
	for _, a := range t.Args {
		if strings.ContainsRune(a, 0) {
			return invalid(field+".args", "an argument contains a zero byte")
		}
	}
	if t.GraceNs < 0 || t.GraceNs > maxGraceNs {
		return outOfSpan(field+".grace_ns", t.GraceNs, 0, maxGraceNs)
	}
	if r := checkNotice(t, field); r != nil {
		return r
	}
	if r := checkHealth(t.Health, field+".health"); r != nil {
		return r
	}
	if r := checkHealth(t.Ready, field+".ready"); r != nil {
		return r
	}
	if r := checkPushed(t.Files, field+".files"); r != nil {
		return r
	}
	if r := checkVolumes(t.Volumes, field+".volumes", true); r != nil {
		return r
	}
	if r := checkFiles(t, field); r != nil {
		return r
	}
	return checkPapers(t, field)
}

// checkPapers refuses secrets and files that may take more memory than the task has. They
// count in its limit, whatever is in them now.
func checkPapers(t *borgpb.TaskSpec, field string) *borgpb.Refusal {
	most, mem := t.PaperBytes(), t.Resources.GetMemBytes()
	if mem == 0 || most <= mem {
		return nil
	}
	return invalid(field+".resources.mem_bytes", "%d, and its %d secrets and %d files may take %d of it; ask for more memory, or name fewer of them",
		mem, len(t.Secrets), len(t.Files), most)
}

func checkPortNames(names []string, field string) *borgpb.Refusal {
	if len(names) > maxPorts {
		return limit(field, "%d ports; at most %d", len(names), maxPorts)
	}
	for i, n := range names {
		if !validName(n) {
			return invalid(field, "%q is not a port name: want a-z, 0-9 and -", clip(n, 64))
		}
		if slices.Contains(names[:i], n) {
			return invalid(field, "%q is named twice", n)
		}
	}
	return nil
}

func checkConstraints(cs []*borgpb.Constraint, field string) *borgpb.Refusal {
	if len(cs) > maxConstraints {
		return limit(field, "%d constraints; at most %d", len(cs), maxConstraints)
	}
	for i, c := range cs {
		if len(c.Key) == 0 || len(c.Key) > maxLabelKeyBytes || len(c.Value) > maxLabelValueBytes {
			return invalid(field, "constraint %d: want a key of 1 to %d bytes and a value of at most %d",
				i, maxLabelKeyBytes, maxLabelValueBytes)
		}
		switch c.Relation {
		case borgpb.Relation_RELATION_UNSPECIFIED:
			return invalid(field, "constraint %d on %q has no relation", i, c.Key)
		case borgpb.Relation_RELATION_LESS_THAN, borgpb.Relation_RELATION_GREATER_THAN,
			borgpb.Relation_RELATION_LESS_THAN_EQUAL, borgpb.Relation_RELATION_GREATER_THAN_EQUAL:
			if _, ok := parseInt(c.Value); !ok {
				return invalid(field, "constraint %d on %q: %q is not a 64-bit integer", i, c.Key, c.Value)
			}
		}
	}
	return nil
}

func checkTolerations(ts []*borgpb.Toleration, field string) *borgpb.Refusal {
	if len(ts) > maxTolerations {
		return limit(field, "%d tolerations; at most %d", len(ts), maxTolerations)
	}
	for i, t := range ts {
		if len(t.Key) == 0 || len(t.Key) > maxLabelKeyBytes || len(t.Value) > maxLabelValueBytes ||
			t.ForgivenessNs < 0 || t.ForgivenessNs > maxTimeNs {
			return invalid(field, "toleration %d: want a key of 1 to %d bytes, a value of at most %d and no negative time",
				i, maxLabelKeyBytes, maxLabelValueBytes)
		}
	}
	return nil
}

func checkHealth(h *borgpb.HealthCheck, field string) *borgpb.Refusal {
	for _, q := range []struct {
		name    string
		n, most int64
	}{
		{"period_ns", h.GetPeriodNs(), maxGraceNs}, {"timeout_ns", h.GetTimeoutNs(), maxCheckTimeoutNs}, {"start_grace_ns", h.GetStartGraceNs(), maxGraceNs},
	} {
		if q.n < 0 || q.n > q.most {
			return outOfSpan(field+"."+q.name, q.n, 0, q.most)
		}
	}
	return nil
}

// checkMaxRuntime checks how long a run may take. Only work that ends by itself has such
// a limit.
func checkMaxRuntime(job *borgpb.JobSpec, t *borgpb.TaskSpec, field string) *borgpb.Refusal {
	switch {
	case t.MaxRuntimeNs < 0 || t.MaxRuntimeNs > maxRuntimeNs:
		return outOfSpan(field+".max_runtime_ns", t.MaxRuntimeNs, 0, maxRuntimeNs)
	case t.MaxRuntimeFinishes && t.MaxRuntimeNs == 0:
		return invalid(field+".max_runtime_finishes", "there is no max_runtime at which it could finish")
	case t.MaxRuntimeNs > 0 && job.Kind != borgpb.JobKind_JOB_KIND_BATCH && job.Kind != borgpb.JobKind_JOB_KIND_CRON:
		return invalid(field+".max_runtime_ns", "a %s job runs until it is ended; leave it out, or make it a batch job", kindWord(job.Kind))
	}
	return nil
}

func kindWord(k borgpb.JobKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "JOB_KIND_"))
}

// checkFiles checks paths, packages, mounts and secrets.
func checkFiles(t *borgpb.TaskSpec, field string) *borgpb.Refusal {
	absolute := func(p string) bool {
		return strings.HasPrefix(p, "/") && len(p) <= maxPathBytes && !strings.ContainsRune(p, 0)
	}
	switch {
	case t.Cwd != "" && !absolute(t.Cwd):
		return invalid(field+".cwd", "%q is not an absolute path", clip(t.Cwd, 128))
	case t.Rootfs != "" && !absolute(t.Rootfs):
		return invalid(field+".rootfs", "%q is not an absolute path", clip(t.Rootfs, 128))
	case len(t.Packages) > maxPackages:
		return limit(field+".packages", "%d packages; at most %d", len(t.Packages), maxPackages)
	case len(t.Mounts) > maxMounts:
		return limit(field+".mounts", "%d mounts; at most %d", len(t.Mounts), maxMounts)
	case len(t.Secrets) > maxSecrets:
		return limit(field+".secrets", "%d secrets; at most %d", len(t.Secrets), maxSecrets)
	}
	for i, p := range t.Packages {
		if p.Name == "" || !absolute(p.Path) {
			return invalid(field+".packages", "package %d: want a name and an absolute path", i)
		}
		if p.Credentials != "" && !validName(p.Credentials) {
			return invalid(field+".packages", "package %d: %q is not the name of a secret", i, clip(p.Credentials, 64))
		}
	}
	for i, m := range t.Mounts {
		if !absolute(m.Source) || !absolute(m.Path) {
			return invalid(field+".mounts", "mount %d: want absolute paths", i)
		}
	}
	return nil
}

// checkMachine range-checks what is said of a machine.
func (c *Cell) checkMachine(s *borgpb.MachineSpec) *borgpb.Refusal {
	if s == nil {
		return invalid("spec", "is missing")
	}
	if len(s.Addr) == 0 || len(s.Addr) > maxAddrBytes {
		return invalid("spec.addr", "want host:port of its borglet, at most %d bytes", maxAddrBytes)
	}
	if r := checkCapacity(s.Capacity, "spec.capacity"); r != nil {
		return r
	}
	if r := checkAttributes(s.Attributes); r != nil {
		return r
	}
	if r := checkPortRange(s.PortFirst, s.PortLast); r != nil {
		return r
	}
	if r := checkPackages("spec.packages", s.GetPackages().GetPort(), s.GetPackages().GetDigests()); r != nil {
		return r
	}
	return c.checkTaints(s.Taints, "spec.taints")
}

func checkAttributes(attributes map[string]string) *borgpb.Refusal {
	if len(attributes) > maxLabels {
		return limit("spec.attributes", "%d attributes; at most %d", len(attributes), maxLabels)
	}
	for _, k := range sortedKeys(attributes) {
		if len(k) == 0 || len(k) > maxLabelKeyBytes || len(attributes[k]) > maxLabelValueBytes {
			return invalid("spec.attributes", "%q: want a key of 1 to %d bytes and a value of at most %d",
				clip(k, 64), maxLabelKeyBytes, maxLabelValueBytes)
		}
	}
	return nil
}

func checkPortRange(first, last uint32) *borgpb.Refusal {
	if first == 0 && last == 0 {
		return nil
	}
	if first == 0 || first > last || last > 65535 {
		return invalid("spec.port_first", "%d to %d is not a range of ports", first, last)
	}
	return nil
}

// checkAllocSetSpec range-checks an alloc set.
func checkAllocSetSpec(s *borgpb.AllocSetSpec) *borgpb.Refusal {
	switch {
	case s.Allocs < 1 || s.Allocs > maxAllocsPerSet:
		return invalid("spec.allocs", "%d is not in 1 to %d", s.Allocs, maxAllocsPerSet)
	case s.Priority < 0 || s.Priority > maxPriority:
		return invalid("spec.priority", "%d is not in 0 to %d", s.Priority, maxPriority)
	case s.Gang && s.Allocs > maxGangTasks:
		return limit("spec.gang", "%d allocs; a gang has at most %d", s.Allocs, maxGangTasks)
	}
	if r := checkResources(s.Resources, "spec.resources"); r != nil {
		return r
	}
	if r := checkSetVolumes(s); r != nil {
		return r
	}
	if r := checkMaxPer(s.MaxPer); r != nil {
		return r
	}
	if r := checkPreemptWait(s.PreemptWaitNs, s.Preempt); r != nil {
		return r
	}
	if r := checkConstraints(s.Constraints, "spec.constraints"); r != nil {
		return r
	}
	return checkTolerations(s.Tolerations, "spec.tolerations")
}

// parseInt reads a signed 64-bit integer.
func parseInt(s string) (int64, bool) {
	neg := strings.HasPrefix(s, "-")
	n, rest, ok := parseDecimal(strings.TrimPrefix(s, "-"))
	switch {
	case !ok || rest != "":
		return 0, false
	case neg && n <= 1<<63:
		return -int64(n), true
	case !neg && n < 1<<63:
		return int64(n), true
	}
	return 0, false
}
