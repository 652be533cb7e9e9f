package sim

import (
	"hash/fnv"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/scheduler/reservation"
)

// Reservations of simulated cells: the curve of production, with time a few
// hundred times as short.
const (
	reserveHoldNs = second
	reserveHalfNs = 600 * millisecond
	reserveMargin = 175
	usageEveryNs  = 500 * millisecond
	spikeFromNs   = 4 * second
	spikeUntilNs  = 6 * second
	spikePermille = 600
	quietPermille = 100
	quietRange    = 300
	prodPriority  = 120
	// What moves by no more than a twentieth, or by no more than this, is not logged.
	leastMovePart   = 20
	leastMoveCPU    = 10
	leastMoveMem    = 4 << 20
	updateForgotNs  = 10 * second
	reserveSlackCPU = 1
)

// curve is how reservations are estimated here.
func curve() *reservation.Config {
	return &reservation.Config{HoldNs: reserveHoldNs, HalfLifeNs: reserveHalfNs, MarginPermille: reserveMargin}
}

// usage is what a copy uses whose process has run for so long: a part of its limit
// that is its own, and for a while more.
func usage(id borglet.ID, d *borgrpc.Desired, ageNs int64) *borgrpc.Usage {
	h := fnv.New32a()
	h.Write([]byte(id.String()))
	permille := quietPermille + int64(h.Sum32()%quietRange)
	if ageNs >= spikeFromNs && ageNs < spikeUntilNs {
		permille = spikePermille
	}
	r := d.GetSpec().GetResources()
	return &borgrpc.Usage{
		Copy:         &borgrpc.CopyID{JobUid: id.JobUID, Index: id.Index, Attempt: id.Attempt},
		CpuMilliMean: r.GetCpuMilli() * permille / 1000, MemBytesPeak: r.GetMemBytes() * permille / 1000,
	}
}

// reserved is what the log last said that a copy reserves.
type reserved struct {
	cpuMilli int64
	// Of its spec: with another one its limits may be others.
	version uint64
}

// used notes what a borglet tells of a copy.
func (t *truth) used(id borglet.ID, u *borgrpc.Usage) {
	t.usedMost[id] = max(t.usedMost[id], u.CpuMilliMean)
	t.usedMostMem[id] = max(t.usedMostMem[id], u.MemBytesPeak)
	t.usedLast[id] = u.CpuMilliMean
}

// updated notes which tasks were given another spec. What they reserve was decided a
// moment ago by the one before, and may then begin anew at the limit.
func (t *truth) updated(events []cell.Event) {
	for i := range events {
		if ev := &events[i]; ev.Kind == borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING && ev.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK {
			t.updatedNs[borglet.ID{JobUID: ev.UID.String(), Index: ev.Task, Attempt: ev.Attempt}] = t.w.now
		}
	}
}

// reserves: S24, a reservation rises because more is used, whoever is elected: never
// beyond the most that was told of the copy, and the margin.
func (t *truth) reserves(e borgmaster.CommittedEntry) (any bool) {
	for _, op := range opsOf(e.Data) {
		for _, m := range op.GetReports().GetMachines() {
			for _, r := range m.Reservations {
				any = true
				t.reserve(m.Machine, r)
			}
		}
	}
	return any
}

func (t *truth) reserve(machine string, r *borgpb.TaskReservation) {
	id := borglet.ID{JobUID: r.JobUid, Index: r.Index, Attempt: r.Attempt}
	uid, err := cell.ParseUID(r.JobUid)
	m := t.cell.Machine(machine)
	if err != nil || m == nil {
		return
	}
	p := m.Copy(cell.CopyID{Job: uid, Index: r.Index, Attempt: r.Attempt})
	if p == nil || !p.Current() {
		return
	}
	was, known := t.reserved[id]
	most := t.usedMost[id]
	if known && was.version == p.Version() && r.CpuMilli > was.cpuMilli {
		t.w.mark("reservation rose")
		if r.CpuMilli > most+most*reserveMargin/1000+reserveSlackCPU {
			t.w.fail("S24: the reservation of %v rises from %d to %d thousandths of a core, and it used at most %d", p.TaskID(), was.cpuMilli, r.CpuMilli, most)
		}
	} else if r.CpuMilli < p.Resources().CPUMilli {
		t.w.mark("reservation below the limit")
	}
	if at, ok := t.updatedNs[id]; ok && t.w.now-at < decidedNs+t.w.swarm.dutyLateNs {
		delete(t.reserved, id)
		return
	}
	t.reserved[id] = reserved{r.CpuMilli, p.Version()}
}

// moving is a reservation that an entry has, and what its copy reserved before.
type moving struct {
	id  borglet.ID
	was cell.Resources
	to  *borgpb.TaskReservation
}

// movingBy are the reservations of an entry that is not applied yet: those that may be set.
func (t *truth) movingBy(data []byte) (moves []moving) {
	if !t.w.swarm.reclaims || !placesOnly(data) {
		return nil
	}
	for _, op := range opsOf(data) {
		for _, said := range op.GetReports().GetMachines() {
			m := t.cell.Machine(said.Machine)
			for _, r := range said.Reservations {
				uid, err := cell.ParseUID(r.JobUid)
				if err != nil || m == nil {
					continue
				}
				if p := m.Copy(cell.CopyID{Job: uid, Index: r.Index, Attempt: r.Attempt}); p != nil && p.Current() && !p.Waits() && !p.Fixed() {
					was, _, _ := p.Reservation()
					moves = append(moves, moving{borglet.ID{JobUID: r.JobUid, Index: r.Index, Attempt: r.Attempt}, was, r})
				}
			}
		}
	}
	return moves
}

// unanswered notes that the elected master of a term does not know what became of
// reservations that it proposed: those that it proposes next begin at others than there are.
func (t *truth) unanswered(term uint64) { t.blindTerms[term] = true }

// movedFar: S43, a reservation is logged when it has moved far from the one before, or more
// was used than that. What was decided before an update of its limits may come after it.
func (t *truth) movedFar(term uint64, moves []moving) {
	far := func(from, to, least int64) bool { return max(from-to, to-from) > max(from/leastMovePart, least) }
	for _, x := range moves {
		at, updated := t.updatedNs[x.id]
		switch {
		case t.blindTerms[term], updated && t.w.now-at < updateForgotNs+t.w.swarm.dutyLateNs:
		case far(x.was.CPUMilli, x.to.CpuMilli, leastMoveCPU), far(x.was.MemBytes, x.to.MemBytes, leastMoveMem):
			t.w.mark("reservation moved far")
		case t.usedMost[x.id] > x.was.CPUMilli || t.usedMostMem[x.id] > x.was.MemBytes:
			// It goes at once, by however little.
		default:
			t.w.fail("S43: the reservation of copy %s is logged, and moves from %d to %d thousandths of a core and from %d to %d bytes",
				x.id, x.was.CPUMilli, x.to.CpuMilli, x.was.MemBytes, x.to.MemBytes)
		}
	}
}

// inView: S24, production is placed by the limits of production, whatever it reserves;
// all else by what everybody reserves.
func (t *truth) inView(p *cell.Copy, m *cell.Machine, grew bool) {
	if p.Alloc() != nil {
		return
	}
	prod := p.Priority() >= prodPriority
	var sum, limits cell.Resources
	for o := range m.Copies() {
		switch {
		case o.Waits():
			// Its room is that of others too.
			return
		case o.Alloc() != nil:
			continue
		}
		limits = limits.Add(o.Resources())
		held, _, _ := o.Reservation()
		switch {
		case !prod:
			sum = sum.Add(held)
		case o.Priority() >= prodPriority:
			sum = sum.Add(o.Resources())
		}
	}
	for a := range m.Allocs() {
		if len(a.After()) > 0 {
			return
		}
		sum, limits = sum.Add(a.Capacity()), limits.Add(a.Capacity())
	}
	has := m.Capacity()
	if limits.CPUMilli > has.CPUMilli && !prod {
		t.w.mark("placed in reclaimed resources")
	}
	if !prod && grew {
		return
	}
	if sum.CPUMilli > has.CPUMilli || sum.MemBytes > has.MemBytes {
		t.w.fail("S24: with %v of priority %d on %s, %d thousandths of a core and %d bytes are taken in its view, and there are %d and %d",
			p.TaskID(), p.Priority(), m.Name(), sum.CPUMilli, sum.MemBytes, has.CPUMilli, has.MemBytes)
	}
}

// underReserved names a task that reserves less than it was last told to use; empty:
// none.
func (t *truth) underReserved() string {
	for m := range t.cell.Machines() {
		for p := range m.Copies() {
			r, _, ok := p.Reservation()
			id := borglet.ID{JobUID: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt()}
			if ok && m.Up() && p.Current() && r.CPUMilli < t.usedLast[id] {
				return p.TaskID().String()
			}
		}
	}
	return ""
}
