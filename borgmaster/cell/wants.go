package cell

import (
	"path"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// These are the rules for what a submitted or updated spec must and must not contain. Package
// cfg checks the same in job files, to point at the line; these checks hold for all clients.
// An op without a user is exempt: the cell's own, and those that load a recorded cell, whose
// tasks run already.

// unmountable are the top-level directories with mounts that every task has.
var unmountable = []string{"proc", "sys", "dev", ".borg"}

// checkWants checks what the tasks of a spec ask for, overrides and filled in defaults
// included.
func (c *Cell) checkWants(s *Spec) *borgpb.Refusal {
	if c.now.asker.GetUser() == "" {
		return nil
	}
	if s.Proto.Scheduler != "" {
		return invalid("spec.scheduler", "a job cannot choose its scheduler; leave it out")
	}
	for i, n := range s.needs {
		if r := checkTaskWants(n.Task); r != nil {
			if i > 0 {
				return inField("spec.overrides", r)
			}
			return inField("spec.task", r)
		}
	}
	return nil
}

// inField places a refusal whose field, if it names one, is within another one.
func inField(where string, r *borgpb.Refusal) *borgpb.Refusal {
	if r.Field != "" {
		where += "." + r.Field
	}
	r.Field = where
	return r
}

// checkTaskWants checks what one task asks for. Refusals name fields of the task.
func checkTaskWants(t *borgpb.TaskSpec) *borgpb.Refusal {
	if r := checkAmounts(t.Resources, "a task"); r != nil {
		return r
	}
	if r := checkProgram(t); r != nil {
		return r
	}
	if r := checkProbe(t.Health, t.Ports); r != nil {
		return inField("health", r)
	}
	if r := checkProbe(t.Ready, t.Ports); r != nil {
		return inField("ready", r)
	}
	if t.Ready.GetStartGraceNs() != 0 {
		return invalid("ready.start_grace_ns", "a check of readiness has no grace: a task that is not ready yet goes on; leave it out")
	}
	return checkPaths(t)
}

// checkSetWants is checkWants for an alloc set.
func (c *Cell) checkSetWants(s *borgpb.AllocSetSpec) *borgpb.Refusal {
	if c.now.asker.GetUser() == "" {
		return nil
	}
	if r := checkAmounts(s.Resources, "an alloc"); r != nil {
		return inField("spec", r)
	}
	return nil
}

// checkAmounts requires amounts of processor and memory. Without them a task would be charged
// nothing, have no limit on its machine, and use what others pay for.
func checkAmounts(r *borgpb.Resources, what string) *borgpb.Refusal {
	if r.GetCpuMilli() == 0 || r.GetMemBytes() == 0 {
		return invalid("resources", "%s must say how much cpu and memory it may use; an operator can say what is meant for a user's tasks that do not: borgcfg quota bounds USER", what)
	}
	return nil
}

// checkProgram checks the environment and the names of ports of a task. Only the machine can
// tell whether the program and the packages exist.
func checkProgram(t *borgpb.TaskSpec) *borgpb.Refusal {
	for _, k := range sortedKeys(t.Env) {
		if !validEnvName(k) {
			return invalid("env", "%q is not the name of an environment variable: want letters, digits and _, no digit first", clip(k, 64))
		}
	}
	for _, name := range t.Ports {
		if strings.Trim(name, "0123456789") == "" {
			return invalid("ports", "port %s is a number; the cell grants the numbers: name it, such as http", name)
		}
	}
	return nil
}

func validEnvName(name string) bool {
	for i, b := range []byte(name) {
		letter := b == '_' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
		if !letter && (i == 0 || b < '0' || b > '9') {
			return false
		}
	}
	return name != ""
}

// maxProbePathBytes is the length of the path of an HTTP check.
const maxProbePathBytes = 2_048

// checkProbe checks a health or readiness check. The path becomes part of a URL whose host is
// the task's address, and must not be able to change the host.
func checkProbe(h *borgpb.HealthCheck, ports []string) *borgpb.Refusal {
	if h == nil {
		return nil
	}
	odd := func(r rune) bool { return r <= ' ' || r == 0x7f }
	switch {
	case h.HttpPath == "" && len(h.Command) == 0 && len(ports) == 0:
		return invalid("", "a check needs a path, a command or a port")
	case h.HttpPath != "" && len(h.Command) > 0:
		return invalid("", "a check has a path or a command, not both")
	case h.HttpPath != "" && len(ports) == 0:
		return invalid("", "an HTTP check needs a port of the task")
	case h.HttpPath != "" && h.HttpPath[0] != '/':
		return invalid("http_path", "%q does not begin with /", clip(h.HttpPath, 128))
	case len(h.HttpPath) > maxProbePathBytes:
		return limit("http_path", "%d bytes; at most %d", len(h.HttpPath), maxProbePathBytes)
	case strings.ContainsFunc(h.HttpPath, odd):
		return invalid("http_path", "%q has blanks or control characters; write them as %%20", clip(h.HttpPath, 128))
	case h.Port != "" && len(h.Command) > 0:
		return invalid("port", "a command is not asked by a port")
	case h.Port != "" && !slices.Contains(ports, h.Port):
		return invalid("port", "the task has no port %q", clip(h.Port, 64))
	}
	return nil
}

// checkPaths requires clean paths, and mounts that hide neither the root nor the directories
// that every task needs.
func checkPaths(t *borgpb.TaskSpec) *borgpb.Refusal {
	clean := func(p string) bool { return p == "/" || p != "//" && path.Clean(p) == strings.TrimSuffix(p, "/") }
	bad := func(field, p string) *borgpb.Refusal {
		return invalid(field, "%q has empty, . or .. parts; write %s", clip(p, 128), clip(path.Clean(p), 128))
	}
	for _, q := range []struct{ name, path string }{{"cwd", t.Cwd}, {"rootfs", t.Rootfs}} {
		if q.path != "" && !clean(q.path) {
			return bad(q.name, q.path)
		}
	}
	for _, p := range t.Packages {
		if !clean(p.Path) {
			return bad("packages", p.Path)
		}
	}
	for _, m := range t.Mounts {
		top, _, _ := strings.Cut(strings.TrimPrefix(m.Path, "/"), "/")
		switch {
		case !clean(m.Source):
			return bad("mounts", m.Source)
		case !clean(m.Path):
			return bad("mounts", m.Path)
		case m.Path == "/":
			return invalid("mounts", "a mount cannot hide the root of the task; a whole root is rootfs")
		case slices.Contains(unmountable, top):
			return invalid("mounts", "nothing can be mounted in /%s", top)
		}
	}
	return nil
}

// checkPriorityIn refuses a job of higher priority than its alloc set. Its tasks are charged
// nothing, because the set's resources were charged at the set's priority.
func (c *Cell) checkPriorityIn(set *AllocSet, s *borgpb.JobSpec) *borgpb.Refusal {
	if c.now.asker.GetUser() == "" || s.Priority <= set.spec.Priority {
		return nil
	}
	return invalid("spec.priority", "priority %d in alloc set %s, which has priority %d: the set paid for the room; give the job that priority at most, or the set a higher one",
		s.Priority, set.key, set.spec.Priority)
}

// checkSetPriority refuses a priority of an alloc set below that of a live job of its owner
// that uses it or waits for it.
func (c *Cell) checkSetPriority(key JobKey, priority int32) *borgpb.Refusal {
	for _, j := range c.jobRefs.inSet[key] {
		if j.key.User != key.User {
			continue
		}
		for _, s := range j.specs {
			if s.Proto.AllocSet != "" && s.allocSet == key && s.Proto.Priority > priority {
				return invalid("spec.priority", "job %s is to run in this alloc set and has priority %d; give the set at least that, or the job less", j.key, s.Proto.Priority)
			}
		}
	}
	return nil
}
