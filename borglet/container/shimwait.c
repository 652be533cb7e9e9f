//go:build linux && cgo

// A shim that waits for its task. It does nothing else for nearly all of its life,
// and there is one for each task: a Go program takes megabytes for that, and this
// takes what the C library does. When the task has ended the shim goes on as the
// Go program that it was, which collects the task.

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

// The process to wait for, the directory of the copy, and, for the program that goes
// on, the process that has ended; see shimwait.go.
#define WAIT_VARIABLE "_BORG_SHIM_WAIT"
#define DIR_VARIABLE "_BORG_SHIM_DIR"
#define ENDED_VARIABLE "_BORG_SHIM_ENDED"

__attribute__((constructor)) static void borg_shim_wait(void) {
	char *pid = getenv(WAIT_VARIABLE), *dir = getenv(DIR_VARIABLE);
	if (pid == NULL || dir == NULL)
		return;
	// It was started by another name of its program.
	prctl(PR_SET_NAME, "borglet", 0, 0, 0);
	siginfo_t info;
	// It stays to be collected. Without such a child there is nothing to wait for.
	while (waitid(P_PID, atol(pid), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
		;
	char *args[] = {"borglet", "shim", dir, NULL};
	if (setenv(ENDED_VARIABLE, pid, 1) == 0 && unsetenv(WAIT_VARIABLE) == 0)
		execv("/proc/self/exe", args);
	// The borglet does what is left to do.
	_exit(1);
}
