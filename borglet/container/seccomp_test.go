//go:build linux && cgo

package container

import (
	"slices"
	"testing"
)

// TestAllowedCalls: nothing is allowed that would let a task out, and nothing
// is named twice.
func TestAllowedCalls(t *testing.T) {
	never := []string{
		"mount", "umount", "umount2", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount", "open_tree", "mount_setattr", "pivot_root",
		"chroot", "setns", "unshare", "clone3", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter",
		"io_uring_register", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "keyctl", "add_key",
		"request_key", "open_by_handle_at", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
		"swapon", "swapoff", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "stime", "quotactl", "quotactl_fd", "acct",
		"syslog", "iopl", "ioperm", "vm86", "vm86old", "sethostname", "setdomainname", "vhangup", "fanotify_init", "lookup_dcookie",
		"move_pages", "migrate_pages", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl", "socketcall", "ipc", "syscall",
	}
	rules := map[string]bool{}
	for _, r := range callRules {
		rules[r.name] = true
		if len(r.args) == 0 {
			t.Errorf("the rule for %s has no argument: %s", r.name, r.why)
		}
	}
	seen := map[string]bool{}
	for _, g := range allowedCalls {
		if g.why == "" {
			t.Errorf("no reason is given for %v", g.names)
		}
		for _, name := range g.names {
			if seen[name] || rules[name] || slices.Contains(absentCalls, name) {
				t.Errorf("%s is there twice", name)
			}
			if slices.Contains(never, name) {
				t.Errorf("%s is allowed", name)
			}
			seen[name] = true
		}
	}
	for _, s := range filterProfile().Syscalls {
		if slices.Contains(never, s.Name) && !slices.Contains(absentCalls, s.Name) {
			t.Errorf("%s is in the filter with action %d", s.Name, s.Action)
		}
	}
}
