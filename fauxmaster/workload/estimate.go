package workload

import (
	"borg/borgmaster/cell"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
	"borg/scheduler/reservation"
)

// estimateEveryNs is the virtual time between two looks at what tasks reserve.
const estimateEveryNs = 60e9

// estimates are the copies whose reservation still moves towards what they use, which
// is the same all the time: in the order in which they began.
type estimates struct {
	list []estimate
	// Virtual time of the next look.
	nextNs int64
}

type estimate struct {
	id      cell.CopyID
	machine string
	task    reservation.Task
	limit   reservation.Amounts
	used    reservation.Amounts
	// aim is where it comes to rest, logged what the cell has.
	aim, logged reservation.Amounts
}

// begin begins to estimate a copy, if anybody says what it uses. One that has a
// reservation keeps it.
func (e *estimates) begin(cellNs int64, p *cell.Copy, h *trace.History, with reservation.Setting) {
	if h.CPUPermille == 0 && h.MemPermille == 0 {
		return
	}
	if _, _, ok := p.Reservation(); ok {
		return
	}
	res := p.Resources()
	limit := reservation.Amounts{CPUMilli: res.CPUMilli, MemBytes: res.MemBytes}
	used := usedOf(limit, h)
	e.list = append(e.list, estimate{
		id: p.ID(), machine: p.Machine().Name(), task: reservation.Begin(cellNs, limit), limit: limit, used: used, aim: aim(limit, used, with.Config()), logged: limit,
	})
}

// usedOf is what a task uses of its limit.
func usedOf(limit reservation.Amounts, h *trace.History) reservation.Amounts {
	return reservation.Amounts{CPUMilli: share(limit.CPUMilli, h.CPUPermille), MemBytes: share(limit.MemBytes, h.MemPermille)}
}

// Reserved is what a task of a job has come to reserve that has run for long; its
// limit when nobody says what it uses.
func Reserved(limit cell.Resources, h *trace.History, with reservation.Setting) cell.Resources {
	if h.CPUPermille == 0 && h.MemPermille == 0 {
		return limit
	}
	of := reservation.Amounts{CPUMilli: limit.CPUMilli, MemBytes: limit.MemBytes}
	to := aim(of, usedOf(of, h), with.Config())
	limit.CPUMilli, limit.MemBytes = to.CPUMilli, to.MemBytes
	return limit
}

func share(of int64, permille uint32) int64 {
	return of/1000*int64(permille) + of%1000*int64(permille)/1000
}

// estimate tells the cell of the reservations that have moved.
func (r *run) estimate() {
	e := &r.estimates
	if len(e.list) == 0 || r.nowNs < e.nextNs {
		return
	}
	e.nextNs = r.nowNs + estimateEveryNs
	with := r.cfg.Reservations.Config()
	reports, at, n := &borgpb.Reports{}, make(map[string]*borgpb.MachineReport), 0
	flush := func() {
		if n > 0 {
			r.do([]*borgpb.Op{reportsOp(reports)})
		}
		reports, n = &borgpb.Reports{}, 0
		clear(at)
	}
	kept := e.list[:0]
	for i := range e.list {
		o := e.list[i]
		m := r.cell.Machine(o.machine)
		if m == nil {
			continue
		}
		if p := m.Copy(o.id); p == nil || !p.Current() {
			continue
		}
		o.task.Use(r.cellNs+r.nowNs, o.limit, o.used, false, with)
		now := o.task.Reserved()
		done := now == o.aim
		if now.Differs(o.logged) || done && now != o.logged {
			o.logged = now
			said := at[o.machine]
			if said == nil {
				said = &borgpb.MachineReport{Machine: o.machine}
				at[o.machine] = said
				reports.Machines = append(reports.Machines, said)
			}
			said.Reservations = append(said.Reservations, &borgpb.TaskReservation{
				JobUid: o.id.Job.String(), Index: o.id.Index, Attempt: o.id.Attempt, CpuMilli: now.CPUMilli, MemBytes: now.MemBytes,
			})
			if n++; n >= maxReports {
				flush()
			}
		}
		if !done {
			kept = append(kept, o)
		}
	}
	clear(e.list[len(kept):])
	e.list = kept
	flush()
}

// aim is where a reservation comes to rest.
func aim(limit, used reservation.Amounts, with reservation.Config) reservation.Amounts {
	t := reservation.Begin(0, limit)
	t.Use(with.HoldNs+100*with.HalfLifeNs, limit, used, false, with)
	return t.Reserved()
}
