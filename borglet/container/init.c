//go:build linux && cgo

// The first process of a container. It starts the task's program, passes
// signals on to it, collects what it leaves behind, and writes how it ended.
//
// A program that is the first process of its own is not ended by signals that
// it does not handle, so that a plain sleep would have to be killed, and what
// a signal ended would look like something else. Beside an init, a program
// lives and dies as anywhere.
//
// It runs before the Go runtime starts and instead of it: it costs a task a
// few pages of memory.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

// Set by the shim for the init alone; see init.go.
#define INIT_VARIABLE "_BORG_INIT"
// The file that says how the program ended.
#define STATUS_FD 3

static void write_status(const char *word, int n) {
	char line[32];
	int len = snprintf(line, sizeof line, "%s %d\n", word, n);
	ssize_t done = write(STATUS_FD, line, len);
	(void)done;
}

// arguments returns what follows the first "--" of the command line: the
// working directory, then the program and its arguments. How a
// constructor is given its arguments differs between C libraries; /proc does
// not.
static char **arguments(void) {
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	size_t size = 0, room = 1 << 16;
	char *buf = malloc(room);
	while (buf != NULL) {
		ssize_t n = read(fd, buf + size, room - size - 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		size += n;
		if (room - size < 2)
			buf = realloc(buf, room *= 2);
	}
	close(fd);
	if (buf == NULL)
		return NULL;
	buf[size] = 0;
	size_t count = 0;
	for (size_t i = 0; i < size; i += strlen(buf + i) + 1)
		count++;
	char **argv = calloc(count + 1, sizeof *argv);
	if (argv == NULL)
		return NULL;
	size_t n = 0;
	int ours = 1;
	for (size_t i = 0; i < size; i += strlen(buf + i) + 1) {
		if (!ours)
			argv[n++] = buf + i;
		else if (strcmp(buf + i, "--") == 0)
			ours = 0;
	}
	return n > 1 ? argv : NULL;
}

// exec_file starts one file, or returns with errno set. A script without an interpreter
// line is run by the shell, as execvp would; a program of another machine is not.
static void exec_file(const char *path, char **argv) {
	execv(path, argv);
	if (errno != ENOEXEC)
		return;
	char magic[4] = {0};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, magic, sizeof magic);
	if (fd >= 0)
		close(fd);
	size_t count = 0;
	while (argv[count] != NULL)
		count++;
	char **sh = calloc(count + 2, sizeof *sh);
	if (sh != NULL && n > 0 && memchr(magic, 0, n) == NULL && memcmp(magic, "\x7f" "ELF", 4) != 0) {
		sh[0] = "/bin/sh";
		sh[1] = (char *)path;
		memcpy(sh + 2, argv + 1, count * sizeof *sh);
		execv(sh[0], sh);
	}
	errno = ENOEXEC;
}

// fail_program says why a file could not be started. If the file is there, what it names
// as its interpreter is not.
static void fail_program(const char *path, int error) {
	if (error == ENOENT && path != NULL && access(path, F_OK) == 0)
		write_status("interpreter", error);
	else
		write_status("error", error);
	_exit(127);
}

// exec_program is execvp that says why it fails.
static void exec_program(char **argv) {
	const char *name = argv[0];
	if (strchr(name, '/') != NULL) {
		exec_file(name, argv);
		fail_program(name, errno);
	}
	const char *search = getenv("PATH");
	if (*name == 0 || search == NULL)
		fail_program(NULL, ENOENT);
	char *path = malloc(strlen(search) + strlen(name) + 3);
	if (path == NULL)
		fail_program(NULL, ENOMEM);
	int denied = 0;
	for (const char *p = search;; p++) {
		size_t n = strcspn(p, ":");
		sprintf(path, "%.*s%s%s", (int)n, p, n > 0 ? "/" : "./", name);
		exec_file(path, argv);
		switch (errno) {
		case EACCES:
			denied = 1;
			break;
		case ENOENT:
			if (access(path, F_OK) == 0)
				fail_program(path, ENOENT);
			break;
		case ENOTDIR:
		case ELOOP:
		case ENAMETOOLONG:
			break;
		default:
			fail_program(path, errno);
		}
		p += n;
		if (*p == 0)
			break;
	}
	fail_program(NULL, denied ? EACCES : ENOENT);
}

static void run_program(char **argv, const sigset_t *mask) {
	sigprocmask(SIG_SETMASK, mask, NULL);
	if (chdir(argv[0]) != 0) {
		write_status("chdir", errno);
		_exit(127);
	}
	exec_program(argv + 1);
	_exit(127);
}

// collect takes in every process that has ended. When it was the program, the
// init ends too, and the kernel ends all that is left.
static void collect(pid_t program) {
	for (;;) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);
		if (pid < 0 && errno == EINTR)
			continue;
		if (pid <= 0)
			return;
		if (pid != program)
			continue;
		if (WIFSIGNALED(status)) {
			write_status("signal", WTERMSIG(status));
			_exit(128 + WTERMSIG(status));
		}
		write_status("exit", WEXITSTATUS(status));
		_exit(WEXITSTATUS(status));
	}
}

__attribute__((constructor)) static void borg_init(void) {
	if (getenv(INIT_VARIABLE) == NULL)
		return;
	unsetenv(INIT_VARIABLE);
	// The task has the user of its init. It must not look into the memory and the
	// files of the init all the same, of which one is the borglet's: how it ended, on
	// a disk where nobody counts what is written. The program that is started can
	// be looked into again.
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	sigset_t all, before;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	fcntl(STATUS_FD, F_SETFD, FD_CLOEXEC);
	// From here on no signal is lost.
	write_status("ready", 0);
	char **argv = arguments();
	if (argv == NULL) {
		write_status("error", errno != 0 ? errno : EINVAL);
		_exit(127);
	}
	pid_t program = fork();
	if (program == 0)
		run_program(argv, &before);
	if (program < 0) {
		write_status("error", errno);
		_exit(127);
	}
	for (;;) {
		int sig = sigwaitinfo(&all, NULL);
		if (sig == SIGCHLD)
			collect(program);
		else if (sig > 0)
			kill(program, sig);
	}
}
