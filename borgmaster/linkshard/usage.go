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
	// Of a machine whose copies are the same as the last time, those that use about what
	// they used then go unsaid so often in a row, and then all are told again: the elected
	// master may have lost what it was told.
	restsInARow = 5
	// About as much: apart by no more than this part of what was told.
	restPart = 20
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
	// What the elected master was last told of each copy, in the order of copies.
	told []*borgrpc.CopyUsage
	// How often it may still be told of those alone that differ.
	rests int
	// How often it is told all, whatever it was told.
	wholes int
}

// news are the copies that are to be told of. Rest: all others are the same copies as the last
// time, and use about as much.
func (w *waitingUsage) news() (copies []*borgrpc.CopyUsage, rest bool) {
	if w.rests == 0 || len(w.copies) == 0 || !slices.EqualFunc(w.copies, w.told, sameCopy) {
		return w.copies, false
	}
	for i, c := range w.copies {
		if !about(c.CpuMilli, w.told[i].CpuMilli) || !about(c.MemBytes, w.told[i].MemBytes) {
			copies = append(copies, c)
		}
	}
	return copies, true
}

// tell notes that these are told.
func (w *waitingUsage) tell(copies []*borgrpc.CopyUsage, rest bool) {
	switch {
	case rest:
		w.rests--
		for _, c := range copies {
			at, _ := slices.BinarySearchFunc(w.told, c, compareCopies)
			w.told[at] = c
		}
	case w.wholes > 0:
		w.wholes--
		w.told = copies
	default:
		w.told, w.rests = copies, restsInARow
	}
}

func about(now, told int64) bool {
	apart := max(now-told, told-now)
	return apart <= max(told/restPart, 1)
}

func sameCopy(a, b *borgrpc.CopyUsage) bool { return compareCopies(a, b) == 0 }

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
		at, known := slices.BinarySearchFunc(w.copies, t.GetCopy(), compareCopies)
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

// ofCopy is what says of which copy it is.
type ofCopy interface {
	GetJobUid() string
	GetIndex() uint32
	GetAttempt() uint64
}

func compareCopies[A, B ofCopy](a A, b B) int {
	return cmp.Or(cmp.Compare(a.GetJobUid(), b.GetJobUid()), cmp.Compare(a.GetIndex(), b.GetIndex()), cmp.Compare(a.GetAttempt(), b.GetAttempt()))
}

// take moves what is due into req.
func (u *usageBox) take(now int64, req *borgrpc.ReportRequest) {
	n, taken := 0, 0
	for _, w := range u.due {
		if w.dueNs > now {
			break
		}
		copies, rest := w.news()
		if n += max(len(copies)+len(w.allocs)+len(w.volumes), 1); n > maxUsagePerMessage && taken > 0 {
			break
		}
		req.Usage = append(req.Usage, &borgrpc.MachineUsage{Machine: w.machine, Copies: copies, Rest: rest, Allocs: w.allocs, Volumes: w.volumes})
		w.tell(copies, rest)
		w.copies, w.allocs, w.volumes, w.dueNs = nil, nil, nil, now+u.everyNs
		taken++
	}
	u.due = slices.Delete(u.due, 0, taken)
}

// begin has all that is heard from now on sent at once, to another master, and all of it
// once more: it may not have begun to listen.
func (u *usageBox) begin() {
	for _, w := range u.machines {
		w.dueNs, w.rests, w.wholes = 0, 0, 1
	}
	slices.SortFunc(u.due, compareDue)
}

// lost hears that what was sent may not have been heard.
func (u *usageBox) lost(sent []*borgrpc.MachineUsage) {
	for _, m := range sent {
		if w := u.machines[m.Machine]; w != nil {
			w.rests = 0
		}
	}
}

func (u *usageBox) drop(machine string) {
	if w := u.machines[machine]; w != nil && !w.empty() {
		at, _ := slices.BinarySearchFunc(u.due, w, compareDue)
		u.due = slices.Delete(u.due, at, at+1)
	}
	delete(u.machines, machine)
}
