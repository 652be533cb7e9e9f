package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sharedCount is something that the kernel counts for the machine as a whole, or for each user
// alike, and of which tasks may take much.
type sharedCount struct {
	sysctl string
	// least is what many tasks need; good is what to set.
	least, good int64
	// what runs out.
	what string
}

// sharedCounts are looked at in this order. A task has at most 4,096 processes and 65,536
// open files; all tasks leave a quarter of the processes to the system. Of what is counted
// by user each task has its own count, as it has its own user ids.
var sharedCounts = []sharedCount{
	{"kernel.pid_max", 65_536, 4_194_304, "processes: a few tasks can take all that tasks may have"},
	{"kernel.threads-max", 65_536, 4_194_304, "threads: a few tasks can take all that tasks may have"},
	{"fs.file-max", 1 << 18, 1 << 23, "open files: a few tasks can take all of the machine"},
	{"fs.aio-max-nr", 65_536, 1_048_576, "asynchronous reads and writes: one database takes all of the machine"},
	{"fs.inotify.max_user_instances", 128, 1024, "instances of inotify: a task that watches files gets too few"},
	{"fs.inotify.max_user_watches", 8192, 524_288, "watches of inotify: a task that watches files gets too few"},
	{"fs.mqueue.queues_max", 64, 256, "message queues: a task gets too few"},
	{"user.max_user_namespaces", 4096, 65_536, "user namespaces: tasks get none of their own and share root's counts"},
	{"kernel.keys.maxkeys", 100, 200, "keys: a task gets too few"},
}

// readSysctls reads what there is of them below a directory.
func readSysctls(root string) map[string]int64 {
	values := make(map[string]int64)
	for _, c := range sharedCounts {
		parts := strings.Split(c.sysctl, ".")
		text, err := os.ReadFile(filepath.Join(append([]string{root}, parts...)...))
		if err != nil {
			continue
		}
		// Some are above what a signed number can be: no limit.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			values[c.sysctl] = n
		}
	}
	return values
}

// counters says which of them run out too early, and what to type.
func counters(f facts) finding {
	r := finding{what: "kernel counters", seen: "processes, files and inotify are enough for many tasks"}
	var seen, fix []string
	for _, c := range sharedCounts {
		if n, known := f.sysctls[c.sysctl]; known && n < c.least {
			seen = append(seen, fmt.Sprintf("%s is %d, at least %d is wanted (%s)", c.sysctl, n, c.least, c.what))
			fix = append(fix, fmt.Sprintf("%s=%d", c.sysctl, c.good))
		}
	}
	if len(seen) > 0 {
		r.level, r.seen = weaker, strings.Join(seen, "; ")
		r.fix = "sysctl -w " + strings.Join(fix, " ") + "; to keep it, write the same to /etc/sysctl.d/90-borg.conf"
	}
	return r
}
