//go:build linux && cgo

package container

import (
	"slices"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// attachOptions are the options of sockets that attach a filter. The kernel compiles it into
// memory that it bounds for the machine and that nobody can trace to a task.
var attachOptions = []uint64{unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF}

// optionBits is how many bits of levels and options are looked at. All of Linux have fewer.
const optionBits = 9

// filterRules are the rules of calls that install filters.
//
// A socket takes no filter, as if the kernel had none (ENOPROTOOPT): programs such as libpcap
// then filter for themselves, and treat other errors as a fault.
//
// A filter of system calls is allowed, but not one that somebody is asked by
// (SECCOMP_FILTER_FLAG_NEW_LISTENER): it would stay with the descriptor to ask by when its
// process has ended, where nobody counts it. Its flag is refused as by a kernel that
// does not know it (EINVAL).
func filterRules() (rules []*configs.Syscall) {
	rule := func(name string, action configs.Action, errno unix.Errno, args ...*configs.Arg) {
		s := &configs.Syscall{Name: name, Action: action, Args: args}
		if action == configs.Errno {
			n := uint(errno)
			s.ErrnoRet = &n
		}
		rules = append(rules, s)
	}
	// The kernel looks at the lower half of a level and an option only.
	is := func(index uint, value uint64) *configs.Arg {
		return &configs.Arg{Index: index, Op: configs.MaskEqualTo, Value: 1<<32 - 1, ValueTwo: value}
	}
	for _, option := range attachOptions {
		rule("setsockopt", configs.Errno, unix.ENOPROTOOPT, is(1, unix.SOL_SOCKET), is(2, option))
	}
	for _, a := range allBut([]uint64{unix.SOL_SOCKET}, 1) {
		rule("setsockopt", configs.Allow, 0, a)
	}
	for _, a := range allBut(attachOptions, 2) {
		rule("setsockopt", configs.Allow, 0, is(1, unix.SOL_SOCKET), a)
	}
	listener := func(value uint64) *configs.Arg {
		return &configs.Arg{Index: 1, Op: configs.MaskEqualTo, Value: unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, ValueTwo: value}
	}
	rule("seccomp", configs.Allow, 0, listener(0))
	rule("seccomp", configs.Errno, unix.EINVAL, listener(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER))
	return rules
}

// allBut returns conditions of which an argument meets one exactly if its lowest optionBits are
// none of some values. A filter can compare an argument once in a rule, and "not equal" would
// look at the upper half too, which the kernel does not.
func allBut(values []uint64, index uint) (conditions []*configs.Arg) {
	const all = 1<<optionBits - 1
	var split func(mask, begin uint64)
	split = func(mask, begin uint64) {
		switch has := slices.ContainsFunc(values, func(v uint64) bool { return v&mask == begin }); {
		case !has:
			conditions = append(conditions, &configs.Arg{Index: index, Op: configs.MaskEqualTo, Value: mask, ValueTwo: begin})
		case mask != all:
			bit := (mask | (all + 1)) >> 1 &^ mask
			split(mask|bit, begin)
			split(mask|bit, begin|bit)
		}
	}
	split(0, 0)
	return conditions
}
