//go:build linux && cgo

package container

import (
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"golang.org/x/sys/unix"
)

// HasFilter: this program was built with libseccomp (the tag seccomp) and can filter
// system calls.
const HasFilter = seccomp.Enabled

// What a filter is called in a machine's attributes.
const (
	filterOn  = "filter"
	filterOff = "none"
)

func filterName() string {
	if HasFilter {
		return filterOn
	}
	return filterOff
}

// callGroup is system calls that are allowed for one reason.
type callGroup struct {
	why   string
	names []string
}

// allowedCalls are what a task may call, whatever the arguments. What is in no
// group here is answered with EPERM, or with ENOSYS if it is newer than all of
// these or among absentCalls.
//
// Left out for good: mount and its like, pivot_root, chroot (the file system is
// the borglet's to make); setns, unshare and clone3 (name spaces: a user name
// space of one's own gives capabilities in it, behind which most holes in kernels
// lie); bpf, perf_event_open, userfaultfd, io_uring (much of the kernel for few
// programs); ptrace, process_vm_readv and writev, kcmp, pidfd_getfd (other
// processes' insides); keyctl and its like (keys are in no name space);
// open_by_handle_at (files by number, past all mounts); modules, kexec, reboot,
// swap, clocks, quota, accounting (the machine's).
var allowedCalls = []callGroup{
	{"files and directories", []string{
		"access", "chdir", "chmod", "chown", "chown32", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3",
		"faccessat", "faccessat2", "fadvise64", "fadvise64_64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown",
		"fchown32", "fchownat", "fcntl", "fcntl64", "fdatasync", "fgetxattr", "flistxattr", "flock", "fremovexattr", "fsetxattr",
		"fstat", "fstat64", "fstatat64", "fstatfs", "fstatfs64", "fsync", "ftruncate", "ftruncate64", "futimesat", "getcwd", "getdents",
		"getdents64", "getxattr", "getxattrat", "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "ioctl",
		"lchown", "lchown32", "lgetxattr", "link", "linkat", "listxattr", "listxattrat", "llistxattr", "_llseek", "lremovexattr",
		"lseek", "lsetxattr", "lstat", "lstat64", "mkdir", "mkdirat", "mknod", "mknodat", "name_to_handle_at", "newfstatat", "open",
		"openat", "openat2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink",
		"readlinkat", "readv", "removexattr", "removexattrat", "rename", "renameat", "renameat2", "rmdir", "sendfile", "sendfile64",
		"setxattr", "setxattrat", "splice", "stat", "stat64", "statfs", "statfs64", "statx", "symlink", "symlinkat", "sync",
		"sync_file_range", "syncfs", "tee", "truncate", "truncate64", "umask", "unlink", "unlinkat", "utime", "utimensat",
		"utimensat_time64", "utimes", "vmsplice", "write", "writev",
		"io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_pgetevents_time64", "io_setup", "io_submit",
	}},
	{"memory", []string{
		"brk", "cachestat", "get_mempolicy", "madvise", "map_shadow_stack", "mbind", "membarrier", "memfd_create", "mincore", "mlock",
		"mlock2", "mlockall", "mmap", "mmap2", "mprotect", "mremap", "mseal", "msync", "munlock", "munlockall", "munmap",
		"pkey_alloc", "pkey_free", "pkey_mprotect", "process_madvise", "process_mrelease", "remap_file_pages", "set_mempolicy",
	}},
	{"processes and threads: its own, in its own pid name space", []string{
		"arch_prctl", "capget", "capset", "execve", "execveat", "exit", "exit_group", "fork", "futex", "futex_requeue",
		"futex_time64", "futex_wait", "futex_waitv", "futex_wake", "get_robust_list", "get_thread_area", "getcpu", "getpgid", "getpgrp",
		"getpid", "getppid", "getpriority", "getrlimit", "getrusage", "getsid", "gettid", "ioprio_get", "ioprio_set", "kill",
		"landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "modify_ldt", "nanosleep", "pause", "pidfd_open",
		"pidfd_send_signal", "prctl", "prlimit64", "restart_syscall", "riscv_flush_icache", "riscv_hwprobe", "rseq",
		"sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam",
		"sched_getscheduler", "sched_rr_get_interval", "sched_rr_get_interval_time64", "sched_setaffinity", "sched_setattr",
		"sched_setparam", "sched_setscheduler", "sched_yield", "set_robust_list", "set_thread_area", "set_tid_address",
		"setpgid", "setpriority", "setrlimit", "setsid", "tgkill", "tkill", "ugetrlimit", "uretprobe", "vfork", "wait4", "waitid",
		"waitpid",
	}},
	{"who one is: without capabilities only what it is already", []string{
		"getegid", "getegid32", "geteuid", "geteuid32", "getgid", "getgid32", "getgroups", "getgroups32", "getresgid", "getresgid32",
		"getresuid", "getresuid32", "getuid", "getuid32", "setfsgid", "setfsgid32", "setfsuid", "setfsuid32", "setgid", "setgid32",
		"setgroups", "setgroups32", "setregid", "setregid32", "setresgid", "setresgid32", "setresuid", "setresuid32", "setreuid",
		"setreuid32", "setuid", "setuid32",
	}},
	{"signals, timers, waiting", []string{
		"alarm", "clock_getres", "clock_getres_time64", "clock_gettime", "clock_gettime64", "clock_nanosleep",
		"clock_nanosleep_time64", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2",
		"epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "getitimer", "gettimeofday", "_newselect", "pipe", "pipe2", "poll",
		"ppoll", "ppoll_time64", "pselect6", "pselect6_time64", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo",
		"rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_sigtimedwait_time64", "rt_tgsigqueueinfo", "select", "setitimer",
		"sigaltstack", "signalfd", "signalfd4", "sigprocmask", "sigreturn", "time", "timer_create", "timer_delete",
		"timer_getoverrun", "timer_gettime", "timer_gettime64", "timer_settime", "timer_settime64", "timerfd_create",
		"timerfd_gettime", "timerfd_gettime64", "timerfd_settime", "timerfd_settime64", "times",
	}},
	{"sockets; of which families, in callRules, and their options, in filterRules", []string{
		"accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recv", "recvfrom", "recvmmsg",
		"recvmmsg_time64", "recvmsg", "send", "sendmmsg", "sendmsg", "sendto", "shutdown", "socketpair",
	}},
	{"between its own processes, in its own ipc name space", []string{
		"mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedreceive_time64", "mq_timedsend", "mq_timedsend_time64",
		"mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "semtimedop_time64", "shmat",
		"shmctl", "shmdt", "shmget",
	}},
	{"the machine, to be asked only", []string{
		"getrandom", "sysinfo", "uname",
	}},
}

// absentCalls are answered as if the kernel had none: programs then do
// with what came before. clone3 has its flags in memory, where a filter cannot
// look, so that clone is all that can be judged.
var absentCalls = []string{"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "bpf", "perf_event_open"}

// callRules are calls that are allowed with some arguments.
var callRules = []struct {
	why, name string
	args      []*configs.Arg
}{
	{"processes and threads, without name spaces of their own", "clone", []*configs.Arg{
		{Index: 0, Op: configs.MaskEqualTo, Value: unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET, ValueTwo: 0},
	}},
	// Linux and 32-bit Linux, with or without the release called 2.6, and the
	// question what it is. None that takes randomness from addresses.
	{"personality of Linux", "personality", []*configs.Arg{{Index: 0, Op: configs.EqualTo, Value: 0}}},
	{"personality of 32 bits", "personality", []*configs.Arg{{Index: 0, Op: configs.EqualTo, Value: 0x8}}},
	{"personality with an old release", "personality", []*configs.Arg{{Index: 0, Op: configs.EqualTo, Value: 0x20000}}},
	{"personality of 32 bits with an old release", "personality", []*configs.Arg{{Index: 0, Op: configs.EqualTo, Value: 0x20008}}},
	{"which personality it is", "personality", []*configs.Arg{{Index: 0, Op: configs.EqualTo, Value: 0xffffffff}}},
	// No other families: most holes reached by sockets were in rare ones.
	{"local sockets", "socket", []*configs.Arg{{Index: 0, Op: configs.EqualTo, Value: unix.AF_UNIX}}},
	{"IPv4", "socket", []*configs.Arg{{Index: 0, Op: configs.EqualTo, Value: unix.AF_INET}}},
	{"IPv6", "socket", []*configs.Arg{{Index: 0, Op: configs.EqualTo, Value: unix.AF_INET6}}},
	{"addresses and routes, to be read", "socket", []*configs.Arg{
		{Index: 0, Op: configs.EqualTo, Value: unix.AF_NETLINK}, {Index: 2, Op: configs.EqualTo, Value: unix.NETLINK_ROUTE},
	}},
}

// callFilter is what a task may ask of the kernel; nil: this build has no
// filter. Programs for another kind of processor than the kernel's own, such as
// 32-bit ones, are killed: their calls have other numbers and forms.
func callFilter() *configs.Seccomp {
	if !HasFilter {
		return nil
	}
	return filterProfile()
}

func filterProfile() *configs.Seccomp {
	denied, absent := uint(unix.EPERM), uint(unix.ENOSYS)
	f := &configs.Seccomp{DefaultAction: configs.Errno, DefaultErrnoRet: &denied}
	for _, g := range allowedCalls {
		for _, name := range g.names {
			f.Syscalls = append(f.Syscalls, &configs.Syscall{Name: name, Action: configs.Allow})
		}
	}
	for _, r := range callRules {
		f.Syscalls = append(f.Syscalls, &configs.Syscall{Name: r.name, Action: configs.Allow, Args: r.args})
	}
	f.Syscalls = append(f.Syscalls, filterRules()...)
	for _, name := range absentCalls {
		f.Syscalls = append(f.Syscalls, &configs.Syscall{Name: name, Action: configs.Errno, ErrnoRet: &absent})
	}
	return f
}
