package deploy

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"borg/borgmaster/cell"
)

const (
	// Whatever hangs, all of it is killed then.
	walkTimeout = 4 * time.Minute
	// One block, with all its tries.
	blockTimeout = time.Minute
)

var (
	masters  = []string{"master1", "master2", "master3", "master4", "master5"}
	machines = []string{"machine1", "machine2", "machine3"}
)

// TestInstall does what docs/install.md says on eight machines, which are
// namespaces of this one: it types the blocks of the page there, then upgrades all
// programs as the page says while jobs are submitted, removes a machine, and replaces a
// master.
func TestInstall(t *testing.T) {
	if os.Getenv(modeVar) == "walk" {
		walk(t)
		return
	}
	if testing.Short() {
		t.Skip("installs a cell in namespaces: make e2e")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, for namespaces")
	}
	for _, tool := range []string{"ip", "nsenter", "unshare", "mount", "runuser", "setpriv", "useradd", "shred", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the tool %s (Debian: iproute2, util-linux, passwd, coreutils, make)", tool)
		}
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	builds := staticBuilds(ctx, t)
	for _, program := range []string{"borgmaster", "borglet", "borgcfg"} {
		wantsNothing(t, filepath.Join(builds, "1", "static", program))
	}
	ctx, cancel := context.WithTimeout(ctx, walkTimeout)
	defer cancel()
	removeCgroups(t)
	defer removeCgroups(t)
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestInstall$", "-test.v", "-test.timeout="+walkTimeout.String())
	cmd.Env = append(os.Environ(), modeVar+"=init", "BORG_INSTALL_BUILDS="+builds, "BORG_INSTALL_DIR="+t.TempDir())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	// When process 1 of the namespaces is gone, so is all that was made in them.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	// Pdeathsig goes by the thread that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	t.Logf("%s", out.String())
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("namespaces cannot be made here: %v", err)
	}
	if ctx.Err() != nil {
		t.Fatalf("ended before it was done: %v", context.Cause(ctx))
	}
	if err != nil {
		t.Fatalf("the walk through %s: %v", page, err)
	}
	if m := regexp.MustCompile(`--- SKIP: TestInstall.*\n\s*(.*)`).FindStringSubmatch(out.String()); m != nil {
		t.Skip(m[1])
	}
}

// staticBuilds makes two builds of the programs, in 1/static and 2/static, which
// differ in what they call themselves. BORG_STATIC names a directory with such.
func staticBuilds(ctx context.Context, t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("BORG_STATIC"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	for _, n := range []string{"1", "2"} {
		// To guide the compiler by a profile takes minutes, and says nothing of the page.
		cmd := exec.CommandContext(ctx, "make", "-C", "..", "static", "GUIDED=", "PROGRAMS=borgmaster borglet borgcfg", "BIN="+filepath.Join(dir, n), "VERSION=test-"+n)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make static: %v\n%s", err, out)
		}
	}
	return dir
}

// wantsNothing holds that a program runs on a machine without any library.
func wantsNothing(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	loader := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if err != nil || loader || len(libraries) > 0 {
		t.Errorf("%s wants the libraries %v (%v), and a loader: %v", path, libraries, err, loader)
	}
}

// removeCgroups removes the cgroups that a run has left, which are empty once its
// processes have ended.
func removeCgroups(t *testing.T) {
	var dirs []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.ContainsFunc(machines, func(m string) bool { return strings.Contains(path+"/", "/borg/"+m+"/") }) {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs)
	for _, dir := range dirs {
		// The last process of a killed namespace may take a moment to go.
		for range 100 {
			err := os.Remove(dir)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("left: %s", dir)
		}
	}
}

// site is the machines of the walk.
type site struct {
	t *testing.T
	// Of the test, and with a directory for each host.
	dir   string
	hosts map[string]*host
	// Where the stand-ins are, and which host has which address.
	binDir, addrDir string
}

// host is one of them: a network, mounts and a name of its own.
type host struct {
	name, addr string
	// Number within its kind.
	n int
	// Where its private directories are.
	dir string
	// The process that holds its namespaces.
	holder int
}

// home is where root's commands are typed; a directory of the host's own.
const home = "/home/root"

// walk is the test, inside.
func walk(t *testing.T) {
	s := newSite(t)
	blocks, err := readPage()
	if err != nil {
		t.Fatal(err)
	}
	defer s.showLogs()
	s.run(blocks, "")
	before := s.tasks("first")
	if len(before) != 3 {
		t.Fatalf("the first job runs as %v, want 3 tasks", before)
	}
	// What ends by itself is started again, and takes nothing with it.
	s.crash("master2", "borgmaster")
	s.crash("machine1", "borglet")
	s.until(s.hosts["master1"], "borgcfg status -o wide", regexp.MustCompile(`(?s)elected, term.* 3 up, 0 down.*(follows \d.*){4}`))
	load := s.startLoad()
	if format := load.format(); format != cell.BuildFormat-1 {
		t.Fatalf("the older build has a cell of format %d, want %d", format, cell.BuildFormat-1)
	}
	s.copyBuild("2")
	s.run(blocks, "upgrade")
	if format := load.format(); format != cell.BuildFormat-1 {
		t.Errorf("while the way back is kept open the format is %d, want %d", format, cell.BuildFormat-1)
	}
	s.run(blocks, "raise")
	load.untilFormat(cell.BuildFormat)
	load.end()
	if now := s.tasks("first"); !maps.Equal(before, now) {
		t.Errorf("an upgrade touches no task: before it ran %v, now %v", before, now)
	}
	s.allUpgraded()
	s.run(blocks, "remove")
	s.run(blocks, "replace")
	if left := s.tasksOn("machine3"); len(left) > 0 {
		t.Errorf("machine3 was drained and removed, and runs %v", left)
	}
	if len(s.tasks("first")) != 3 {
		t.Errorf("after machine3 was removed the first job runs as %v, want 3 tasks", s.tasks("first"))
	}
}

// run types the blocks of one part of the page.
func (s *site) run(blocks []*block, part string) {
	s.t.Helper()
	for _, b := range blocks {
		if b.part != part {
			continue
		}
		for _, name := range b.on {
			if name == "build" {
				s.build(b, "1")
				continue
			}
			s.typeBlock(s.hosts[name], b)
			if b.each != nil {
				s.until(s.hosts["master1"], "borgcfg status -o wide", b.each)
			}
		}
	}
}

// build gives each host what the page builds: it has been built before.
func (s *site) build(b *block, n string) {
	s.t.Helper()
	if !strings.HasPrefix(b.text, "make static VERSION=") {
		s.t.Fatalf("%s:%d: expected make static, not:\n%s", page, b.line, b.text)
	}
	s.copyBuild(n)
	// As if this build did not know the latest format.
	for _, name := range masters {
		s.sh(fmt.Sprintf("echo 'max-format: %d' >> %s/home/root/deploy/borgmaster.yaml", cell.BuildFormat-1, s.hosts[name].dir))
	}
}

func (s *site) copyBuild(n string) {
	s.t.Helper()
	for _, h := range s.hosts {
		s.sh(fmt.Sprintf("mkdir -p %[1]s/home/root/deploy; cp -r %[2]s/%[3]s/static %[1]s/home/root/; cp *.service *.yaml %[1]s/home/root/deploy/",
			h.dir, os.Getenv("BORG_INSTALL_BUILDS"), n))
	}
}

func (s *site) typeBlock(h *host, b *block) {
	s.t.Helper()
	if b.until != nil {
		s.until(h, b.text, b.until)
		return
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), blockTimeout)
	defer cancel()
	out, err := s.command(ctx, h, b.text).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s:%d on %s: %v\n%s\nsays:\n%s", page, b.line, h.name, err, b.text, out)
	}
	s.t.Logf("%s:%d on %s\n%s", page, b.line, h.name, out)
}

// until types a command until its output is what is wanted.
func (s *site) until(h *host, text string, want *regexp.Regexp) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), blockTimeout)
	defer cancel()
	for {
		out, err := s.command(ctx, h, text).CombinedOutput()
		if err == nil && want.Match(out) {
			return string(out)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			s.t.Fatalf("on %s, %q never says %q but (%v):\n%s", h.name, strings.TrimSpace(text), want, err, out)
		}
	}
}

// command is a shell of root's on a host.
func (s *site) command(ctx context.Context, h *host, text string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", "--target", fmt.Sprint(h.holder), "--mount", "--net", "--uts", "--",
		"sh", "-euc", "cd "+home+"\n"+text)
	cmd.Env = []string{
		"PATH=" + s.binDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + home, "USER=root", "LANG=C.UTF-8", fmt.Sprintf("N=%d", h.n),
		modeVar + "=walk", "BORG_INSTALL_HOSTS=" + s.addrDir,
	}
	cmd.WaitDelay = time.Second
	return cmd
}

// crash kills the program of a unit, and waits until another runs in its place.
func (s *site) crash(name, unit string) {
	s.t.Helper()
	supervisor, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", s.hosts[name].holder, superviseFile(unit)))
	if err != nil {
		s.t.Fatal(err)
	}
	var killed int
	for deadline := time.Now().Add(blockTimeout); ; time.Sleep(20 * time.Millisecond) {
		main := 0
		for _, p := range processes() {
			exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
			if fmt.Sprint(p.parent) == string(supervisor) && exe == "/usr/local/bin/"+unit && !isShim(p.pid) {
				main = p.pid
			}
		}
		switch {
		case main != 0 && killed == 0:
			killed = main
			if err := syscall.Kill(main, syscall.SIGKILL); err != nil {
				s.t.Fatal(err)
			}
		case main != 0 && main != killed:
			return
		case time.Now().After(deadline):
			s.t.Fatalf("%s on %s: process %d was killed, and no other was started", unit, name, killed)
		}
	}
}

// isShim tells what a borglet has started beside a task, which its supervisor
// inherits when it is killed.
func isShim(pid int) bool {
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	words := strings.Split(string(command), "\x00")
	return len(words) > 1 && words[1] == "shim"
}

// allUpgraded looks what each program calls itself, where it runs.
func (s *site) allUpgraded() {
	s.t.Helper()
	for _, name := range masters {
		s.until(s.hosts[name], "curl http://127.0.0.1:7080/metrics", regexp.MustCompile(`build="test-2"`))
	}
	for _, name := range machines {
		s.until(s.hosts[name], "curl http://127.0.0.1:7180/metrics", regexp.MustCompile(`build="test-2"`))
	}
}

// tasks are the processes that are the tasks of a job, by the name of the task:
// what truly runs, whatever the cell believes.
func (s *site) tasks(job string) map[string]int {
	tasks := make(map[string]int)
	for _, p := range processes() {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if !bytes.HasPrefix(command, []byte("/bin/sleep\x00infinity\x00")) {
			continue
		}
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		for entry := range strings.SplitSeq(string(env), "\x00") {
			if name, ok := strings.CutPrefix(entry, "BORG_TASK="); ok && strings.Contains(name, job+"/") {
				tasks[name] = p.pid
			}
		}
	}
	return tasks
}

// tasksOn are the tasks of the first job on one machine, which are in its network.
func (s *site) tasksOn(name string) []string {
	own, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", s.hosts[name].holder))
	var on []string
	for task, pid := range s.tasks("first") {
		if net, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); net == own {
			on = append(on, task)
		}
	}
	return on
}

// showLogs shows what the programs said, if the walk has failed.
func (s *site) showLogs() {
	if !s.t.Failed() {
		return
	}
	for _, name := range slices.Concat(masters, machines) {
		logs, _ := filepath.Glob(filepath.Join(s.dir, name, "log", "*"))
		for _, path := range logs {
			data, _ := os.ReadFile(path)
			s.t.Logf("%s of %s:\n%s", filepath.Base(path), name, data[max(0, len(data)-3000):])
		}
	}
}
