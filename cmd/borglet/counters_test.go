package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// takeArgument has this program take all it can get of what the kernel counts by user, say
// how much that is, and keep it.
const takeArgument = "take-counters"

// counter takes one more of a kind; most is how often at most.
type counter struct {
	take func(i int) error
	most int
}

// takers are the counters, by name. What is taken is kept until the process ends.
var takers = map[string]counter{
	"inotify": {func(int) error { _, err := unix.InotifyInit1(unix.IN_CLOEXEC); return err }, 10_000},
	"signals": {queueSignal, 1 << 20},
	"queues":  {openQueue, 10_000},
	// More than the kernel allows to all programs of a machine if nobody changes that.
	"aio": {setUpAIO, 65_536/aioRequests + 20},
	"terminals": {func(int) error {
		_, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		return err
	}, 10_000},
	// A process that has ended and that nobody has waited for counts as any.
	"processes": {func(int) error { _, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{}); return err }, 20_000},
}

// queued is a signal that nobody uses.
const queued = syscall.Signal(64)

func queueSignal(int) error {
	// struct siginfo, of which the first three words are number, error and code.
	var info [32]int32
	info[0], info[2] = int32(queued), -1 // SI_QUEUE
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(os.Getpid()), uintptr(unix.Gettid()), uintptr(queued), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// aioRequests is the size of one context of asynchronous I/O.
const aioRequests = 1024

func setUpAIO(int) error {
	var context uint64
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, aioRequests, uintptr(unsafe.Pointer(&context)), 0); errno != 0 {
		return errno
	}
	return nil
}

func openQueue(i int) error {
	name, err := unix.BytePtrFromString(fmt.Sprintf("borg-test-%d-%d", os.Getpid(), i))
	if err != nil {
		return err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	_ = fd
	_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
	return nil
}

// blockQueued has this thread, to which the signals are sent, keep them.
func blockQueued() {
	runtime.LockOSThread()
	var set unix.Sigset_t
	set.Val[0] = 1 << (uint(queued) - 1)
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
}

// boundedProcesses checks that all tasks together leave processes to the machine, and returns
// how many they may have.
func (m *machine) boundedProcesses() int64 {
	m.t.Helper()
	number := func(path string) int64 {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return n
	}
	all := number("/sys/fs/cgroup/pids/borg/pids.max") + number("/sys/fs/cgroup/borg/pids.max")
	if most := number("/proc/sys/kernel/pid_max"); all == 0 || all > most*3/4 {
		m.t.Errorf("all tasks may have %d processes of %d", all, most)
	}
	return all
}

// takeAll is this program when it was told to.
func takeAll() {
	blockQueued()
	// Without processes there are no threads either, and this program ends when it wants a
	// new one: it has enough before.
	debug.SetGCPercent(-1)
	var threads sync.WaitGroup
	for range 32 {
		threads.Go(func() { _ = unix.Nanosleep(&unix.Timespec{Nsec: 1e8}, nil) })
	}
	threads.Wait()
	names := []string{"inotify", "signals", "queues", "aio", "terminals", "processes"}
	if os.Args[2] == "processes" {
		names = os.Args[2:]
	}
	for _, name := range names {
		n, err := 0, error(nil)
		for c := takers[name]; err == nil && n < c.most; n++ {
			err = c.take(n)
		}
		fmt.Printf("%s %d %v\n", name, n, err)
	}
	fmt.Println("taken")
	for {
		_ = unix.Nanosleep(&unix.Timespec{Sec: 3600}, nil)
	}
}

// TestCountersOfTheKernel: a task that takes all it can get of inotify instances, queued
// signals, message queues, contexts of asynchronous I/O, pseudo terminals and processes takes nothing from another task, nor from root.
func TestCountersOfTheKernel(t *testing.T) {
	m := newMachine(t, "container")
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	hostile := func() *borgrpc.CopyID {
		return m.want(batch, &borgpb.TaskSpec{
			Args: []string{"/opt/take", takeArgument, "all"}, Mounts: []*borgpb.Mount{{Source: self, Path: "/opt/take"}},
			Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 512 << 20},
		})
	}
	taken := func(id *borgrpc.CopyID) map[string]int {
		t.Helper()
		m.untilState(id, running)
		log := ""
		for deadline := time.Now().Add(patience); !strings.Contains(log, "taken\n"); time.Sleep(50 * time.Millisecond) {
			if log = m.logOf(id); time.Now().After(deadline) {
				t.Fatalf("it has not taken all: %q", log)
			}
		}
		got := make(map[string]int)
		for line := range strings.Lines(log) {
			var name string
			var n int
			if _, err := fmt.Sscanf(line, "%s %d", &name, &n); err == nil {
				got[name] = n
			}
		}
		return got
	}
	first, second := hostile(), hostile()
	m.untilState(first, running)
	most := int(min(4096, m.boundedProcesses()/8))
	a := taken(first)
	b := taken(second)
	for _, got := range []map[string]int{a, b} {
		// The threads of the program count too.
		if n := got["processes"]; n < most-100 || n > most {
			t.Errorf("one task has %d processes, want %d with its threads", n, most)
		}
		delete(got, "processes")
	}
	if !maps.Equal(a, b) || a["inotify"] < 16 || a["signals"] < 16 || a["queues"] < 2 {
		t.Errorf("the first task took %v, the second %v", a, b)
	}
	if n := a["aio"]; n < takers["aio"].most {
		t.Errorf("one task has %d contexts of asynchronous I/O", n)
	}
	if n := a["terminals"]; n < 60 || n > 65 {
		t.Errorf("one task has %d pseudo terminals, want 64", n)
	}
	if a["signals"] > 4096+1 {
		t.Errorf("one task has %d signals queued", a["signals"])
	}
	if group := m.uidMap(first); strings.HasPrefix(strings.TrimSpace(group), "0          0") {
		t.Skip("tasks have no user ids of their own here: root's counters are theirs")
	}
	done := make(chan error)
	go func() {
		// The thread ends with this goroutine, and what is queued with it.
		blockQueued()
		var errs []error
		for name, c := range takers {
			for i := range 3 {
				if err := c.take(i); err != nil {
					errs = append(errs, fmt.Errorf("root gets none of %s: %w", name, err))
				}
			}
		}
		done <- errors.Join(errs...)
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.Logf("each task took %v", a)
}

// TestProcessesOfAll: tasks of no priority that together have more than half of the processes of
// all tasks end, the largest first. A small one of no priority and production go on, and
// production starts.
func TestProcessesOfAll(t *testing.T) {
	m := newMachine(t, "container")
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	free := func(args ...string) *borgrpc.CopyID {
		id := m.want(service, &borgpb.TaskSpec{
			Args: args, Mounts: []*borgpb.Mount{{Source: self, Path: "/opt/take"}},
			Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 512 << 20},
		})
		m.desired[len(m.desired)-1].Priority = 0
		return id
	}
	small := free("/bin/sleep", "3600")
	m.untilState(small, running)
	all := m.boundedProcesses()
	if all/8 > 4096 {
		t.Skipf("all tasks may have %d processes: a few tasks cannot take half of them", all)
	}
	isHostile := map[string]bool{}
	for range 5 {
		isHostile[free("/opt/take", takeArgument, "processes").GetJobUid()] = true
	}
	var ended *borgpb.Exit
	for deadline := time.Now().Add(patience); ended == nil; time.Sleep(20 * time.Millisecond) {
		for _, r := range m.poll().GetTasks() {
			if isHostile[r.GetJobUid()] && r.GetExit() != nil {
				ended = r.GetExit()
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("no task that takes processes has ended")
		}
	}
	if ended.GetReasonCode() != borgpb.ExitReason_EXIT_REASON_SOCKETS || !strings.Contains(ended.GetReason(), "non-production tasks") {
		t.Errorf("the exit is %v", ended)
	}
	t.Log(ended.GetReason())
	if r := m.untilState(m.service("/bin/sleep", "3600"), running); r.Restarts != 0 {
		t.Errorf("production was ended: %v", r)
	}
	if r := m.untilState(small, running); r.Restarts != 0 {
		t.Errorf("a small task was ended: %v", r)
	}
}
