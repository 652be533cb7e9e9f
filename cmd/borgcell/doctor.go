package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
)

// level is how bad a finding is.
type level int

const (
	fine level = iota
	// The cell runs, with less than a real one has.
	weaker
	// The cell cannot run.
	broken
)

func (l level) String() string {
	return [...]string{"ok", "weaker", "broken"}[l]
}

// finding is one thing that was looked at.
type finding struct {
	level level
	// What was looked at, and what was seen.
	what, seen string
	// What to type or do; only where something is amiss.
	fix string
}

const (
	minDiskBytes  = 512 << 20
	goodDiskBytes = 4 << 30
	minMemBytes   = 512 << 20
	goodMemBytes  = 2 << 30
	// Files that one master may have open: pebble's, and a connection for each
	// borglet and client.
	minFiles = 1024
	// Sockets live in the run-time directory and their paths are bounded by
	// the kernel. The longest of ours is a master's scheduler socket.
	longestSocket = "/master-9/scheduler.sock"
	maxSocketPath = 107
)

// diagnose judges the facts: what is fine, what is weaker, what is broken, and
// what to do about it.
func diagnose(f facts) []finding {
	findings := []finding{system(f), programs(f), operator(f)}
	if len(f.missing) == 0 && f.root && f.os == "linux" {
		// Without these there are no containers in any case, as said above.
		findings = append(findings, isolation(f)...)
	}
	return append(findings, files(f), memory(f), disk(f), descriptors(f), counters(f), clock(f), ports(f), taskPorts(f), sockets(f))
}

func system(f facts) finding {
	r := finding{what: "system", seen: fmt.Sprintf("%s %s, %s, %d CPUs, %s of memory", f.os, f.kernel, f.arch, f.cpus, sizeText(f.memBytes))}
	if f.os != "linux" {
		r.level, r.fix = broken, "containers need Linux: use a Linux machine, or a virtual one"
	}
	return r
}

func programs(f facts) finding {
	r := finding{what: "programs", seen: fmt.Sprintf("built by %s, in %s", f.goVersion, f.binDir)}
	if len(f.missing) > 0 {
		r.level, r.seen = broken, fmt.Sprintf("not in %s: %s", f.binDir, strings.Join(f.missing, ", "))
		r.fix = "make, or say where they are: --bin DIRECTORY"
	}
	return r
}

func operator(f facts) finding {
	if f.root {
		return finding{what: "user", seen: "root"}
	}
	return finding{level: weaker, what: "user", seen: "not root, so tasks run as plain processes: no isolation, no limits",
		fix: "for containers: sudo make demo"}
}

// isolation says which runtime tasks will have.
func isolation(f facts) []finding {
	cgo := finding{what: "borglet", seen: "built with cgo, has containers"}
	if !f.borgletCgo {
		cgo = finding{level: weaker, what: "borglet", seen: "built without cgo, so tasks run as plain processes: no isolation, no limits",
			fix: "apt-get install -y gcc libc6-dev && make clean build"}
	}
	groups := finding{what: "cgroups", seen: f.cgroupVersion + ", " + strings.Join(f.controllers, " ")}
	switch {
	case f.cgroupVersion == "none":
		groups.level, groups.seen = weaker, "no cgroups, so tasks run as plain processes: no limits"
		groups.fix = "mount -t cgroup2 none /sys/fs/cgroup"
	case f.cgroupErr != "":
		groups.level, groups.seen = weaker, "cgroups cannot be written: "+f.cgroupErr+"; tasks run as plain processes: no limits"
		groups.fix = "run outside of a container, or in one that may write /sys/fs/cgroup (docker run --privileged)"
	case len(f.controllersMissing) > 0:
		groups.level, groups.seen = weaker, f.cgroupVersion+" without "+strings.Join(f.controllersMissing, ", ")+": no such limits"
		groups.fix = "v2: echo +cpu +memory +pids > /sys/fs/cgroup/cgroup.subtree_control; v1: mount the controllers"
	}
	names := finding{what: "namespaces", seen: "mount, pid, ipc, uts; user namespaces: yes"}
	if !f.userNamespaces {
		names = finding{level: weaker, what: "namespaces", seen: "mount, pid, ipc, uts; user namespaces: no, so root in a task is the machine's root without capabilities",
			fix: "use a kernel with CONFIG_USER_NS=y, and sysctl user.max_user_namespaces above 0"}
	}
	if len(f.namespacesMissing) > 0 {
		names.level, names.seen = weaker, "the kernel has no namespace of kind "+strings.Join(f.namespacesMissing, ", ")+"; tasks run as plain processes"
		names.fix = "use a kernel with CONFIG_NAMESPACES=y"
	}
	calls := finding{what: "seccomp", seen: "built with libseccomp: a task may make the system calls of a list, and no others"}
	if !f.borgletSeccomp {
		calls = finding{level: weaker, what: "seccomp", seen: "built without libseccomp, so tasks may make every system call",
			fix: "apt-get install -y libseccomp-dev pkg-config && make clean build"}
	}
	closed := finding{what: "port filter", seen: "nft: ports that a task was not granted are closed to it"}
	if !f.nft {
		closed = finding{level: weaker, what: "port filter", seen: "no nft, so ports that a task uses and was not granted are told, and not closed",
			fix: "apt-get install -y nftables"}
	}
	return []finding{cgo, calls, groups, names, closed, ownNetworks(f), diskLimits(f)}
}

// ownNetworks: a machine where nobody has configured one is as it was meant.
func ownNetworks(f facts) finding {
	switch {
	case f.networkLacks == "":
		return finding{what: "networks", seen: "CNI: tasks can have networks of their own"}
	case f.noNetworkConf:
		return finding{what: "networks", seen: "tasks have their machine's alone: " + f.networkLacks}
	}
	return finding{level: weaker, what: "networks", seen: "tasks have their machine's alone: " + f.networkLacks,
		fix: "apt-get install -y containernetworking-plugins, or mend the file (docs/network.md)"}
}

// diskLimits hold in both ways: few file systems are mounted with project quotas.
func diskLimits(f facts) finding {
	if f.quotaLacks == "" {
		return finding{what: "disk limits", seen: "project quotas: what a task writes beyond its limit is refused"}
	}
	return finding{what: "disk limits", seen: "measured: who writes beyond its limit is ended within half a minute; " + f.quotaLacks}
}

func files(f facts) finding {
	if len(f.toolsMissing) > 0 {
		return finding{level: broken, what: "base files", seen: "not here: " + strings.Join(f.toolsMissing, ", "),
			fix: "tasks use the machine's own /usr read-only; the examples need a shell and the usual tools there: apt-get install -y coreutils findutils"}
	}
	return finding{what: "base files", seen: "/usr, which tasks see read-only, has a shell and tools"}
}

func memory(f facts) finding {
	r := finding{what: "memory", seen: sizeText(f.memFreeBytes) + " free"}
	switch {
	case f.memFreeBytes < minMemBytes:
		r.level, r.fix = broken, "free at least "+sizeText(minMemBytes)+", or run fewer masters: --masters 1"
	case f.memFreeBytes < goodMemBytes:
		r.level, r.fix = weaker, "five masters and their tasks like "+sizeText(goodMemBytes)+"; or run fewer: --masters 3"
	}
	return r
}

func disk(f facts) finding {
	r := finding{what: "disk", seen: fmt.Sprintf("%s free in %s", sizeText(f.diskFreeBytes), f.dir)}
	switch {
	case f.dirErr != "":
		r.level, r.seen, r.fix = broken, "cannot write "+f.dir+": "+f.dirErr, "choose a directory of yours: --dir DIRECTORY"
	case f.diskFreeBytes < minDiskBytes:
		r.level, r.fix = broken, "free at least "+sizeText(minDiskBytes)+", or choose another disk: --dir DIRECTORY"
	case f.diskFreeBytes < goodDiskBytes:
		r.level, r.fix = weaker, "logs and checkpoints like "+sizeText(goodDiskBytes)+"; --dir chooses another disk"
	}
	return r
}

func descriptors(f facts) finding {
	r := finding{what: "open files", seen: fmt.Sprintf("up to %d for a process", f.fileLimit)}
	if f.fileLimit < minFiles {
		r.level, r.fix = broken, fmt.Sprintf("ulimit -Hn %d", 64*minFiles)
	}
	return r
}

// clock judges the wall clock. Only cron, expiry and display use it, but one
// that is years off makes nonsense of them.
func clock(f facts) finding {
	r := finding{what: "clock", seen: f.now.UTC().Format(time.RFC3339)}
	if f.now.Before(f.built.Add(-24 * time.Hour)) {
		r.level, r.seen = weaker, fmt.Sprintf("%s is before these programs were built (%s)", r.seen, f.built.UTC().Format(time.RFC3339))
		r.fix = "set the clock: timedatectl set-ntp true"
	}
	return r
}

func ports(f facts) finding {
	if len(f.portsTaken) > 0 && f.ownRuns {
		// Those of a killed run are swept before the next one listens.
		return finding{what: "ports", seen: "in use by this cell's own processes"}
	}
	if len(f.portsTaken) > 0 {
		return finding{level: broken, what: "ports", seen: "in use by another program: " + strings.Join(f.portsTaken, ", "),
			fix: fmt.Sprintf("see who has them: ss -ltnp; or take others: --port-base %d", f.otherPortBase)}
	}
	return finding{what: "ports", seen: fmt.Sprintf("%s are free", strings.Join(f.portsFree, ", "))}
}

// maxPortsNamed bounds the ports that one finding names.
const maxPortsNamed = 8

func taskPorts(f facts) finding {
	if len(f.taskPortsHeld) == 0 {
		return finding{what: "task ports", seen: "none that tasks may be granted is held by another program"}
	}
	named := strings.Join(f.taskPortsHeld[:min(len(f.taskPortsHeld), maxPortsNamed)], ", ")
	if more := len(f.taskPortsHeld) - maxPortsNamed; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return finding{level: weaker, what: "task ports", seen: "held by other programs, so tasks that are granted them are placed again: " + named,
		fix: "stop those programs, or grant others: --task-port-base PORT"}
}

func sockets(f facts) finding {
	longest := len(f.runDir) + len(longestSocket)
	if longest > maxSocketPath {
		return finding{level: broken, what: "sockets", seen: fmt.Sprintf("paths in %s would have up to %d bytes; a socket path may have %d", f.runDir, longest, maxSocketPath),
			fix: "choose a shorter directory: --run-dir /tmp/borg"}
	}
	if f.runDirErr != "" {
		return finding{level: broken, what: "sockets", seen: "cannot write " + f.runDir + ": " + f.runDirErr, fix: "choose a directory of yours: --run-dir DIRECTORY"}
	}
	return finding{what: "sockets", seen: "in " + f.runDir}
}

// worst is the level of the worst finding.
func worst(findings []finding) level {
	w := fine
	for _, f := range findings {
		w = max(w, f.level)
	}
	return w
}

// tellFindings writes those findings that are at least so bad.
func tellFindings(w io.Writer, findings []finding, from level) {
	for _, f := range findings {
		if f.level < from {
			continue
		}
		fmt.Fprintf(w, "%-7s %-11s %s\n", f.level, f.what, f.seen)
		if f.fix != "" {
			fmt.Fprintf(w, "%19s fix: %s\n", "", f.fix)
		}
	}
}

// preflight looks before a cell is started: it says what is weaker, and
// refuses what cannot run.
func preflight(ctx context.Context, w io.Writer, l layout) error {
	findings := diagnose(gather(ctx, l))
	tellFindings(w, findings, weaker)
	if worst(findings) == broken {
		return cli.Errorf(cli.Failed, "a cell cannot run here").Hint("mend what is broken above; all that was looked at: borgcell doctor")
	}
	return nil
}

func doctorCommand() *ucli.Command {
	return &ucli.Command{
		Name:  "doctor",
		Usage: "look whether a cell can run here, and say how to mend what is amiss",
		Flags: cellFlags("local", ".borg", 7000, 20000, "warn"),
		Action: func(ctx *ucli.Context) error {
			l, err := layoutFrom(ctx)
			if err != nil {
				return err
			}
			findings := diagnose(gather(ctx.Context, l.place()))
			tellFindings(ctx.App.Writer, findings, fine)
			switch worst(findings) {
			case broken:
				return cli.Errorf(cli.Failed, "a cell cannot run here").Hint("mend what is broken above")
			case weaker:
				fmt.Fprintln(ctx.App.Writer, "a cell can run here, in a weaker way")
			case fine:
				fmt.Fprintln(ctx.App.Writer, "a cell can run here")
			}
			return nil
		},
	}
}

func sizeText(bytes uint64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20))
}
