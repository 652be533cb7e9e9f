package container

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"borg/borglet"
	"borg/borglet/sockets"
)

// filterLimit bounds the machine code of BPF programs, filters of system calls among them. Only
// programs of root in the machine's user name space may go beyond it.
const filterLimit = "net/core/bpf_jit_limit"

// filterWatch finds out when filters take so much that it must be known whose they are.
type filterWatch struct {
	due time.Time
	// walkDue is when tasks are looked at again, unless filters take much more than the
	// thenBytes of the last walk, or less since.
	walkDue   time.Time
	thenBytes int64
}

// filtersHeld returns what the filters of system calls of each copy hold; nil while no copy can
// hold more than its part, and where the kernel does not tell.
func (r *Runtime) filtersHeld(now time.Time) map[borglet.ID]sockets.Use {
	w := &r.sockets.filters
	if now.Before(w.due) {
		return nil
	}
	limit, err := readSysctl("/proc/sys/" + filterLimit)
	programs, readErr := readPrograms("/proc/vmallocinfo")
	w.due = now.Add(max(inetEvery, walkRest*time.Since(now)))
	if err != nil || readErr != nil {
		return nil
	}
	machine := &r.sockets.machine
	machine[sockets.Filters], machine[sockets.LikelyFilters], machine[sockets.HiddenFilters] = limit, limit, limit
	part, bytes := machine.OfTask()[sockets.Filters], programs.Bytes()
	w.thenBytes = min(w.thenBytes, bytes)
	if bytes <= part || now.Before(w.walkDue) && bytes-w.thenBytes <= part {
		return nil
	}
	w.thenBytes = bytes
	began := time.Now()
	held := r.walkFilters(&programs)
	isOver := false
	for _, u := range held {
		isOver = isOver || u.Exceeds(machine.OfTask())
	}
	if !isOver {
		w.walkDue = time.Now().Add(walkRest * time.Since(began))
	}
	return held
}

// walkFilters counts the filters of all copies.
func (r *Runtime) walkFilters(programs *sockets.Programs) map[borglet.ID]sockets.Use {
	members, err := r.backend.members(r.processes(r.ids()))
	if err != nil {
		return nil
	}
	held, hidden := make(map[borglet.ID]sockets.Use, len(members)), map[borglet.ID]int64{}
	unknown := programs.Count()
	for id, pids := range members {
		var task []sockets.Process
		for _, pid := range pids {
			task = append(task, filtersOf(pid))
		}
		var n int64
		n, hidden[id] = sockets.CountFilters(task)
		held[id] = sockets.Use{sockets.Filters: programs.Least(n), sockets.LikelyFilters: programs.Average(n)}
		unknown -= n
	}
	if unknown <= 0 || programs.Average(unknown) <= r.sockets.machine.OfTasks()[sockets.HiddenFilters] {
		return held
	}
	for id, u := range held {
		u[sockets.HiddenFilters] = programs.Average(min(hidden[id], unknown))
		held[id] = u
	}
	return held
}

// readPrograms reads which BPF programs the machine has.
func readPrograms(file string) (sockets.Programs, error) {
	programs := sockets.Programs{PageBytes: int64(os.Getpagesize())}
	f, err := os.Open(file)
	if err != nil {
		return programs, fmt.Errorf("read the memory of filters: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		programs.Add(lines.Text())
	}
	if err := lines.Err(); err != nil {
		return programs, fmt.Errorf("read the memory of filters: %w", err)
	}
	return programs, nil
}

// filtersOf reads how many filters the threads of a process have; none if it has ended.
func filtersOf(pid int) sockets.Process {
	p := sockets.Process{ID: pid}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return p
	}
	for _, t := range threads {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, t.Name()))
		if err != nil {
			continue
		}
		n := int64(0)
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch value = strings.TrimSpace(value); key {
			case "PPid":
				p.Parent, _ = strconv.Atoi(value)
			case "Seccomp_filters":
				n, _ = strconv.ParseInt(value, 10, 64)
			}
		}
		p.Threads = append(p.Threads, n)
		if t.Name() == strconv.Itoa(pid) {
			p.Leader = n
		}
	}
	return p
}
