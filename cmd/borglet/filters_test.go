package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"borg/borglet/container"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// filtersArgument makes the test binary install filters, as the program of a task.
const filtersArgument = "install-filters-for-a-test"

// A thread has few of the largest filters that the kernel takes.
const (
	largestFilter = 4096
	largeFilters  = 7
)

// installFilter installs a filter of system calls that allows all, of so many instructions.
func installFilter(instructions int, flags uintptr) error {
	program := make([]unix.SockFilter, instructions)
	for i := range program {
		program[i] = unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_DIV | unix.BPF_K, K: 7}
	}
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	program[0], program[instructions-1] = allow, allow
	fprog := unix.SockFprog{Len: uint16(instructions), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return errno
	}
	return nil
}

// init keeps the program of a task on its first thread.
func init() {
	if len(os.Args) > 1 && os.Args[1] == filtersArgument {
		runtime.LockOSThread()
	}
}

// installLargest installs as many filters as a thread can have.
func installLargest() {
	for range largeFilters {
		if err := installFilter(largestFilter, 0); err != nil {
			fmt.Println("no more filters:", err)
			return
		}
	}
}

// fillFilters has many threads install filters, each its own, after the first thread did something.
func fillFilters(threads int, first func()) {
	begin := make(chan bool)
	var ready, done sync.WaitGroup
	ready.Add(threads)
	done.Add(threads)
	for range threads {
		go func() {
			runtime.LockOSThread()
			ready.Done()
			<-begin
			installLargest()
			done.Done()
			_ = unix.Nanosleep(&unix.Timespec{Sec: 3600}, nil)
		}()
	}
	ready.Wait()
	first()
	close(begin)
	done.Wait()
}

// filtersForTest fills the memory of filters, or has two filters and 200 children, or says
// which filters it may not install.
func filtersForTest(what string) {
	switch what {
	case "fill":
		fillFilters(350, func() {})
	case "hide":
		fillFilters(1100, func() { installLargest() })
	case "fork":
		for range 2 {
			if err := installFilter(20, unix.SECCOMP_FILTER_FLAG_TSYNC); err != nil {
				fmt.Println("no filter:", err)
				os.Exit(1)
			}
		}
		for range 200 {
			if _, err := os.StartProcess("/bin/sleep", []string{"sleep", "3600"}, &os.ProcAttr{}); err != nil {
				fmt.Println("no child:", err)
				os.Exit(1)
			}
		}
	case "refused":
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			fmt.Println("no socket:", err)
			os.Exit(1)
		}
		allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}
		fprog := unix.SockFprog{Len: 1, Filter: &allow}
		for _, option := range []int{unix.SO_ATTACH_FILTER, unix.SO_ATTACH_REUSEPORT_CBPF} {
			fmt.Println(option, unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, option, &fprog) == unix.ENOPROTOOPT)
		}
		for _, option := range []int{unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_EBPF} {
			fmt.Println(option, unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 0) == unix.ENOPROTOOPT)
		}
		fmt.Println("listener", installFilter(2, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER) == unix.EINVAL)
		for _, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT, unix.SO_RCVBUF, unix.SO_KEEPALIVE, unix.SO_BUSY_POLL} {
			fmt.Println(option, unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1) == nil)
		}
		if _, err := net.Listen("tcp", "[::1]:0"); err != nil {
			_, err = net.Listen("tcp", "127.0.0.1:0")
			fmt.Println("listen", err == nil)
		}
		fmt.Println("seccomp", installFilter(2, unix.SECCOMP_FILTER_FLAG_TSYNC) == nil)
	}
	fmt.Println("holds")
	for {
		_ = unix.Nanosleep(&unix.Timespec{Sec: 3600}, nil)
	}
}

// withFilters is a task that installs filters.
func (m *machine) withFilters(what string, priority int32) *borgrpc.CopyID {
	m.t.Helper()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		m.t.Fatal(err)
	}
	id := m.want(service, &borgpb.TaskSpec{
		Args: []string{"/opt/filters", filtersArgument, what}, Mounts: []*borgpb.Mount{{Source: self, Path: "/opt/filters"}},
		Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30},
	})
	m.desired[len(m.desired)-1].Priority = priority
	return id
}

// untilHolds waits until a task has all that it wants, and returns what it wrote.
func (m *machine) untilHolds(id *borgrpc.CopyID) (wrote string) {
	m.t.Helper()
	m.until(id, "done", func(*borgpb.TaskReport) bool {
		wrote = m.logOf(id)
		return strings.Contains(wrote, "holds\n")
	})
	return wrote
}

// TestHoardedFilters: a task of no priority ends that takes more than its part of the memory of
// compiled filters, or more than that of all tasks where it is not certain whose they are. Tasks with two filters and 200 children go on, and another one starts.
func TestHoardedFilters(t *testing.T) {
	if text, err := os.ReadFile("/proc/vmallocinfo"); !strings.Contains(string(text), " bpf_prog_") {
		t.Skip("the kernel does not tell the memory of compiled filters in /proc/vmallocinfo:", err)
	}
	text, err := os.ReadFile("/proc/sys/net/core/bpf_jit_limit")
	if limit, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); limit <= 0 || limit > 800<<20 {
		t.Skipf("net.core.bpf_jit_limit is %.20q (%v): one task does not fill half of it", text, err)
	}
	m := newMachine(t, "container")
	innocent, production := m.withFilters("fork", 0), m.withFilters("fork", 200)
	m.untilHolds(innocent)
	m.untilHolds(production)
	for what, words := range map[string]string{"fill": "a task may hold", "hide": "of compiled seccomp filters at most; the non-production tasks"} {
		began := time.Now()
		hostile := m.withFilters(what, 0)
		r := m.until(hostile, "ended", func(r *borgpb.TaskReport) bool { return r.Exit != nil })
		if r.Exit.ReasonCode != borgpb.ExitReason_EXIT_REASON_SOCKETS || !strings.Contains(r.Exit.Reason, words) || r.Exit.Oom {
			t.Errorf("%s: the exit is %v", what, r.Exit)
		}
		t.Logf("%s, after %v: %s", what, time.Since(began), r.Exit.Reason)
		m.desired = m.desired[:2]
	}
	m.untilState(m.service("/bin/sleep", "3600"), running)
	for _, id := range []*borgrpc.CopyID{innocent, production} {
		if r := m.untilState(id, running); r.Restarts != 0 || r.Exit != nil {
			t.Errorf("a task with two filters and 200 children was ended: %v", r)
		}
	}
}

// TestFiltersOfSockets: a task attaches no filter to a socket, as if the kernel had none, and no
// filter of system calls that somebody is asked by. It may set other options, and install others.
func TestFiltersOfSockets(t *testing.T) {
	if !container.HasFilter {
		t.Skip("this build has no libseccomp")
	}
	m := newMachine(t, "container")
	if wrote := m.untilHolds(m.withFilters("refused", 0)); strings.Contains(wrote, "false") || strings.Count(wrote, "true") < 11 {
		t.Errorf("it wrote\n%s", wrote)
	}
}
