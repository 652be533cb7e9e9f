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
	// Those of which something waits, ordered by dueNs and name.
	due []*waitingUsage
}

// waitingUsage is the most that the copies of a machine used since it was last
// sent.
type waitingUsage struct {
	machine string
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
	if w.copies == nil {
		w.copies = make([]*borgrpc.CopyUsage, 0, min(len(told), maxUsagePerMachine))
	}
	for _, t := range told {
		at, known := slices.BinarySearchFunc(w.copies, t.GetCopy(), compareUsage)
		switch {
		case known:
			was := w.copies[at]
			was.CpuMilli, was.MemBytes = max(was.CpuMilli, t.GetCpuMilliMean()), max(was.MemBytes, t.GetMemBytesPeak())
		case len(w.copies) < maxUsagePerMachine:
			w.copies = slices.Insert(w.copies, at, &borgrpc.CopyUsage{
				JobUid: t.GetCopy().GetJobUid(), Index: t.GetCopy().GetIndex(), Attempt: t.GetCopy().GetAttempt(),
				CpuMilli: t.GetCpuMilliMean(), MemBytes: t.GetMemBytesPeak(),
			})
		}
	}
	for _, t := range allocs {
		use := t.GetUsage()
		at, known := slices.BinarySearchFunc(w.allocs, t.GetAlloc(), func(was *borgrpc.AllocUse, name string) int { return cmp.Compare(was.Alloc, name) })
		switch {
		case known:
			was := w.allocs[at]
			was.CpuMilli, was.MemBytes = max(was.CpuMilli, use.GetCpuMilliMean()), max(was.MemBytes, use.GetMemBytesPeak())
		case len(w.allocs) < maxUsagePerMachine:
			w.allocs = slices.Insert(w.allocs, at, &borgrpc.AllocUse{Alloc: t.GetAlloc(), CpuMilli: use.GetCpuMilliMean(), MemBytes: use.GetMemBytesPeak()})
		}
	}
}

// addVolumes takes in what volumes keep: the last word counts.
func (u *usageBox) addVolumes(machine string, told []*borgrpc.VolumeUse) {
	if len(told) > 0 {
		u.of(machine).volumes = told[:min(len(told), maxUsagePerMachine)]
	}
}

// of is what waits of a machine, of which something is to be added.
func (u *usageBox) of(machine string) *waitingUsage {
	w := u.machines[machine]
	if w == nil {
		w = &waitingUsage{machine: machine}
		u.machines[machine] = w
	}
	if w.empty() {
		at, _ := slices.BinarySearchFunc(u.due, w, compareDue)
		u.due = slices.Insert(u.due, at, w)
	}
	return w
}

func (w *waitingUsage) empty() bool { return len(w.copies)+len(w.volumes) == 0 }

func compareDue(a, b *waitingUsage) int {
	return cmp.Or(cmp.Compare(a.dueNs, b.dueNs), cmp.Compare(a.machine, b.machine))
}

func compareUsage(a *borgrpc.CopyUsage, b *borgrpc.CopyID) int {
	return cmp.Or(cmp.Compare(a.JobUid, b.GetJobUid()), cmp.Compare(a.Index, b.GetIndex()), cmp.Compare(a.Attempt, b.GetAttempt()))
}

// take moves what is due into req.
func (u *usageBox) take(now int64, req *borgrpc.ReportRequest) {
	n, taken := 0, 0
	for _, w := range u.due {
		if w.dueNs > now {
			break
		}
		if n += len(w.copies) + len(w.allocs) + len(w.volumes); n > maxUsagePerMessage && taken > 0 {
			break
		}
		req.Usage = append(req.Usage, &borgrpc.MachineUsage{Machine: w.machine, Copies: w.copies, Allocs: w.allocs, Volumes: w.volumes})
		w.copies, w.allocs, w.volumes, w.dueNs = nil, nil, nil, now+u.everyNs
		taken++
	}
	u.due = slices.Delete(u.due, 0, taken)
}

// begin has all that is heard from now on sent at once, to another master.
func (u *usageBox) begin() {
	for _, w := range u.machines {
		w.dueNs = 0
	}
	slices.SortFunc(u.due, compareDue)
}

func (u *usageBox) drop(machine string) {
	if w := u.machines[machine]; w != nil && !w.empty() {
		at, _ := slices.BinarySearchFunc(u.due, w, compareDue)
		u.due = slices.Delete(u.due, at, at+1)
	}
	delete(u.machines, machine)
}
