package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/beneath"
	"borg/proto/borgpb"
)

// markerVariable is in the environment of every plain process of a task, so
// that what a dead shim left is found.
const markerVariable = "BORG_COPY"

func marker(cfg Config, id borglet.ID) string { return cfg.RunDir + "#" + id.String() }

// beginProcess starts a task as a plain process, in a session of its own.
func beginProcess(o *order, stdout, stderr *os.File) (*begun, error) {
	l := &o.Launch
	path, err := lookPath(l.Args[0], l.Env, l.Cwd)
	if err != nil {
		return nil, &taskError{err: err}
	}
	if info, err := os.Stat(l.Cwd); err != nil || !info.IsDir() {
		return nil, inWay(borgpb.ExitReason_EXIT_REASON_WORKING_DIRECTORY, fmt.Errorf("working directory %s: there is no such directory on the machine", l.Cwd))
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	defer null.Close()
	p, err := os.StartProcess(path, l.Args, &os.ProcAttr{
		Dir:   l.Cwd,
		Env:   append(l.Env, markerVariable+"="+o.Marker),
		Files: []*os.File{null, stdout, stderr},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		err = fmt.Errorf("start %q: %w", l.Args[0], errors.Unwrap(err))
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) {
			return nil, err
		}
		return nil, &taskError{err: err}
	}
	// A score may always be raised, and one's own never lowered again.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.Pid), []byte(strconv.Itoa(l.OOMScore)), 0)
	id, err := identify(p.Pid)
	if err != nil {
		id = proc{Pid: p.Pid}
	}
	return &begun{proc: id, wait: func() borglet.ExitFile { return endedProcess(p) }}, nil
}

// endedProcess waits for a plain process and ends what it has left.
func endedProcess(p *os.Process) borglet.ExitFile {
	e := waitProcess(p)
	endSession(p.Pid)
	endChildren()
	return e
}

// endedContainer says how a container has ended whose first process is collected.
func endedContainer(dir string, group paths, state *os.ProcessState, waitErr error) borglet.ExitFile {
	e, ready, ok := readStatus(dir)
	switch {
	case ok:
	case state == nil:
		e = borglet.ExitFile{Unknown: true, Error: waitErr.Error()}
	default:
		// The init itself was killed.
		status(&e, state)
		if !ready && e.Signal == 0 {
			unstarted(dir, &e)
		}
	}
	e.EndedWallNs = time.Now().UnixNano()
	tellKills(&e, group.kills())
	e.MaxMemBytes, e.CPUNs = group.maxMemBytes(), group.cpuNs()
	return e
}

// lookPath finds the program in the task's own search path.
func lookPath(name string, env []string, cwd string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(cwd, path)
		}
		if err := executable(path); err != nil {
			return "", fmt.Errorf("start %q: %w; args[0] must be a program on the machine", name, err)
		}
		return path, nil
	}
	search := ""
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			search = value
		}
	}
	for _, dir := range filepath.SplitList(search) {
		path := filepath.Join(dir, name)
		if filepath.IsAbs(path) && executable(path) == nil {
			return path, nil
		}
	}
	return "", inWay(borgpb.ExitReason_EXIT_REASON_PROGRAM_MISSING, fmt.Errorf("start %q: no such program in PATH=%s; give its absolute path as args[0]", name, search))
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return errors.Unwrap(err)
	case info.IsDir():
		return syscall.EISDIR
	case info.Mode()&0o111 == 0:
		return syscall.EACCES
	}
	return nil
}

func waitProcess(p *os.Process) borglet.ExitFile {
	state, err := p.Wait()
	e := borglet.ExitFile{EndedWallNs: time.Now().UnixNano()}
	if err != nil {
		e.Unknown = true
		return e
	}
	e.CPUNs = int64(state.UserTime() + state.SystemTime())
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		e.MaxMemBytes = usage.Maxrss << 10
	}
	status(&e, state)
	return e
}

// status takes over a wait status. Its type is syscall's, whatever package
// started the process.
func status(e *borglet.ExitFile, state *os.ProcessState) {
	ws, ok := state.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		e.Signal = int32(ws.Signal())
		return
	}
	e.Code = int32(state.ExitCode())
}

// endSession kills what is left of a task's session.
func endSession(session int) {
	for range 100 {
		left := 0
		for _, pid := range pids() {
			fields, err := statFields(pid)
			if err != nil || fields[statSession] != strconv.Itoa(session) || fields[statState] == "Z" {
				continue
			}
			left++
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if left == 0 {
			return
		}
	}
}

// maxOrphans bounds how many processes of a task are collected after its end.
const maxOrphans = 100_000

// endChildren kills and collects what left the session and became the shim's
// own child when its parent ended.
func endChildren() {
	self := strconv.Itoa(os.Getpid())
	for range maxOrphans {
		for _, pid := range pids() {
			if fields, err := statFields(pid); err == nil && fields[statPpid] == self {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		var ws unix.WaitStatus
		if _, err := unix.Wait4(-1, &ws, 0, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return // no children
		}
	}
}

func pids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	list := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// processBackend is the borglet's side of plain processes.
type processBackend struct{ cfg Config }

func newProcessBackend(cfg Config) backend { return &processBackend{cfg} }

func (b *processBackend) prepare(*order) error { return nil }

func (b *processBackend) remember(*order) {}

func (b *processBackend) settleShared() error { return nil }

func (b *processBackend) started(*order) error { return nil }

func (b *processBackend) capabilities() borglet.Capabilities {
	return borglet.Capabilities{Runtime: kindProcess, Cgroup: "none", Seccomp: "none", Userns: "none", Ports: "told"}
}

// orphan finds the process that has the copy's marker and leads its session.
func (b *processBackend) orphan(id borglet.ID, _ string) (proc, bool) {
	found := marked(marker(b.cfg, id))
	for _, p := range found {
		fields, err := statFields(p.Pid)
		if err == nil && fields[statSession] == strconv.Itoa(p.Pid) {
			return p, true
		}
	}
	return proc{}, false
}

// marked lists the processes that carry a marker.
func marked(value string) []proc {
	want := "\x00" + markerVariable + "=" + value
	var found []proc
	for _, pid := range pids() {
		env, err := beneath.ReadProc(fmt.Sprintf("/proc/%d", pid), "environ")
		if err != nil {
			continue
		}
		all := "\x00" + string(env)
		_, after, ok := strings.Cut(all, want)
		if !ok {
			continue
		}
		// With a trailing separator in value it is a prefix.
		if rest := after; strings.HasSuffix(value, "#") || rest == "" || rest[0] == 0 {
			if p, err := identify(pid); err == nil {
				found = append(found, p)
			}
		}
	}
	return found
}

func (b *processBackend) listening(string) bool { return true }

func (b *processBackend) kill(id borglet.ID, p proc) error {
	var err error
	if p.Pid != 0 {
		// The leader last: its end is what is waited for.
		for _, pid := range pids() {
			fields, statErr := statFields(pid)
			if statErr == nil && pid != p.Pid && fields[statSession] == strconv.Itoa(p.Pid) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		err = p.signal(unix.SIGKILL)
	}
	return err
}

func (b *processBackend) settle(id borglet.ID, p proc) oomKills {
	endSession(p.Pid)
	for _, left := range marked(marker(b.cfg, id)) {
		_ = left.signal(unix.SIGKILL)
	}
	return oomKills{}
}

func (b *processBackend) update(*borglet.Launch) error { return nil }

// allocStats: nothing holds together what runs in an alloc.
func (b *processBackend) allocStats([]string) map[string]borglet.Stats { return nil }

func (b *processBackend) destroy(borglet.ID) error { return nil }

func (b *processBackend) block(map[borglet.ID][]borglet.Listener) error { return nil }

func (b *processBackend) close() {}

// ticksPerSecond of /proc times; the kernel's USER_HZ is 100 on all machines.
const ticksPerSecond = 100

// sessions are the runs by their sessions, as /proc names them.
func sessions(runs map[borglet.ID]proc) map[string]borglet.ID {
	by := make(map[string]borglet.ID, len(runs))
	for id, p := range runs {
		by[strconv.Itoa(p.Pid)] = id
	}
	return by
}

// kills: plain processes have no limit of memory, and no cgroup that counts.
func (b *processBackend) kills(map[borglet.ID]proc) map[borglet.ID]borglet.Kills { return nil }

func (b *processBackend) cgroups(map[borglet.ID]proc) map[borglet.ID]paths { return nil }

func (b *processBackend) members(runs map[borglet.ID]proc) (map[borglet.ID][]int, error) {
	by, found := sessions(runs), make(map[borglet.ID][]int, len(runs))
	for _, pid := range pids() {
		fields, err := statFields(pid)
		if err != nil {
			continue
		}
		if id, ok := by[fields[statSession]]; ok {
			found[id] = append(found[id], pid)
		}
	}
	return found, nil
}

// stats adds up the sessions of tasks in one walk over the processes.
func (b *processBackend) stats(runs map[borglet.ID]proc) map[borglet.ID]borglet.Stats {
	if len(runs) == 0 {
		return nil
	}
	now, bySession := time.Now(), sessions(runs)
	out := make(map[borglet.ID]borglet.Stats, len(runs))
	for _, pid := range pids() {
		fields, err := statFields(pid)
		if err != nil {
			continue
		}
		id, ok := bySession[fields[statSession]]
		if !ok {
			continue
		}
		s := out[id]
		s.At = now
		for _, i := range []int{statUser, statSystem} {
			ticks, _ := strconv.ParseInt(fields[i], 10, 64)
			s.CPUNs += ticks * int64(time.Second/ticksPerSecond)
		}
		pages, _ := strconv.ParseInt(fields[statRSS], 10, 64)
		s.MemBytes += pages * int64(os.Getpagesize())
		out[id] = s
	}
	return out
}
