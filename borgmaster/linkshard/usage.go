package linkshard

import (
	"cmp"
	"slices"

	"borg/proto/borgrpc"
)

const (
	// Copies, allocs and volumes in one message, of whole machines. What is beyond it goes with the
	// next, who has waited longest first.
	maxUsagePerMessage = 5_000
	// Copies of one machine, allocs, and volumes: a borglet keeps no more.
	maxUsagePerMachine = 4_096
)

// usageBox holds what copies use until it is sent. What is lost is measured
// again: nothing is put back.
type usageBox struct {
	// What a machine's copies use is sent so often; in between, the most is kept.
	everyNs  int64
	machines map[string]*waitingUsage
}

// waitingUsage is the most that the copies of a machine used since it was last
// sent.
type waitingUsage struct {
	// Ordered by copy, as the borglet sends it.
	copies []*borgrpc.CopyUsage
	// Ordered by alloc.
	allocs []*borgrpc.AllocUse
	// What its volumes kept when it was last told.
	volumes []*borgrpc.VolumeUse
	// Not sent again before.
	dueNs int64
}

func newUsageBox(everyNs int64) *usageBox {
	return &usageBox{everyNs: everyNs, machines: map[string]*waitingUsage{}}
}

// add takes in what a poll told. A copy or alloc of which nothing was measured between
// two polls keeps what it had.
func (u *usageBox) add(machine string, told []*borgrpc.Usage, allocs []*borgrpc.AllocUsage) {
	if len(told) == 0 {
		return
	}
	w := u.of(machine)
	for _, t := range told {
		next := &borgrpc.CopyUsage{
			JobUid: t.GetCopy().GetJobUid(), Index: t.GetCopy().GetIndex(), Attempt: t.GetCopy().GetAttempt(),
			CpuMilli: t.GetCpuMilliMean(), MemBytes: t.GetMemBytesPeak(),
		}
		at, known := slices.BinarySearchFunc(w.copies, next, compareUsage)
		switch {
		case known:
			was := w.copies[at]
			was.CpuMilli, was.MemBytes = max(was.CpuMilli, next.CpuMilli), max(was.MemBytes, next.MemBytes)
		case len(w.copies) < maxUsagePerMachine:
			w.copies = slices.Insert(w.copies, at, next)
		}
	}
	for _, t := range allocs {
		next := &borgrpc.AllocUse{Alloc: t.GetAlloc(), CpuMilli: t.GetUsage().GetCpuMilliMean(), MemBytes: t.GetUsage().GetMemBytesPeak()}
		at, known := slices.BinarySearchFunc(w.allocs, next.Alloc, func(was *borgrpc.AllocUse, name string) int { return cmp.Compare(was.Alloc, name) })
		switch {
		case known:
			was := w.allocs[at]
			was.CpuMilli, was.MemBytes = max(was.CpuMilli, next.CpuMilli), max(was.MemBytes, next.MemBytes)
		case len(w.allocs) < maxUsagePerMachine:
			w.allocs = slices.Insert(w.allocs, at, next)
		}
	}
}

// addVolumes takes in what volumes keep: the last word counts.
func (u *usageBox) addVolumes(machine string, told []*borgrpc.VolumeUse) {
	if len(told) > 0 {
		u.of(machine).volumes = told[:min(len(told), maxUsagePerMachine)]
	}
}

func (u *usageBox) of(machine string) *waitingUsage {
	w := u.machines[machine]
	if w == nil {
		w = &waitingUsage{}
		u.machines[machine] = w
	}
	return w
}

func compareUsage(a, b *borgrpc.CopyUsage) int {
	return cmp.Or(cmp.Compare(a.JobUid, b.JobUid), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Attempt, b.Attempt))
}

// take moves what is due into req.
func (u *usageBox) take(now int64, req *borgrpc.ReportRequest) {
	var due []string
	for machine, w := range u.machines {
		if len(w.copies)+len(w.volumes) > 0 && w.dueNs <= now {
			due = append(due, machine)
		}
	}
	slices.SortFunc(due, func(a, b string) int {
		return cmp.Or(cmp.Compare(u.machines[a].dueNs, u.machines[b].dueNs), cmp.Compare(a, b))
	})
	n := 0
	for _, machine := range due {
		w := u.machines[machine]
		if n += len(w.copies) + len(w.allocs) + len(w.volumes); n > maxUsagePerMessage && len(req.Usage) > 0 {
			return
		}
		req.Usage = append(req.Usage, &borgrpc.MachineUsage{Machine: machine, Copies: w.copies, Allocs: w.allocs, Volumes: w.volumes})
		w.copies, w.allocs, w.volumes, w.dueNs = nil, nil, nil, now+u.everyNs
	}
}

// begin has all that is heard from now on sent at once, to another master.
func (u *usageBox) begin() {
	for _, w := range u.machines {
		w.dueNs = 0
	}
}

func (u *usageBox) drop(machine string) { delete(u.machines, machine) }
