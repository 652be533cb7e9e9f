package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"borg/fauxmaster/fleet"
)

// fakeCell starts a cell of pretended machines, which is stopped at the end of the
// test; nothing of it may be left then.
func fakeCell(t testing.TB, masters, machines int, life fleet.Life) *Cell {
	t.Helper()
	l := chaosLayout(t, masters, machines)
	l.Fake = &fake{Seed: 1, Life: life}
	c, err := OpenCell(t.Context(), l, false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if left, err := l.leftovers(); err != nil || len(left) > 0 {
			t.Errorf("left after the stop: %v, %v", left, err)
		}
	})
	return c
}

// startWith starts the cell and waits until it runs a job of so many tasks.
func (c *Cell) startWith(t *testing.T, tasks int) {
	t.Helper()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.submit(shortly(t), "web", sleepers(tasks)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.jobIs(shortly(t), "web", "all tasks run", started); err != nil {
		t.Fatal(err)
	}
}

// fakeIs waits until the pretended machines stand so.
func (c *Cell) fakeIs(ctx context.Context, what string, ok func(fleet.Status) bool) error {
	return until(ctx, what, func(ctx context.Context) error {
		s, err := c.FakeStatus(ctx)
		if err == nil && !ok(s) {
			err = fmt.Errorf("%d of %d machines polled, by replica %v, in term %v; %d tasks run", s.Machines-s.Unpolled, s.Machines, s.ByReplica, s.ByTerm, s.Running)
		}
		return err
	})
}

// A cell of pretended machines is a cell: real masters place, start and stop tasks
// on it, each replica polls a part of it, and that of one that dies is polled by the
// others. The machines are those of several processes.
func TestFakeCell(t *testing.T) {
	alongside(t)
	const machines, tasks = 50, 300
	c := fakeCell(t, 5, machines, fleet.Life{StartDelay: 20 * time.Millisecond})
	c.Fake.Each = 20
	if err := writeJSON(c.layoutFile(), c.layout); err != nil {
		t.Fatal(err)
	}
	c.startWith(t, tasks)
	if n := c.fakeParts(); n != 3 || c.PID(fakePartName(n-1)) == 0 {
		t.Fatalf("the machines are those of %d processes, want 3", n)
	}
	all := func(s fleet.Status) bool { return s.Running == tasks && len(s.ByReplica) == c.Masters }
	if err := c.fakeIs(shortly(t), "all tasks run on machines that all replicas share", all); err != nil {
		t.Fatal(err)
	}
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, dead := range []int{elected%c.Masters + 1, elected} {
		if err := c.Kill(c.masterName(dead)); err != nil {
			t.Fatal(err)
		}
		moved := func(s fleet.Status) bool { return s.ByReplica[uint64(dead)] == 0 && s.Running == tasks }
		if err := c.fakeIs(shortly(t), fmt.Sprintf("the machines of replica %d are polled by others", dead), moved); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.DownAll(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if s, err := c.FakeStatus(shortly(t)); err != nil || s.Running != 0 {
		t.Errorf("%d tasks run after all were stopped: %v", s.Running, err)
	}
}

// A killed process of pretended machines is started again, and their tasks with it:
// the machines come back with empty disks, and the cell has them start anew.
func TestFakeMachinesComeBack(t *testing.T) {
	alongside(t)
	const tasks = 40
	c := fakeCell(t, 3, 10, fleet.Life{})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.submit(shortly(t), "web", sleepers(tasks)); err != nil {
		t.Fatal(err)
	}
	run := func(s fleet.Status) bool { return s.Running == tasks }
	if err := c.fakeIs(shortly(t), "all tasks run", run); err != nil {
		t.Fatal(err)
	}
	before := c.PID(fakeName)
	if err := c.Crash(fakeName); err != nil {
		t.Fatal(err)
	}
	if err := c.fakeIs(shortly(t), "all tasks run again", run); err != nil {
		t.Fatal(err)
	}
	if now := c.PID(fakeName); now == before || now == 0 {
		t.Errorf("the process of the machines was %d and is %d, want another one", before, now)
	}
}

// A follower that the machines do not hear is given up for others, and nothing moves.
// Machines of which nothing is heard are given up, some at a time; those that come back
// have their tasks or give them away, and each task runs once.
func TestFakeMachinesVanish(t *testing.T) {
	alongside(t)
	const machines, tasks = 40, 120
	c := fakeCell(t, 3, machines, fleet.Life{})
	c.startWith(t, tasks)
	elected, err := c.Elected(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	deaf := elected%c.Masters + 1
	if err := c.FakeCut(t.Context(), deaf); err != nil {
		t.Fatal(err)
	}
	others := func(s fleet.Status) bool { return s.ByReplica[uint64(deaf)] == 0 }
	if err := c.fakeIs(shortly(t), "others poll the machines of the follower", others); err != nil {
		t.Fatal(err)
	}
	if err := c.FakeCut(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	all := func(s fleet.Status) bool { return len(s.ByReplica) == c.Masters }
	if err := c.fakeIs(shortly(t), "it polls machines again", all); err != nil {
		t.Fatal(err)
	}
	s, err := c.FakeStatus(shortly(t))
	if err != nil || s.Begun != tasks || s.Stopped != 0 {
		t.Errorf("%d processes have begun and %d were stopped for %d tasks while a follower was cut off, %v", s.Begun, s.Stopped, tasks, err)
	}

	if err := c.FakeVanish(t.Context(), 1, 2); err != nil {
		t.Fatal(err)
	}
	err = until(shortly(t), "some machines are given up", func(ctx context.Context) error {
		state, err := c.client.GetCell(ctx)
		if err == nil && state.GetMachinesDown() == 0 {
			err = errors.New("none is down")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	missed := 0.0
	for i := 1; i <= c.Masters; i++ {
		n, err := c.countedBy(shortly(t), i, "borg_borgmaster_polls_total", labels{"result": {"missed"}})
		if err != nil {
			t.Fatal(err)
		}
		missed += n
	}
	// A machine is down after three, counted in one share.
	if missed < 3 {
		t.Errorf("machines were given up, and all masters together count %v polls as missed", missed)
	}
	moved := func(s fleet.Status) bool { return s.Away == machines/2 && s.Running-tasks > 0 }
	if err := c.fakeIs(shortly(t), "tasks run elsewhere, and where nothing is heard of them", moved); err != nil {
		t.Fatal(err)
	}
	if err := c.FakeVanish(t.Context(), 0, 0); err != nil {
		t.Fatal(err)
	}
	once := func(s fleet.Status) bool { return s.Away == 0 && s.Running == tasks }
	if err := c.fakeIs(shortly(t), "each task runs once", once); err != nil {
		t.Fatal(err)
	}
	if s, err = c.FakeStatus(shortly(t)); err != nil || s.Stopped >= tasks/2 {
		t.Errorf("%d processes were stopped, of %d tasks of which half were out of reach, %v", s.Stopped, tasks, err)
	}
	if err := c.FakeVanish(t.Context(), 3, 2); err == nil {
		t.Error("three of two machines vanished")
	}
}

// Most machines vanish: none is called down and nothing moves, until an operator says that
// they are lost. Then as many as may be in a minute are given up, and their tasks run elsewhere.
func TestFakeOutage(t *testing.T) {
	alongside(t)
	const machines, tasks, percent = 40, 120, 20
	c := fakeCell(t, 3, machines, fleet.Life{})
	c.alter = func(spec *processSpec) {
		if strings.HasPrefix(spec.Name, "master-") {
			spec.Args = append(spec.Args, "--downs-per-minute", strconv.Itoa(percent))
		}
	}
	c.startWith(t, tasks)
	outage := func(args ...string) string {
		return c.must(t, "borgcfg", append([]string{"--cell", strings.Join(c.masterAddrs(), ","), "outage"}, args...)...)
	}
	if err := c.FakeVanish(t.Context(), 7, 10); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the masters know that most machines are out of reach", func() string {
		if out := outage("status"); !strings.Contains(out, "28 of 40 machines cannot be reached\n") || !strings.Contains(out, "no more machines are called down") {
			return out
		}
		return ""
	})
	// A machine alone is down after 7 s or so.
	for began := time.Now(); time.Since(began) < 10*time.Second; <-time.After(lookEvery) {
		if state, err := c.client.GetCell(shortly(t)); err == nil && state.GetMachinesDown() > 0 {
			t.Fatalf("%d machines were called down, and nobody said that they are lost", state.GetMachinesDown())
		}
	}
	if s, err := c.FakeStatus(shortly(t)); err != nil || s.Begun != tasks || s.Stopped != 0 {
		t.Errorf("%d processes have begun and %d were stopped for %d tasks, and nobody said that machines are lost, %v", s.Begun, s.Stopped, tasks, err)
	}

	outage("go", "--reason", "the building is gone")
	if out := outage("status"); !strings.Contains(out, "are declared lost, however many") {
		t.Errorf("after outage go its status is %s", out)
	}
	// Those of a minute may go at once, whoever is elected.
	const atOnce = machines * percent / 100
	declared := time.Now()
	err := until(shortly(t), "machines are given up", func(ctx context.Context) error {
		state, err := c.client.GetCell(ctx)
		if err != nil {
			return err
		}
		down := int(state.GetMachinesDown())
		if most := atOnce * (1 + int(time.Since(declared)/time.Minute)); down > most {
			t.Errorf("%d machines were called down within %v, want %d at most", down, time.Since(declared), most)
		}
		if down < atOnce {
			return fmt.Errorf("%d machines are down", down)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	moved := func(s fleet.Status) bool { return s.Away == 28 && s.Running > tasks }
	if err := c.fakeIs(shortly(t), "tasks run elsewhere, and where nothing is heard of them", moved); err != nil {
		t.Fatal(err)
	}
}

// The command runs such a cell until Ctrl-C, and ends all of it.
func TestRunFake(t *testing.T) {
	alongside(t)
	l := chaosLayout(t, 1, 20)
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	output := func() string {
		text, err := os.ReadFile(said.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	cmd := exec.Command(l.bin("borgcell"), "run", "--fake", "--seed", "7", "--cell", l.Name, "--dir", l.dir, "--run-dir", l.RunDir,
		"--masters", "1", "--machines", "20", "--port-base", strconv.Itoa(l.PortBase))
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = until(shortly(t), "the cell is up", func(context.Context) error {
		if text := output(); !strings.Contains(text, "is up after") {
			return errors.New(text)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	l.Fake = &fake{Seed: 7}
	if s, err := (&Cell{layout: l}).FakeStatus(shortly(t)); err != nil || s.Machines != 20 || s.Unpolled != 0 {
		t.Errorf("of the machines is said %+v, %v", s, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("borgcell run --fake: %v\n%s", err, output())
	}
	if !strings.Contains(output(), "no process, cgroup, mount or network device is left") {
		t.Errorf("borgcell run --fake said:\n%s", output())
	}
	if left, err := l.leftovers(); err != nil || len(left) > 0 {
		t.Errorf("left after the stop: %v, %v", left, err)
	}
}

// Nobody but who is on this machine gets to the pretended ones.
func TestFakeListensForThisMachineAlone(t *testing.T) {
	l, err := fleet.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	outside := ownAddress(t)
	lost, err := net.DialTimeout("tcp", net.JoinHostPort(outside, strconv.Itoa(port)), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	found, err := net.DialTimeout("tcp", fleet.Addr(9_999, uint16(port)).String(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	// In the order in which they came: the first one is passed over.
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.RemoteAddr().String() != found.LocalAddr().String() {
		t.Errorf("%s was let in, want %s", conn.RemoteAddr(), found.LocalAddr())
	}
}

// ownAddress is one of this machine that others reach.
func ownAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	t.Skip("this machine has no address that others reach")
	return ""
}
