//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openFiles names the descriptors that this program was started with, and those
// of them that are directories.
func openFiles() string {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return outcome(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return outcome(err)
	}
	var found []string
	for _, name := range names {
		target, err := os.Readlink("/proc/self/fd/" + name)
		fd, _ := strconv.Atoi(name)
		if err != nil || fd == int(dir.Fd()) || strings.HasPrefix(target, "anon_inode:[event") {
			continue // this one, and the Go runtime's own
		}
		var is unix.Stat_t
		if err := unix.Fstat(fd, &is); err == nil && is.Mode&unix.S_IFMT == unix.S_IFDIR {
			name += ":directory"
		}
		found = append(found, name)
	}
	slices.Sort(found)
	return strings.Join(found, " ")
}

// statusField is a line of /proc/self/status.
func statusField(status, key string) string {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return "not there"
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// read is the text of a file in one line, or why there is none.
func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return outcome(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// self is who this process is to the kernel.
func (p *probe) self() {
	// Without it each fact says so.
	text, _ := os.ReadFile("/proc/self/status")
	status := string(text)
	for name, key := range map[string]string{
		"self.capabilities.effective": "CapEff", "self.capabilities.permitted": "CapPrm", "self.capabilities.inheritable": "CapInh",
		"self.capabilities.bounding": "CapBnd", "self.capabilities.ambient": "CapAmb",
		"self.no-new-privs": "NoNewPrivs", "self.seccomp": "Seccomp", "self.uids": "Uid", "self.gids": "Gid", "self.groups": "Groups",
	} {
		p.tell(name, "%s", orNone(statusField(status, key)))
	}
	p.tell("self.uid-map", "%s", idMap("/proc/self/uid_map"))
	p.tell("self.gid-map", "%s", idMap("/proc/self/gid_map"))
	p.try("self.uid-outside", unix.Setresuid(1<<16, -1, -1))
	p.try("self.gid-outside", unix.Setresgid(1<<16, -1, -1))
	p.try("self.write-uid-map", write("/proc/self/uid_map", "0 0 1"))
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		p.try("self.core-limit", err)
	} else {
		p.tell("self.core-limit", "%d %d", core.Cur, core.Max)
	}
	p.try("self.raise-core-limit", unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}, nil))
	p.try("self.lower-oom-score", write("/proc/self/oom_score_adj", "-1000"))
	p.try("self.raise-priority", unix.Setpriority(unix.PRIO_PROCESS, 0, -5))
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil {
		p.try("self.dumpable", err)
	} else {
		p.tell("self.dumpable", "%d", dumpable)
	}
	p.tell("self.cgroups", "%s", cgroups())
	var names []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	p.tell("self.environment", "%s", strings.Join(names, " "))
}

// idMap says how many ids there are, and whether root is the machine's.
func idMap(path string) string {
	text := read(path)
	f := strings.Fields(text)
	switch {
	case len(f) != 3 || f[0] != "0":
		return text
	case f[1] == "0":
		return "the machine's"
	}
	return f[2] + " of its own"
}

// cgroups are the paths that the task's own cgroups seem to have.
func cgroups() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return outcome(err)
	}
	var paths []string
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		path := parts[len(parts)-1]
		// A hierarchy in which the borglet makes no group shows where the task is not.
		if len(parts) == 3 && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return strings.Join(paths, " ")
}

// kinds says of each kind of name space whether it is the machine's.
func (p *probe) kinds() {
	for _, kind := range []string{"mnt", "pid", "ipc", "uts", "cgroup", "user", "net"} {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		got := "its own"
		switch {
		case err != nil:
			got = outcome(err)
		case p.out.namespaces[kind] == "":
			got = "not told of the machine's"
		case p.out.namespaces[kind] == link:
			got = "the machine's"
		}
		p.tell("namespace."+kind, "%s", got)
	}
	name, err := os.Hostname()
	if err != nil {
		name = outcome(err)
	}
	p.tell("namespace.host-name", "%s", name)
}

// processes are the other ones that can be seen and reached.
func (p *probe) processes() {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		p.try("processes.seen", err)
	}
	var seen []string
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			seen = append(seen, process(pid))
		}
	}
	p.tell("processes.seen", "%s", strings.Join(seen, ", "))
	p.try("processes.signal-another-task", unix.Kill(p.out.pid, 0))
	p.tell("processes.see-another-task", "%s", exists("/proc/"+strconv.Itoa(p.out.pid)))
	_, err = os.Readlink("/proc/1/fd/3")
	p.try("processes.init-files", err)
	p.try("processes.init-status", open("/proc/1/fd/3", unix.O_WRONLY))
	p.try("processes.init-memory", open("/proc/1/mem", unix.O_RDWR))
	p.try("processes.init-environment", open("/proc/1/environ", unix.O_RDONLY))
	p.try("processes.write-init-program", open("/.borg/init", unix.O_WRONLY))
	p.try("processes.write-init-program-running", open("/proc/1/exe", unix.O_WRONLY))
}

func process(pid int) string {
	switch pid {
	case 1:
		return "init"
	case os.Getpid():
		return "probe"
	}
	return fmt.Sprintf("%d (%s)", pid, read(fmt.Sprintf("/proc/%d/comm", pid)))
}
