package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"borg/borglet/container"
	"borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// The tests in chaos_*_test.go start the real programs and kill them. `make e2e`
// runs them in a small size, `make chaos` (BORG_CHAOS=full) in the size that the
// promises are made for, and `make test` (-short) skips them. BORG_BIN names a
// directory of programs to use instead of building them.

// patience is how long a test waits for something that should happen, such as a task that runs.
// A loaded machine may need minutes for what takes a second elsewhere.
const patience = 5 * time.Minute

// size is small in plain tests and full with BORG_CHAOS=full.
func size(small, full int) int {
	if os.Getenv("BORG_CHAOS") == "full" {
		return full
	}
	return small
}

// builds is the one build of the programs for all tests.
var builds struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	if order := os.Getenv(hostileEnv); order != "" {
		if err := hostileMain(order); err != nil {
			fmt.Fprintln(os.Stderr, "attacker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if order := os.Getenv(afarEnv); order != "" {
		if err := afarMain(order); err != nil {
			fmt.Fprintln(os.Stderr, "flood:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if file := os.Getenv(failingEnv); file != "" {
		fmt.Fprintln(os.Stderr, "serve:", serveFailing(file))
		os.Exit(1)
	}
	if os.Getenv(guardEnv) != "" {
		guardMain()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if builds.dir != os.Getenv("BORG_BIN") {
			os.RemoveAll(builds.dir)
		}
		if err := writeFigures(); err != nil {
			fmt.Fprintln(os.Stderr, "figures:", err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// realProcesses skips a test that starts the programs in a short run.
func realProcesses(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real processes: make e2e")
	}
}

// programsDir returns a directory with the programs.
func programsDir(t testing.TB) string {
	t.Helper()
	realProcesses(t)
	builds.once.Do(func() {
		if builds.dir = os.Getenv("BORG_BIN"); builds.dir != "" {
			return
		}
		if builds.dir, builds.err = os.MkdirTemp("", "borg-bin-"); builds.err != nil {
			return
		}
		args := []string{"build", "-o", builds.dir}
		if container.HasFilter {
			args = append(args, "-tags", "seccomp")
		}
		out, err := exec.Command("go", append(args, "borg/cmd/...", "borg/examples/...")...).CombinedOutput()
		if err != nil {
			builds.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if builds.err != nil {
		t.Fatal(builds.err)
	}
	return builds.dir
}

var cellsMade atomic.Int32

// portsEach is how many ports the addresses of one cell of a test lie among.
const portsEach = 400

// alongside lets small tests run side by side: they mostly wait. In full size
// each has the machine to itself, so that its figures are its own.
func alongside(t *testing.T) {
	t.Helper()
	realProcesses(t)
	if size(1, 0) == 1 {
		t.Parallel()
	}
}

// chaosLayout is the layout of a cell of a test's own: no other test, and no
// other run of the tests, has its name, its directories or its ports.
func chaosLayout(t testing.TB, masters, machines int) layout {
	t.Helper()
	// Not t.TempDir: its paths are too long for sockets.
	dir, err := os.MkdirTemp("", "borgcell-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the cell's directory is kept: %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	n := int(cellsMade.Add(1))
	l := layout{
		Name: fmt.Sprintf("t%d-%d", os.Getpid(), n), Masters: masters, Machines: machines,
		TaskPortBase: 30000, Capacity: "cpu=4,mem=8GiB,disk=20GiB", Runtime: "auto",
		dir: filepath.Join(dir, "cell"), RunDir: filepath.Join(dir, "run"), binDir: programsDir(t),
	}
	// Below the ports that other cells of this machine grant to their tasks.
	const first, end = 10000, 20000
	for try := range (end - first) / portsEach {
		// Two cells of one run never try the same ports.
		l.PortBase = first + (os.Getpid()+n+try*32)*portsEach%(end-first)
		if (&Cell{layout: l}).checkPorts() == nil {
			l.guarded(t)
			return l
		}
	}
	t.Fatalf("no free ports from %d to %d", first, end)
	return l
}

// chaosCell starts a cell, which is stopped at the end of the test; nothing of
// it may be left then.
func chaosCell(t *testing.T, masters, machines int) *Cell {
	t.Helper()
	c := newChaosCell(t, masters, machines)
	c.startAll(t)
	return c
}

// newChaosCell makes a cell of which nothing runs yet.
func newChaosCell(t *testing.T, masters, machines int) *Cell {
	t.Helper()
	l := chaosLayout(t, masters, machines)
	c, err := OpenCell(t.Context(), l, false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if !t.Failed() {
			if err := c.DownAll(ctx); err != nil {
				t.Errorf("down: %v", err)
			}
			// Before the sweep, which would end them.
			c.noOrphans(ctx, t)
		}
		if err := c.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		left, err := l.leftovers()
		if err != nil || len(left) > 0 {
			t.Errorf("left after the stop: %v, %v", left, err)
		}
	})
	return c
}

func (c *Cell) startAll(t *testing.T) {
	t.Helper()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if runtimes, err := c.runtimes(t.Context()); err == nil {
		t.Log(runtimes)
	}
}

// hasLatestFormat waits until all that this build can do may be asked for: the
// format is raised when all replicas have said that they know it.
func (c *Cell) hasLatestFormat(t *testing.T) {
	t.Helper()
	err := until(shortly(t), "the cell has its latest format", func(ctx context.Context) error {
		state, err := c.client.GetCell(ctx)
		if err == nil && state.Format < cell.BuildFormat {
			err = fmt.Errorf("the format is %d", state.Format)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// shortly bounds a wait that should take a moment.
func shortly(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// sleepers is a service job whose tasks do nothing for as long as they may.
func sleepers(tasks int) *borgpb.JobSpec {
	return &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: uint32(tasks), Priority: 200,
		Task: &borgpb.TaskSpec{
			Args:      []string{"/bin/sh", "-c", "exec sleep 1000000"},
			Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 16 << 20},
			GraceNs:   int64(time.Second),
		},
	}
}

// unplaceable is a job that stays pending: no machine has what it asks for.
func unplaceable() *borgpb.JobSpec {
	spec := sleepers(1)
	spec.Task.Constraints = []*borgpb.Constraint{{Key: "there-is-no-such", Relation: borgpb.Relation_RELATION_PRESENT}}
	return spec
}

// run submits a service and waits until all its tasks run.
func (c *Cell) run(t *testing.T, name string, spec *borgpb.JobSpec) snapshot {
	t.Helper()
	if _, err := c.submit(shortly(t), name, spec); err != nil {
		t.Fatal(err)
	}
	if _, err := c.jobIs(shortly(t), name, "all tasks run", started); err != nil {
		t.Fatal(err)
	}
	s, err := c.snap(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if len(s) != int(spec.Tasks) {
		t.Fatalf("%d tasks run, want %d", len(s), spec.Tasks)
	}
	return s
}

// hang stops a process for a while.
func (c *Cell) hang(t *testing.T, name string, d time.Duration) {
	t.Helper()
	pid := c.PID(name)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(d)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// stillSame fails the test unless the same processes run as before.
func (c *Cell) stillSame(t *testing.T, before snapshot, jobs ...string) {
	t.Helper()
	now, err := c.snap(shortly(t), jobs...)
	if err != nil {
		t.Error(err)
	}
	if diff := before.difference(now); diff != "" {
		t.Error(expected(fmt.Sprintf("the same processes as before (%s)", before.pids()), "%s", diff))
	}
	counted(t, "chaos.tasks_died", len(before)-before.alive())
}

// electedNow waits until somebody is elected.
func (c *Cell) electedNow(ctx context.Context) (elected int, err error) {
	err = until(ctx, "a master is elected", func(ctx context.Context) (err error) {
		elected, err = c.Elected(ctx)
		return err
	})
	return elected, err
}

// restartElected kills the elected master, starts it again and says which one it was.
func (c *Cell) restartElected(t *testing.T) (elected int) {
	t.Helper()
	elected, err := c.electedNow(shortly(t))
	if err == nil {
		err = c.Kill(c.masterName(elected))
	}
	if err == nil {
		err = c.StartMaster(shortly(t), elected)
	}
	if err != nil {
		t.Fatal(err)
	}
	return elected
}

// allJobs lists all our jobs by name.
func (c *Cell) allJobs(t *testing.T) map[string]*borgpb.Job {
	t.Helper()
	jobs := make(map[string]*borgpb.Job)
	for _, selector := range partSelectors() {
		resp, err := c.client.ListJobs(shortly(t), &borgrpc.ListJobsRequest{User: c.user, Dead: true, Selector: selector})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range resp.Jobs {
			if jobs[j.Meta.Name] != nil {
				t.Errorf("job %s is listed twice", j.Meta.Name)
			}
			jobs[j.Meta.Name] = j
		}
	}
	return jobs
}

// alreadyExists tells a submit that was done twice.
func alreadyExists(err error) bool {
	var refused *client.RefusedError
	return errors.As(err, &refused) && refused.Refusal.Kind == borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS
}

// shimOf finds the shim of a task's copy.
func (c *Cell) shimOf(t *testing.T, task *borgpb.Task) processID {
	t.Helper()
	copyName := fmt.Sprintf("%s.%d.%d", task.Meta.Uid, task.Index, task.Status.Attempt)
	found, err := c.marks().find()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range found {
		full, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if isShim(p) && strings.Contains(string(full), copyName) {
			return p.processID
		}
	}
	t.Fatalf("task %s (%s) has no shim among %v", taskName(task), copyName, found)
	return processID{}
}

// runningOf counts the processes that are tasks of a job, by their environment:
// what truly runs, whatever the cell believes.
func (c *Cell) runningOf(job string) (int, error) {
	byTask, err := c.runningTasks()
	n := 0
	for task, pids := range byTask {
		if strings.HasPrefix(task, c.user+"/"+job+"/") {
			n += len(pids)
		}
	}
	return n, err
}

// runningTasks are the processes of all sleepers, by the name of their task.
func (c *Cell) runningTasks() (map[string][]int, error) {
	found, err := c.marks().find()
	if err != nil {
		return nil, err
	}
	byTask := make(map[string][]int)
	for _, p := range found {
		if !strings.HasPrefix(p.command, "sleep ") {
			continue
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		if err != nil {
			continue
		}
		for entry := range strings.SplitSeq(string(env), "\x00") {
			if name, ok := strings.CutPrefix(entry, "BORG_TASK="); ok {
				byTask[name] = append(byTask[name], p.PID)
			}
		}
	}
	return byTask, nil
}

// noOrphans checks that a cell whose jobs are all dead has nothing on this
// machine but its own programs: what a task had is gone, and nobody had to sweep.
func (c *Cell) noOrphans(ctx context.Context, t *testing.T) {
	t.Helper()
	var orphans []string
	err := until(ctx, "nothing of the tasks is left", func(context.Context) (err error) {
		if orphans, err = c.orphans(); err == nil && len(orphans) > 0 {
			err = fmt.Errorf("left: %q", orphans)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	counted(t, "chaos.orphans", len(orphans))
}

// orphans are the processes, cgroups and mounts of the cell that are neither
// its programs' own nor a directory that a test has mounted.
func (c *Cell) orphans() ([]string, error) {
	found, err := c.marks().find()
	if err != nil {
		return nil, err
	}
	ours := make(map[int]bool)
	for _, p := range c.sup.all() {
		ours[p.pid()] = true
	}
	var orphans []string
	for _, p := range found {
		isScheduler := strings.HasPrefix(p.command, c.bin("borgmaster")+" scheduler ")
		if !ours[p.PID] && !(isScheduler && ours[parentOf(p.PID)]) {
			orphans = append(orphans, p.String())
		}
	}
	cgroups, err := c.cgroupsLeft()
	if err != nil {
		return nil, err
	}
	for _, dir := range cgroups {
		if c.machineNumber(filepath.Base(dir)) == 0 {
			orphans = append(orphans, "cgroup "+dir)
		}
	}
	mounts, err := mountsWithin([]string{c.dir, c.RunDir})
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if !strings.HasPrefix(m, filepath.Join(c.dir, "masters")+"/") && c.machineNumber(filepath.Base(m)) == 0 {
			orphans = append(orphans, "mount "+m)
		}
	}
	return orphans, nil
}
