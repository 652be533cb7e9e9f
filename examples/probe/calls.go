//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// raw makes a system call that Go has no name for.
func raw(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

// calls makes each of the system calls that no task may make. What they are given
// is such that one that is let in fails otherwise, or changes nothing.
func (p *probe) calls() {
	var text = [...]byte{'p', 'r', 'o', 'b', 'e', 0}
	name, none := uintptr(unsafe.Pointer(&text[0])), ^uintptr(0)
	var space [128]byte
	room := uintptr(unsafe.Pointer(&space[0]))
	for _, c := range []struct {
		name string
		err  error
	}{
		{"mount", unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "")},
		{"umount", unix.Unmount("/tmp", 0)},
		{"remount-usr", unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "")},
		{"pivot_root", unix.PivotRoot("/tmp", "/tmp")},
		{"chroot", unix.Chroot("/tmp")},
		{"fsopen", raw(unix.SYS_FSOPEN, name, 0)},
		{"open_tree", raw(unix.SYS_OPEN_TREE, none, name, unix.OPEN_TREE_CLONE)},
		{"move_mount", raw(unix.SYS_MOVE_MOUNT, none, name, none, name, 0)},
		{"mount_setattr", raw(unix.SYS_MOUNT_SETATTR, none, name, 0, room, 0)},
		{"unshare-user", unix.Unshare(unix.CLONE_NEWUSER)},
		{"unshare-mounts", unix.Unshare(unix.CLONE_NEWNS)},
		{"unshare-network", unix.Unshare(unix.CLONE_NEWNET)},
		{"clone-user", clone(unix.CLONE_NEWUSER)},
		{"clone-network", clone(unix.CLONE_NEWNET)},
		{"clone3", raw(unix.SYS_CLONE3, 0, 0)},
		{"setns", setns()},
		{"ptrace-init", unix.PtraceAttach(1)},
		{"process_vm_readv", raw(unix.SYS_PROCESS_VM_READV, 1, 0, 0, 0, 0, 0)},
		{"process_vm_writev", raw(unix.SYS_PROCESS_VM_WRITEV, 1, 0, 0, 0, 0, 0)},
		{"kcmp", raw(unix.SYS_KCMP, 1, 1, 0, 0, 0)},
		{"pidfd_getfd", raw(unix.SYS_PIDFD_GETFD, none, 0, 0)},
		{"bpf", raw(unix.SYS_BPF, 0, room, 0)},
		{"perf_event_open", raw(unix.SYS_PERF_EVENT_OPEN, room, 0, none, none, 0)},
		{"userfaultfd", raw(unix.SYS_USERFAULTFD, 0)},
		{"io_uring_setup", raw(unix.SYS_IO_URING_SETUP, 1, room)},
		{"add_key", raw(unix.SYS_ADD_KEY, name, name, 0, 0, 0)},
		{"request_key", raw(unix.SYS_REQUEST_KEY, name, name, 0, 0)},
		{"keyctl", raw(unix.SYS_KEYCTL, 0, none, 0)},
		{"open_by_handle_at", raw(unix.SYS_OPEN_BY_HANDLE_AT, none, room, 0)},
		{"init_module", raw(unix.SYS_INIT_MODULE, 0, 0, name)},
		{"finit_module", raw(unix.SYS_FINIT_MODULE, none, name, 0)},
		{"delete_module", raw(unix.SYS_DELETE_MODULE, name, 0)},
		{"kexec_load", raw(unix.SYS_KEXEC_LOAD, 0, 0, 0, none)},
		// Without the numbers that are asked for beside it, it is none.
		{"reboot", raw(unix.SYS_REBOOT, 0, 0, 0, 0)},
		{"swapon", raw(unix.SYS_SWAPON, name, 0)},
		{"swapoff", raw(unix.SYS_SWAPOFF, name)},
		{"quotactl", raw(unix.SYS_QUOTACTL, none, 0, 0, 0)},
		{"acct", raw(unix.SYS_ACCT, name)},
		{"syslog", raw(unix.SYS_SYSLOG, 10, 0, 0)},
		{"fanotify_init", raw(unix.SYS_FANOTIFY_INIT, 0, 0)},
		{"move_pages", raw(unix.SYS_MOVE_PAGES, 1, 0, 0, 0, 0, 0)},
		{"migrate_pages", raw(unix.SYS_MIGRATE_PAGES, 1, 0, 0, 0)},
		{"personality-without-randomness", raw(unix.SYS_PERSONALITY, 0x0040000)},
		{"clock_settime", setClock()},
		{"adjtimex", raw(unix.SYS_ADJTIMEX, 0)},
		{"sethostname", setHostname()},
		{"setdomainname", unix.Setdomainname([]byte("probe"))},
		{"vhangup", raw(unix.SYS_VHANGUP)},
	} {
		p.try("call."+c.name, c.err)
	}
	p.tell("call.of-32-bits", "%s", anotherKind())
}

// clone starts this program in a name space of its own.
func clone(flags uintptr) error {
	cmd := exec.Command("/proc/self/exe", "-h")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = cmd.Wait() // it says how it is used
	return nil
}

// setns enters the name space of mounts that it is in.
func setns() error {
	f, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNS)
}

// setClock sets the clock to what it says.
func setClock() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		return err
	}
	return unix.ClockSettime(unix.CLOCK_REALTIME, &now)
}

// setHostname gives the machine the name that it has.
func setHostname() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	return unix.Sethostname([]byte(name))
}

// otherKind is the argument with which this program is to call the kernel as a
// program for another kind of processor would.
const otherKind = "call-as-another-kind"

// killed is what is to become of such a program. Where the kernel kills the thread
// alone, the program says so itself.
const killed = "killed"

// anotherKind is what became of such a program.
func anotherKind() string {
	said, err := exec.Command("/proc/self/exe", otherKind).Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled():
		return killed
	case err != nil:
		return outcome(err)
	}
	return string(said)
}

// tryOtherKind makes such a call in a thread of its own, and prints what became of
// the thread.
func tryOtherKind() {
	thread, done := make(chan int), make(chan struct{})
	// It ends with the call, or is killed in it.
	go func() {
		runtime.LockOSThread()
		thread <- unix.Gettid()
		callOtherKind()
		close(done)
	}()
	status := fmt.Sprintf("/proc/self/task/%d/status", <-thread)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			fmt.Print("done")
			return
		case <-tick.C:
			text, err := os.ReadFile(status)
			if err != nil || strings.HasPrefix(statusField(string(text), "State"), "Z") {
				fmt.Print(killed)
				return
			}
		}
	}
}
