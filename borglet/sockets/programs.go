package sockets

import (
	"slices"
	"strconv"
	"strings"
)

// Programs is the BPF programs of a machine, filters among them, as /proc/vmallocinfo has them.
type Programs struct {
	// PageBytes is the size of a page.
	PageBytes int64

	// compiled is the pages of machine code.
	compiled int64
	// pages is the size of each program before it is compiled.
	pages []int64
}

// compilers are the beginnings of the names of kernel functions that allocate machine code of
// BPF programs: of many programs at a time, or of one, by the kind of processor.
var compilers = []string{"bpf_prog_pack_alloc", "alloc_new_pack", "bpf_jit_"}

// loader begins the names of those that allocate a program before it is compiled.
const loader = "bpf_prog_"

// Add adds a line of /proc/vmallocinfo.
func (p *Programs) Add(line string) {
	// addresses bytes caller+offset/length pages=N ...
	_, rest, _ := strings.Cut(line, " ")
	rest, counted, isCounted := strings.Cut(rest, " pages=")
	if !isCounted {
		return
	}
	_, caller, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
	digits, _, _ := strings.Cut(strings.TrimRight(counted, "\n"), " ")
	pages, err := strconv.ParseInt(digits, 10, 64)
	switch isCompiler := func(begin string) bool { return strings.HasPrefix(caller, begin) }; {
	case err != nil || pages <= 0:
	case slices.ContainsFunc(compilers, isCompiler):
		p.compiled += pages
	case strings.HasPrefix(caller, loader):
		p.pages = append(p.pages, pages)
	}
}

// Count returns how many programs there are.
func (p *Programs) Count() int64 { return int64(len(p.pages)) }

// Bytes returns what all programs take, compiled.
func (p *Programs) Bytes() int64 { return p.compiled * p.PageBytes }

// Average returns what so many programs take, compiled, if they are as large as others.
func (p *Programs) Average(n int64) int64 {
	if len(p.pages) == 0 {
		return 0
	}
	return p.Bytes() / p.Count() * min(n, p.Count())
}

// Least returns what so many programs take, compiled, if they are the smallest of the machine.
func (p *Programs) Least(n int64) int64 {
	if len(p.pages) == 0 {
		return 0
	}
	slices.Sort(p.pages)
	var least, all int64
	for i, pages := range p.pages {
		all += pages
		if int64(i) < n {
			least += pages
		}
	}
	return p.Bytes() / all * least
}

// Process is a process of a task.
type Process struct {
	ID, Parent int
	// Leader is how many filters of system calls its first thread has, and Threads how many
	// each has, the first one too.
	Leader  int64
	Threads []int64
}

// CountFilters counts the filters of a task. A child has the filters of its parent, which are there
// once: certain is how many its processes and threads have more than those that they come from.
// A parent that got more of them after its children began may hide that many of theirs: hidden
// is how many there are at most beside.
func CountFilters(task []Process) (certain, hidden int64) {
	most := make(map[int]int64, len(task))
	first := int64(-1)
	for _, p := range task {
		for _, n := range p.Threads {
			most[p.ID] = max(most[p.ID], n)
			if first < 0 || n < first {
				first = n
			}
		}
	}
	var all int64
	for _, p := range task {
		certain += max(p.Leader-most[p.Parent], 0)
		for _, n := range p.Threads {
			certain += max(n-p.Leader, 0)
			all += n - first
		}
	}
	// The filter that all have is no excess, and the first process has it for certain.
	return certain, max(all-certain+max(first, 0), 0)
}
