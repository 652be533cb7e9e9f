package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// These two make this test program start another one whose monotonic clock is
	// off by the seconds that the file holds: the program, and the file.
	clockProgramEnv = "BORG_TEST_CLOCK_PROGRAM"
	clockFileEnv    = "BORG_TEST_CLOCK_FILE"
)

// The kernel takes the offsets of the main thread, and only init functions
// surely run on it.
func init() {
	program := os.Getenv(clockProgramEnv)
	if program == "" {
		return
	}
	fmt.Fprintln(os.Stderr, "with another clock:", withOtherClock(program, os.Getenv(clockFileEnv)))
	os.Exit(125)
}

// withOtherClock becomes another program in a time namespace of its own. It
// returns only when that cannot be.
func withOtherClock(program, file string) error {
	offset, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
		return fmt.Errorf("make a time namespace: %w", err)
	}
	// The start times of processes count from the boot: that clock stays, as it
	// does on a machine that runs.
	if err := os.WriteFile("/proc/self/timens_offsets", []byte("monotonic "+strings.TrimSpace(string(offset))+" 0\n"), 0); err != nil {
		return fmt.Errorf("move the clock: %w", err)
	}
	for _, name := range []string{clockProgramEnv, clockFileEnv} {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return syscall.Exec(program, append([]string{program}, os.Args[1:]...), os.Environ())
}

// clockShift is the next offset of a clock: far ahead, a little ahead, or back
// to just after the boot. A monotonic clock cannot be before that.
func clockShift(t *testing.T, random *rand.Rand) string {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return []string{"31536000", "3600", "7", "0", strconv.FormatInt(5-now.Sec, 10)}[random.IntN(5)]
}

// needsClocks skips the test where a program cannot be given a clock of its own.
func needsClocks(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "offset")
	if err := os.WriteFile(file, []byte("3600"), 0o644); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cat := exec.Command(self, "/proc/self/timens_offsets")
	cat.Env = append(os.Environ(), clockProgramEnv+"=/bin/cat", clockFileEnv+"="+file)
	out, err := cat.CombinedOutput()
	if err != nil {
		t.Skipf("no time namespaces here (they need root, and a Linux 6 that enters them at exec): %v: %s", err, out)
	}
	// "monotonic  3600  0"
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "monotonic" && f[1] == "3600" {
			return
		}
	}
	t.Skipf("this kernel does not give a program a time namespace when it starts: %s", out)
}

// Masters and borglets whose monotonic clocks are off by a year, and jump each
// time they are killed and started, keep every promise: no clock is compared
// with that of another process. The wall clock is of the machine as a whole and
// cannot be moved for one process; the simulator does that.
func TestClocksDiffer(t *testing.T) {
	alongside(t)
	needsClocks(t)
	c := newChaosCell(t, 3, 2)
	random := chance(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	offsetFile := func(name string) string { return filepath.Join(c.dir, "clock-"+name) }
	shift := func(name string) string {
		s := clockShift(t, random)
		if err := os.WriteFile(offsetFile(name), []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
		return s
	}
	// Not all: those whose clocks are right must agree with those whose are not.
	shifted := []string{c.masterName(1), c.masterName(2), c.machineName(1)}
	for _, name := range shifted {
		shift(name)
	}
	c.alter = func(spec *processSpec) {
		for _, name := range shifted {
			if spec.Name == name {
				spec.Env = append(spec.Env, clockProgramEnv+"="+spec.Path, clockFileEnv+"="+offsetFile(name))
				spec.Path = self
			}
		}
	}
	c.startAll(t)
	c.hasOtherClock(t, shifted[0])
	before := c.run(t, "web", sleepers(size(4, 40)))
	l, endLoad := c.underLoad(t, 50)
	state, err := c.client.GetCell(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	for range size(2, 15) {
		l.goesOn(t, size(10, 50))
		for _, name := range shifted {
			t.Logf("%s starts again with a clock that is %s s off", name, shift(name))
			if err := c.Kill(name); err != nil {
				t.Fatal(err)
			}
			start := c.StartMaster
			number := 1
			if k := c.machineNumber(name); k > 0 {
				start, number = c.StartBorglet, k
			} else if name == c.masterName(2) {
				number = 2
			}
			if err := start(t.Context(), number); err != nil {
				t.Fatal(err)
			}
			l.goesOn(t, 10)
		}
	}
	// Long enough for a machine to be taken for down by a clock that is off.
	<-time.After(time.Duration(size(2, 20)) * time.Second)
	endLoad()
	if err := until(shortly(t), "the cell works again", c.ready); err != nil {
		t.Fatal(err)
	}
	c.run(t, "later", sleepers(2))
	c.checkAcks(t, l)
	c.stillSame(t, before, "web")
	c.oneEach(t, "web", "later")
	if now, err := c.client.GetCell(shortly(t)); err != nil || now.CellId != state.CellId {
		t.Errorf("after all the cell is %v, %v", now, err)
	}
}

// hasOtherClock checks that a process is in a time namespace of its own.
func (c *Cell) hasOtherClock(t *testing.T, name string) {
	t.Helper()
	ours, err := os.Readlink("/proc/self/ns/time")
	if err != nil {
		t.Fatal(err)
	}
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/time", c.PID(name)))
	if err != nil || its == ours {
		t.Fatalf("%s is in time namespace %s, %v, as this process is", name, its, err)
	}
}
