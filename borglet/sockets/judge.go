package sockets

import (
	"cmp"
	"fmt"
	"slices"
)

// Pool is something that all tasks of a machine share.
type Pool int

// The pools.
const (
	NetlinkBytes Pool = iota
	UDPBytes
	TCPPorts
	UDPPorts
	// Processes and threads. Only what is not production counts for the part of all tasks
	// together.
	Processes
	// Filters is the machine code of filters of system calls, at least, in bytes. Only what is
	// not production counts for the part of all tasks together.
	Filters
	// LikelyFilters is the same, if each filter is as large as others of the machine. It is
	// judged of tasks that are not production.
	LikelyFilters
	// HiddenFilters is the most that filters take of which it is not known whether a process
	// has them of its parent. Of tasks that are not production, and only of all together.
	HiddenFilters
	pools
)

const (
	// taskPart is the part of a pool that one task may hold: an eighth.
	taskPart = 8
	// tasksPart is the part of a pool that all tasks together may hold: a half.
	tasksPart = 2
)

// sparesProduction reports whether production has a pool apart from what all tasks together hold.
func (p Pool) sparesProduction() bool { return p >= Processes }

// isEstimate reports whether what a task holds is estimated from what others hold too.
func (p Pool) isEstimate() bool { return p == LikelyFilters || p == HiddenFilters }

// Use is an amount of each pool: bytes, ports, or processes.
type Use [pools]int64

// OfTask returns what one task may hold of a machine's pools.
func (u Use) OfTask() Use { return u.part(taskPart) }

// OfTasks returns what all tasks together may hold of a machine's pools.
func (u Use) OfTasks() Use { return u.part(tasksPart) }

// Exceeds reports whether it is more than a bound of any pool.
func (u Use) Exceeds(bound Use) bool {
	for p := range u {
		if u[p] > bound[p] {
			return true
		}
	}
	return false
}

func (u Use) part(n int64) Use {
	for p := range u {
		u[p] /= n
	}
	return u
}

// Holder is a task and what it holds.
type Holder[ID any] struct {
	ID       ID
	Priority int32
	// IsProduction: it does not end for the processes and filters of others.
	IsProduction bool
	Held         Use
}

// Fault is a task that must end, and why.
type Fault[ID any] struct {
	ID  ID
	Why string
}

// Over returns the tasks that must end so that the others keep to their share of the
// machine's pools: each that holds more than one task may, and then of the rest the lowest
// priority first, and of equals the one that holds most, until all together hold no more than
// they may. A task that holds no more than an equal part of that does not end: others do. For
// hidden filters one task ends, and the next look shows whether it had them. A pool of size
// zero has no bound.
func Over[ID any](machine Use, tasks []Holder[ID]) (faults []Fault[ID]) {
	one, all := machine.part(taskPart), machine.part(tasksPart)
	gone := make([]bool, len(tasks))
	end := func(i int, p Pool, why string) {
		gone[i] = true
		held := tasks[i].Held[p]
		faults = append(faults, Fault[ID]{tasks[i].ID, fmt.Sprintf("ended: it held %s; %s", amount(p, held), why)})
	}
	for p := range pools {
		if machine[p] == 0 {
			continue
		}
		var rest []int
		sum := int64(0)
		for i := range tasks {
			switch held := tasks[i].Held[p]; {
			case gone[i] || p.isEstimate() && tasks[i].IsProduction:
			case held > one[p] && p != HiddenFilters:
				end(i, p, fmt.Sprintf("a task may hold %s", number(p, one[p])))
			case held > 0 && !(p.sparesProduction() && tasks[i].IsProduction):
				rest = append(rest, i)
				sum += held
			}
		}
		slices.SortStableFunc(rest, func(x, y int) int {
			return cmp.Or(cmp.Compare(tasks[x].Priority, tasks[y].Priority), cmp.Compare(tasks[y].Held[p], tasks[x].Held[p]))
		})
		sharers := int64(len(rest))
		for _, i := range rest {
			if sum <= all[p] {
				break
			}
			if tasks[i].Held[p]*sharers <= all[p] {
				continue
			}
			sum -= tasks[i].Held[p]
			sharers--
			end(i, p, fmt.Sprintf("the%s tasks of its machine held more than %s together", bounded(p), number(p, all[p])))
			if p == HiddenFilters {
				break
			}
		}
	}
	return faults
}

// amount says how much of a pool something is.
func amount(p Pool, n int64) string {
	return number(p, n) + [pools]string{
		" of netlink messages that it did not read", " of UDP datagrams that it did not read",
		" TCP ports of those that the kernel gives out", " UDP ports of those that the kernel gives out",
		" processes and threads", " of compiled seccomp filters at least", " of compiled seccomp filters, as large as others",
		" of compiled seccomp filters at most",
	}[p]
}

// bounded says which tasks share the part of all tasks.
func bounded(p Pool) string {
	if p.sparesProduction() {
		return " non-production"
	}
	return ""
}

func number(p Pool, n int64) string {
	if p == NetlinkBytes || p == UDPBytes || p >= Filters {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprint(n)
}
