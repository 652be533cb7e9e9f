//go:build linux && cgo

package container

import (
	"slices"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// actions returns what the rules of a call do with arguments: all that match.
func actions(name string, args ...uint64) (found []configs.Action) {
	for _, s := range filterRules() {
		matches := s.Name == name
		for _, a := range s.Args {
			matches = matches && args[a.Index]&a.Value == a.ValueTwo
		}
		if matches {
			found = append(found, s.Action)
		}
	}
	return found
}

// TestSocketFilters: each option of a socket is allowed by one rule, but those that attach a
// filter are refused, also with something in the half that the kernel does not look at.
func TestSocketFilters(t *testing.T) {
	for _, level := range []uint64{unix.SOL_IP, unix.SOL_SOCKET, 2, unix.SOL_TCP, unix.SOL_UDP, unix.SOL_IPV6, unix.SOL_NETLINK, 284, 511} {
		for option := range uint64(1 << optionBits) {
			for _, upper := range []uint64{0, 1 << 32} {
				want := []configs.Action{configs.Allow}
				if level == unix.SOL_SOCKET && slices.Contains(attachOptions, option) {
					want[0] = configs.Errno
				}
				if got := actions("setsockopt", 3, level|upper, option|upper); !slices.Equal(got, want) {
					t.Errorf("level %d, option %d, upper half %#x: %v, want %v", level, option, upper, got, want)
				}
			}
		}
	}
	for flags, want := range map[uint64]configs.Action{
		0: configs.Allow, unix.SECCOMP_FILTER_FLAG_TSYNC: configs.Allow,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER: configs.Errno, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_LOG: configs.Errno,
	} {
		if got := actions("seccomp", 1, flags); len(got) != 1 || got[0] != want {
			t.Errorf("flags %#x: %v, want %v", flags, got, want)
		}
	}
}
