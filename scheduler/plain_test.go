package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// plain is the reference: for every task it asks the cell about every machine
// and scores it, with nothing kept from one task to the next. It is the oracle
// of what a place is worth, and the yardstick of what the techniques save.
type plain struct {
	c   *cell.Cell
	cfg scheduler.Config
	// prices are what is rare on each machine; see rare.
	prices map[*cell.Machine]int64
}

func newPlain(c *cell.Cell, cfg scheduler.Config) plain {
	p := plain{c, cfg, make(map[*cell.Machine]int64)}
	p.rare()
	return p
}

// points scores a place for index of j as the hybrid policy does; see
// docs/scheduling.md.
func (p plain) points(j *cell.Job, index uint32, m *cell.Machine, a *cell.Alloc) int64 {
	need, prod := j.Need(index), j.Priority() >= 120
	capacity, held := m.Capacity(), m.Held(prod)
	if a != nil {
		capacity, held = a.Capacity(), a.Held(prod)
	}
	free := capacity.Sub(held)
	left := func(whole, free, asked int64) (before, after int64) {
		if whole == 0 {
			return 0, 0
		}
		free = min(max(free, 0), whole)
		if a == nil {
			before = free * 128 / whole * 8
		} else {
			before = 1024 - (whole-free)*1024/whole
		}
		return before, max(before-asked*1024/whole, 0)
	}
	cpuBefore, cpuAfter := left(capacity.CPUMilli, free.CPUMilli, need.Resources.CPUMilli)
	memBefore, memAfter := left(capacity.MemBytes, free.MemBytes, need.Resources.MemBytes)
	before, after := cpuBefore-memBefore, cpuAfter-memAfter
	points := (before*before - after*after - 8*(cpuAfter+memAfter)) >> 8
	if a == nil {
		points += p.devices(need, m, min(cpuBefore, memBefore), min(cpuAfter, memAfter)) - p.prices[m]
		if at := p.cfg.Prefer; at.Key != "" {
			if value, ok := m.Attribute(at.Key); ok && value == at.Value {
				points += p.cfg.Weights.Prefer
			}
		}
		points += p.mix(prod, m)
	}
	for _, k := range need.Task.GetConstraints() {
		if k.GetSoft() && cell.Holds(k, m) {
			points += p.cfg.Weights.Soft
		}
	}
	for _, k := range need.Task.GetPackages() {
		if m.HasPackage(k.GetDigest()) {
			points += p.cfg.Weights.Packages / int64(len(need.Task.GetPackages()))
		}
	}
	if cell.Shunned(need.Task.GetTolerations(), m) {
		points -= p.cfg.Weights.Soft
	}
	price := p.crowding(j, m)
	if j.Kind() == borgpb.JobKind_JOB_KIND_BATCH {
		price /= 8
	}
	return points - price
}

// devices is the part of points for the devices of a machine: what is free of them
// and, as CPU and memory are, of no use, before and after; and what a share leaves
// of the device that it comes to lie on.
func (p plain) devices(need *cell.Need, m *cell.Machine, usable, usableAfter int64) (points int64) {
	for _, d := range m.Capacity().Devices {
		frees := make([]int64, d.Milli/1000)
		for number := range frees {
			frees[number] = 1000
			hold := func(gs []cell.DeviceGrant) {
				for _, g := range gs {
					if g.Name == d.Name && int(g.Number) == number {
						frees[number] -= g.Milli
					}
				}
			}
			for o := range m.Copies() {
				if o.Alloc() == nil {
					hold(o.Devices())
				}
			}
			for a := range m.Allocs() {
				if a.Machine() == m {
					hold(a.Devices())
				}
			}
		}
		free := m.Capacity().Sub(m.Held(true)).Device(d.Name)
		left := free
		for _, asked := range need.Resources.Devices {
			if asked.Name != d.Name {
				continue
			}
			left -= asked.Milli
			if asked.Milli < 1000 {
				rest := 1000 - asked.Milli
				for _, one := range frees {
					if one < 1000 && one >= asked.Milli {
						rest = min(rest, one-asked.Milli)
					}
				}
				points -= rest * 1024 / 1000
			}
		}
		before := max(free*1024/d.Milli-usable, 0)
		after := max(left*1024/d.Milli-usableAfter, 0)
		points += (before*before - after*after) >> 6
	}
	return min(max(points, -32768), 32768)
}

// mix is for production among others, and for others among production.
func (p plain) mix(prod bool, m *cell.Machine) int64 {
	whole := m.Capacity().CPUMilli
	var held int64
	for o := range m.Copies() {
		if o.Alloc() == nil && o.Priority() >= 120 {
			held += o.Resources().CPUMilli
		}
	}
	for a := range m.Allocs() {
		if a.Set().Priority() >= 120 {
			held += a.Capacity().CPUMilli
		}
	}
	level := func(n int64) int64 { return min(max(n, 0)*128/whole, 128) }
	share := level(held)
	others := max(128-level(whole-m.Held(true).CPUMilli)-share, 0)
	if prod {
		return p.cfg.Weights.Mix * others / 128
	}
	return p.cfg.Weights.Mix * share / 128
}

// rare prices what live jobs ask for that few machines have.
func (p plain) rare() {
	asked := make(map[string][]*borgpb.Constraint)
	note := func(ks []*borgpb.Constraint) {
		var hard []*borgpb.Constraint
		var text strings.Builder
		for _, k := range ks {
			if !k.GetSoft() {
				hard = append(hard, k)
				text.WriteString(cell.ConstraintWords(k) + ";")
			}
		}
		if len(hard) > 0 {
			asked[text.String()] = hard
		}
	}
	for j := range p.c.Jobs() {
		if j.State() != borgpb.State_STATE_DEAD {
			note(j.Need(0).Task.GetConstraints())
		}
	}
	for _, hard := range asked {
		holds := func(m *cell.Machine) bool {
			return !slices.ContainsFunc(hard, func(k *borgpb.Constraint) bool { return !cell.Holds(k, m) })
		}
		var where []*cell.Machine
		for m := range p.c.Machines() {
			if holds(m) {
				where = append(where, m)
			}
		}
		all := int64(p.c.NumMachines())
		for _, m := range where {
			p.prices[m] += p.cfg.Weights.Rare * (all - int64(len(where))) / all
		}
	}
}

// crowding prices the tasks of the job around m beyond a fair share.
func (p plain) crowding(j *cell.Job, m *cell.Machine) (price int64) {
	n := int64(j.NumTasks())
	if n < 2 {
		return 0
	}
	for _, d := range []struct {
		key    string
		points int64
	}{{"", p.cfg.Weights.Machine}, {"rack", p.cfg.Weights.Rack}, {"power", p.cfg.Weights.Power}} {
		domain := func(m *cell.Machine) (string, bool) {
			if d.key == "" {
				return m.Name(), true
			}
			return m.Attribute(d.key)
		}
		here, ok := domain(m)
		if !ok {
			continue
		}
		domains := make(map[string]bool)
		for o := range p.c.Machines() {
			if name, ok := domain(o); ok {
				domains[name] = true
			}
		}
		around := int64(1)
		for _, t := range j.Tasks() {
			if copied := t.Current(); copied != nil {
				if name, ok := domain(copied.Machine()); ok && name == here {
					around++
				}
			}
		}
		fair := (n + int64(len(domains)) - 1) / int64(len(domains))
		price += d.points * max(0, around-fair)
	}
	return price
}

// spot is a place.
type spot struct {
	m *cell.Machine
	a *cell.Alloc
}

// spots are all places that a task of j could have, full or not.
func (p plain) spots(j *cell.Job) (all []spot) {
	_, inside := j.AllocSet()
	for m := range p.c.Machines() {
		if !inside {
			all = append(all, spot{m, nil})
		}
		for a := range m.Allocs() {
			if inside && a.Machine() == m {
				all = append(all, spot{m, a})
			}
		}
	}
	return all
}

// best finds the most that any place with room is worth.
func (p plain) best(j *cell.Job, index uint32) (points int64, ok bool) {
	for _, at := range p.spots(j) {
		q := cell.Placement{Job: j, Index: index, Machine: at.m, Alloc: at.a, AnyPorts: true}
		if p.c.Fit(&q, nil) != cell.FitOK {
			continue
		}
		if n := p.points(j, index, at.m, at.a); !ok || n > points {
			points, ok = n, true
		}
	}
	return points, ok
}

// toll is what victims cost: band, tasks, highest priority, how many are named.
type toll [4]int

func bandOf(priority int) int {
	at, _ := slices.BinarySearch([]int{0, 100, 120, 360}, priority+1)
	return at
}

func (p plain) toll(victims []cell.CopyID) toll {
	t := toll{0, 0, -1, len(victims)}
	hurt := func(priority int32, tasks int) {
		t[1] += tasks
		t[2] = max(t[2], int(priority))
	}
	for _, id := range victims {
		if set := p.c.AllocSetByUID(id.Job); set != nil {
			hurt(set.Priority(), 1)
			for o := range set.Alloc(id.Index).Copies() {
				if o.Current() {
					hurt(o.Priority(), 1)
				}
			}
			continue
		}
		for m := range p.c.Machines() {
			if o := m.Copy(id); o != nil && o.Current() {
				hurt(o.Priority(), 1)
			}
		}
	}
	t[0] = bandOf(t[2])
	return t
}

// leastToll tries all sets of victims in all places.
func (p plain) leastToll(j *cell.Job, index uint32) (least toll, ok bool) {
	for _, at := range p.spots(j) {
		ids := mayGiveWay(at)
		for set := 1; set < 1<<len(ids); set++ {
			var victims []cell.CopyID
			for i, id := range ids {
				if set&(1<<i) != 0 {
					victims = append(victims, id)
				}
			}
			q := cell.Placement{Job: j, Index: index, Machine: at.m, Alloc: at.a, AnyPorts: true, Victims: victims}
			if p.c.Fit(&q, nil) != cell.FitOK {
				continue
			}
			if t := p.toll(victims); !ok || slices.Compare(t[:], least[:]) < 0 {
				least, ok = t, true
			}
		}
	}
	return least, ok
}

// mayGiveWay lists who holds room in a place. Those who wait for others are left
// alone.
func mayGiveWay(at spot) (ids []cell.CopyID) {
	for o := range at.m.Copies() {
		if o.Alloc() == at.a && !o.Waits() {
			ids = append(ids, o.ID())
		}
	}
	if at.a != nil {
		return ids
	}
	for a := range at.m.Allocs() {
		alone := a.Machine() != at.m || len(a.After()) > 0
		for o := range a.Copies() {
			alone = alone || o.Waits()
		}
		if !alone {
			ids = append(ids, cell.CopyID{Job: a.Set().UID(), Index: a.Index(), Attempt: a.Attempt()})
		}
	}
	return ids
}

// TestAgainstPlain lets a scheduler that looks at every machine place one task
// at a time in random cells, and compares each choice with the reference: as
// good a place, victims at as low a toll, nothing where the reference finds
// nothing.
func TestAgainstPlain(t *testing.T) {
	seen := make(map[string]int)
	rapid.Check(t, func(rt *rapid.T) {
		cfg := scheduler.Config{Seed: rapid.Uint64().Draw(rt, "seed"), Enough: 1 << 20, BatchCount: 1, Weights: scheduler.DefaultWeights()}
		if rapid.Bool().Draw(rt, "other weights") {
			cfg.Prefer = scheduler.Attribute{Key: "gen", Value: "2"}
			cfg.Weights = scheduler.Weights{
				Soft: 300, Machine: 100, Rack: 1000, Power: 17, Rare: rapid.Int64Range(0, 300).Draw(rt, "rare"), Prefer: 77, Packages: 90,
				Mix: rapid.Int64Range(0, 500).Draw(rt, "mix"),
			}
		}
		w := randomWorld(rt, t, cfg)
		for i := range rapid.IntRange(0, 3).Draw(rt, "jobs in allocs") {
			// Without the set it is refused.
			spec := service(2, rapid.SampledFrom([]int32{25, 110, 200, 370}).Draw(rt, "priority"), rapid.Int64Range(1, 4).Draw(rt, "half cpu")*500, 1<<30)
			spec.AllocSet = "ann/set"
			spec.AllocByIndex = rapid.Bool().Draw(rt, "by index")
			w.do(submitJob("bob", fmt.Sprintf("in%d", i), spec))
		}
		for step := range 40 {
			w.catchUp()
			b := w.s.Pass(w.copy)
			if err := scheduler.CheckArrays(w.s, w.copy); err != nil {
				rt.Fatal(err)
			}
			p := newPlain(w.copy, cfg)
			if b.ID == 0 {
				if !b.More {
					checkNothingFits(rt, p)
					seen["nothing left"]++
					randomChange(rt, w, step)
				}
				continue
			}
			if as := b.Assign.Assignments; len(as) == 1 {
				seen[checkChoice(rt, p, as[0])]++
			}
			r := w.do(assign(b.Assign))
			if refused := w.s.Settle(w.copy, b.ID, r); refused.Count > 0 {
				rt.Fatalf("refused: %v", refused.First)
			}
			if err := w.cell.Check(); err != nil {
				rt.Fatal(err)
			}
		}
	})
	t.Logf("what the choices were: %v", seen)
}

// checkChoice compares one assignment with the reference and says what it was.
func checkChoice(rt *rapid.T, p plain, a *borgpb.Assignment) string {
	uid, err := cell.ParseUID(a.Uid)
	if err != nil {
		rt.Fatal(err)
	}
	j := p.c.JobByUID(uid)
	if j == nil {
		return "alloc"
	}
	q := cell.Placement{Job: j, Index: a.Index, Machine: p.c.Machine(a.Machine), Ports: a.Ports}
	if a.Alloc != "" {
		q.Alloc = p.c.AllocByName(a.Alloc)
		q.Machine = q.Alloc.Machine()
	}
	for _, v := range a.Victims {
		uid, err := cell.ParseUID(v.JobUid)
		if err != nil {
			rt.Fatal(err)
		}
		q.Victims = append(q.Victims, cell.CopyID{Job: uid, Index: v.Index, Attempt: v.Attempt})
	}
	if r := p.c.CheckPlace(&q, nil); r != nil {
		rt.Fatalf("%v: %v", a, r)
	}
	checkLimits(rt, j, q.Machine)
	if j.Spec().GetGang() {
		return "gang"
	}
	best, ok := p.best(j, a.Index)
	if len(q.Victims) == 0 {
		if got := p.points(j, a.Index, q.Machine, q.Alloc); !ok || got != best {
			rt.Fatalf("%v: a place worth %d, want %d (%v)", a, got, best, ok)
		}
		return "room"
	}
	// Who waits for its own last copy, which is stopping in its volume, may have that one's
	// ports.
	own := !slices.ContainsFunc(q.Victims, func(v cell.CopyID) bool { return v.Job != uid || v.Index != a.Index })
	if ok && !own && !p.portsAwaited(j) {
		rt.Fatalf("%v: somebody has to give way although there is room", a)
	}
	least, ok := p.leastToll(j, a.Index)
	if got := p.toll(q.Victims); !ok || got != least {
		rt.Fatalf("%v: the toll is %v, want %v (%v)", a, got, least, ok)
	}
	if q.Alloc != nil {
		return "victims in an alloc"
	}
	return "victims"
}

// checkLimits counts by hand how many of a job share a value with who is about to
// come to m.
func checkLimits(rt *rapid.T, j *cell.Job, m *cell.Machine) {
	for key, most := range j.Spec().GetMaxPer() {
		value, has := m.Attribute(key)
		n := uint32(1)
		for _, t := range j.Tasks() {
			p := t.Current()
			if p == nil {
				continue
			}
			if other, ok := p.Machine().Attribute(key); ok == has && other == value && (has || p.Machine() == m) {
				n++
			}
		}
		if n > most {
			rt.Fatalf("%v would have %d tasks where %s is %q (%v), at most %d may be", j.Key(), n, key, value, has, most)
		}
	}
}

// portsAwaited tells that a job needs ports while somebody waits for those of
// others: there may be enough by count that have no number yet.
func (p plain) portsAwaited(j *cell.Job) bool {
	if len(j.Spec().GetTask().GetPorts()) == 0 {
		return false
	}
	for m := range p.c.Machines() {
		for o := range m.Copies() {
			if o.Claimed() {
				return true
			}
		}
	}
	return false
}

// checkNothingFits wants no place for anything that waits.
func checkNothingFits(rt *rapid.T, p plain) {
	for j, index := range p.c.Pending() {
		if j.Spec().GetGang() || p.portsAwaited(j) {
			continue
		}
		if points, ok := p.best(j, index); ok {
			rt.Fatalf("%v/%d waits although there is a place worth %d", j.Key(), index, points)
		}
		if least, ok := p.leastToll(j, index); ok {
			rt.Fatalf("%v/%d waits although others could give way at a toll of %v", j.Key(), index, least)
		}
	}
}
