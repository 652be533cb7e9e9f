package cli

import "golang.org/x/sys/unix"

// HideMemory keeps the memory of this process to itself, because keys and secrets of
// others are in it: the kernel writes no core of it, whatever the limit on cores is
// and wherever they go, and of all processes only root's with the right to trace
// may look into it. The programs that it starts are not concerned: tasks may leave
// cores, as their limit says, which is why that is not touched.
func HideMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return Errorf(Failed, "keep the memory of this process out of core dumps: %w", err)
	}
	return nil
}
