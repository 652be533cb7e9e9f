package reclaim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"borg/borgmaster/cell"
	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/scheduler/reservation"
)

const (
	// Format of the cell from which on a task that becomes production leaves a place
	// that it holds only by what it uses. Cells knew reservations before.
	reservationsFormat = cell.FormatBudgets
	// Reservations in one op at most. Those that rise go first; what is left over
	// is found again when its machine is next heard.
	maxPerOp = 2_000
	// One look ends after the machine with which it has seen so many copies, so
	// that the cell is not held up.
	maxPerLook = 5_000
	// A reservation that falls waits this part of the half-life after it last moved.
	fallPausePart = 20
	// After so long without a word, what a copy used is not known. Cell time, which
	// goes on by up to 10 s at once in a cell at rest.
	unheardNs = 60e9
	// No copy uses more than this, whatever its borglet says.
	maxCPUMilli = 1_000_000_000
	maxMemBytes = 1 << 50
)

// Config is how reservations are made. The zero value is how they usually are.
type Config struct {
	// How much is kept beyond what is used.
	Setting reservation.Setting
	// Not nil: in place of what the setting stands for.
	Instead *reservation.Config
	// All return to their limits and stay there.
	Off bool
}

const off = "off"

// ParseConfig reads the name of a setting, or "off".
func ParseConfig(name string) (Config, error) {
	if name == off {
		return Config{Off: true}, nil
	}
	setting, err := reservation.ParseSetting(name)
	if err != nil {
		return Config{}, fmt.Errorf("%w, off", err)
	}
	return Config{Setting: setting}, nil
}

// Core is not safe for concurrent use, reads no clock and makes no random
// choice.
type Core struct {
	cfg Config
	// with is what the setting stands for.
	with reservation.Config
	// Term that it is at work for; 0: not elected.
	term     uint64
	machines map[string]*heard
	// Machines with a word that was not yet looked at, in the order in which it
	// came, each once.
	queue []string
	// An op is under way: until its end is known the cell does not show what is
	// logged.
	proposing bool
}

// heard is what was heard of a machine.
type heard struct {
	// There is a word that was not looked at: the newest, ordered by copy.
	waits bool
	word  []*borgrpc.CopyUsage
	// All others of which there was one the last time use what they used then.
	rest bool
	// When the last word was looked at. Cell time.
	heardNs int64
	// Ordered by copy. All are on the machine as of the last look.
	copies []estimate
	// What all in each alloc was last heard to use together, ordered by alloc. It is for
	// people: what the copies in it use is estimated, and counts, by itself.
	allocs []*borgrpc.AllocUse
	// When that was looked at. Cell time.
	allocsNs int64
	// The newest word on allocs, if there is one on copies.
	allocWord []*borgrpc.AllocUse
}

// estimate is what is known of one copy.
type estimate struct {
	id   cell.CopyID
	task reservation.Task
	used reservation.Amounts
	// Cell time of the last word.
	heardNs int64
	// It does not fall before. Cell time.
	fallAgainNs int64
}

// New returns a core that waits to hear that it is elected.
func New(cfg Config) *Core {
	k := &Core{cfg: cfg, with: cfg.Setting.Config()}
	if cfg.Instead != nil {
		k.with = *cfg.Instead
	}
	return k
}

// Elected begins anew: this replica became the elected master.
func (k *Core) Elected(term uint64) {
	*k = *New(k.cfg)
	k.term, k.machines = term, map[string]*heard{}
}

// Deposed forgets everything.
func (k *Core) Deposed() { *k = *New(k.cfg) }

// Term that it is at work for; 0: it is not.
func (k *Core) Term() uint64 { return k.term }

// Hear takes in what link shards were told. A newer word on a machine takes the
// place of one that was not looked at, as far as it goes.
func (k *Core) Hear(usage []*borgrpc.MachineUsage) {
	if k.term == 0 {
		return
	}
	for _, u := range usage {
		if len(u.GetCopies()) == 0 && !u.GetRest() {
			continue
		}
		m := k.machines[u.GetMachine()]
		if m == nil {
			m = &heard{}
			k.machines[u.GetMachine()] = m
		}
		if !m.waits {
			m.waits = true
			k.queue = append(k.queue, u.GetMachine())
		} else if u.GetRest() {
			m.word, m.allocWord = newer(m.word, u.GetCopies()), u.GetAllocs()
			continue
		}
		m.word, m.rest, m.allocWord = u.GetCopies(), u.GetRest(), u.GetAllocs()
	}
}

// newer is a word with what a later one says of some of the copies.
func newer(word, later []*borgrpc.CopyUsage) []*borgrpc.CopyUsage {
	for _, u := range later {
		at, known := slices.BinarySearchFunc(word, u, func(a, b *borgrpc.CopyUsage) int {
			return cmp.Or(cmp.Compare(a.GetJobUid(), b.GetJobUid()), cmp.Compare(a.GetIndex(), b.GetIndex()), cmp.Compare(a.GetAttempt(), b.GetAttempt()))
		})
		if known {
			word[at] = u
		} else {
			word = slices.Insert(word, at, u)
		}
	}
	return word
}

// Proposed: how the op of the last look ended is known.
func (k *Core) Proposed() { k.proposing = false }

// Look estimates anew for the machines that were heard, as far as one look goes,
// and returns what is to be proposed; nil: nothing.
func (k *Core) Look(c *cell.Cell) *borgpb.Op {
	if k.term == 0 || c.Format() < reservationsFormat {
		return nil
	}
	l := look{Core: k, cell: c, nowNs: c.TimeNs()}
	seen, done := 0, 0
	for done < len(k.queue) && seen < maxPerLook {
		name := k.queue[done]
		done++
		m := k.machines[name]
		if m == nil {
			continue
		}
		machine := c.Machine(name)
		if machine == nil {
			delete(k.machines, name)
			continue
		}
		seen += max(len(m.word), len(m.copies))
		l.machine(machine, m)
	}
	k.queue = slices.Delete(k.queue, 0, done)
	if len(k.machines) > c.NumMachines() {
		maps.DeleteFunc(k.machines, func(name string, _ *heard) bool { return c.Machine(name) == nil })
	}
	return l.op()
}

// look is one look.
type look struct {
	*Core
	cell         *cell.Cell
	nowNs        int64
	rises, falls []change
}

// change is a reservation that is worth an entry.
type change struct {
	machine string
	id      cell.CopyID
	to      reservation.Amounts
	of      *estimate
}

func (l *look) machine(machine *cell.Machine, m *heard) {
	// Those of which nothing is said this time keep what they have.
	next := slices.DeleteFunc(m.copies, func(e estimate) bool { return !estimable(machine.Copy(e.id)) })
	for _, u := range m.word {
		uid, err := cell.ParseUID(u.GetJobUid())
		if err != nil {
			continue
		}
		id := cell.CopyID{Job: uid, Index: u.GetIndex(), Attempt: u.GetAttempt()}
		p := machine.Copy(id)
		if !estimable(p) {
			continue
		}
		at, known := slices.BinarySearchFunc(next, id, func(e estimate, id cell.CopyID) int { return compare(e.id, id) })
		if !known {
			next = slices.Insert(next, at, estimate{id: id, task: l.begin(p), heardNs: l.nowNs})
		}
		next[at].used = reservation.Amounts{CPUMilli: min(max(u.GetCpuMilli(), 0), maxCPUMilli), MemBytes: min(max(u.GetMemBytes(), 0), maxMemBytes)}
		l.use(p, &next[at])
	}
	for i := range next {
		if e := &next[i]; m.rest && e.heardNs == m.heardNs && e.heardNs != l.nowNs {
			l.use(machine.Copy(e.id), e)
		}
	}
	m.waits, m.word, m.rest, m.copies, m.heardNs = false, nil, false, next, l.nowNs
	m.allocs, m.allocWord, m.allocsNs = m.allocWord, nil, l.nowNs
	for i := range next {
		if e := &next[i]; e.heardNs == l.nowNs {
			l.weigh(machine, e)
		}
	}
}

// use estimates a copy anew by what it uses now.
func (l *look) use(p *cell.Copy, e *estimate) {
	if l.nowNs-e.heardNs > unheardNs {
		e.task.Skip(l.nowNs)
	}
	e.heardNs = l.nowNs
	e.task.Use(l.nowNs, limitOf(p), e.used, l.cfg.Off || p.Fixed(), l.with)
}

// estimable tells the copies that may have a reservation of their own: the cell
// passes over all others.
func estimable(p *cell.Copy) bool {
	return p != nil && p.Current() && !p.Waits() && p.TaskSpec() != nil
}

func compare(a, b cell.CopyID) int {
	return cmp.Or(a.Job.Compare(b.Job), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Attempt, b.Attempt))
}

func limitOf(p *cell.Copy) reservation.Amounts {
	r := p.Resources()
	return reservation.Amounts{CPUMilli: r.CPUMilli, MemBytes: r.MemBytes}
}

func loggedOf(p *cell.Copy) (logged reservation.Amounts, setNs int64, ok bool) {
	r, setNs, ok := p.Reservation()
	return reservation.Amounts{CPUMilli: r.CPUMilli, MemBytes: r.MemBytes}, setNs, ok
}

// begin is where the estimate of a copy that was not heard of in this term goes on.
// One that reserves less than its limit has had its hold. How long one that does
// not has run is told by when its process started.
func (l *look) begin(p *cell.Copy) reservation.Task {
	limit := limitOf(p)
	logged, setNs, ok := loggedOf(p)
	if ok && limit.Exceeds(logged) && !mutant.Planted(mutant.ReservationsForgotten) {
		return reservation.Resume(setNs, logged, l.with)
	}
	ageNs := int64(0)
	if p.StartedWallNs() > 0 {
		ageNs = l.cell.WallNs() - p.StartedWallNs()
	}
	return reservation.BeginLate(l.nowNs, ageNs, limit, l.with)
}

// weigh decides whether a reservation has moved far enough. One that is below what
// is used goes at once.
func (l *look) weigh(machine *cell.Machine, e *estimate) {
	p := machine.Copy(e.id)
	if p.Fixed() {
		return
	}
	logged, _, _ := loggedOf(p)
	to := e.task.Reserved()
	ch := change{machine: machine.Name(), id: e.id, to: to, of: e}
	switch {
	case e.used.Exceeds(logged) || to.Rises(logged):
		l.rises = append(l.rises, ch)
	case (to.Differs(logged) || mutant.Planted(mutant.ReservationsAllLogged)) && l.nowNs >= e.fallAgainNs:
		l.falls = append(l.falls, ch)
	}
}

// op is what of it goes into one op.
func (l *look) op() *borgpb.Op {
	if l.proposing {
		return nil
	}
	changes := append(l.rises, l.falls...)
	changes = changes[:min(len(changes), maxPerOp)]
	if len(changes) == 0 {
		return nil
	}
	reports := &borgpb.Reports{}
	at := map[string]*borgpb.MachineReport{}
	for _, ch := range changes {
		said := at[ch.machine]
		if said == nil {
			said = &borgpb.MachineReport{Machine: ch.machine}
			at[ch.machine] = said
			reports.Machines = append(reports.Machines, said)
		}
		said.Reservations = append(said.Reservations, &borgpb.TaskReservation{
			JobUid: ch.id.Job.String(), Index: ch.id.Index, Attempt: ch.id.Attempt, CpuMilli: ch.to.CPUMilli, MemBytes: ch.to.MemBytes,
		})
		ch.of.fallAgainNs = l.nowNs + l.with.HalfLifeNs/fallPausePart
	}
	l.proposing = true
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: reports}}
}

// Used is what a copy was last heard to use; nil: nothing was heard lately.
func (k *Core) Used(nowNs int64, machine string, id cell.CopyID) *borgpb.Used {
	m := k.machines[machine]
	if m == nil {
		return nil
	}
	at, known := slices.BinarySearchFunc(m.copies, id, func(e estimate, id cell.CopyID) int { return compare(e.id, id) })
	if !known || nowNs-m.copies[at].heardNs > unheardNs {
		return nil
	}
	e := &m.copies[at]
	return &borgpb.Used{CpuMilli: e.used.CPUMilli, MemBytes: e.used.MemBytes}
}

// UsedIn is what all in an alloc ("<user>/<name>/<index>") was last heard to use
// together; nil: nothing was heard lately.
func (k *Core) UsedIn(nowNs int64, machine, alloc string) *borgpb.Used {
	m := k.machines[machine]
	if m == nil || nowNs-m.allocsNs > unheardNs {
		return nil
	}
	at, known := slices.BinarySearchFunc(m.allocs, alloc, func(u *borgrpc.AllocUse, name string) int { return cmp.Compare(u.GetAlloc(), name) })
	if !known {
		return nil
	}
	return &borgpb.Used{CpuMilli: max(m.allocs[at].GetCpuMilli(), 0), MemBytes: max(m.allocs[at].GetMemBytes(), 0)}
}

// UsedOn is what the copies on a machine were last heard to use together; nil:
// nothing was heard lately.
func (k *Core) UsedOn(nowNs int64, machine string) *borgpb.Used {
	m := k.machines[machine]
	if m == nil {
		return nil
	}
	var sum *borgpb.Used
	for i := range m.copies {
		if e := &m.copies[i]; nowNs-e.heardNs <= unheardNs {
			if sum == nil {
				sum = &borgpb.Used{}
			}
			sum.CpuMilli += e.used.CPUMilli
			sum.MemBytes += e.used.MemBytes
		}
	}
	return sum
}
