package scheduler

import (
	"math"
	"math/bits"
	"slices"

	"borg/borgmaster/cell"
	"borg/mutant"
	"borg/proto/borgpb"
)

// grid is what the search reads of the machines, in flat arrays indexed by
// slot: the inner loop touches no map and no object of the cell. What is free
// is exact, so that the arrays and the cell agree on every place; scores are
// made from levels, which are rounded (design §7), so that a small change
// leaves them as they are.
type grid struct {
	sites *sites
	// empty: what holds a place on the machines does not count.
	empty   bool
	weights Weights
	threads int
	// prefer is what makes a machine better than others; nil: nothing does.
	prefer *borgpb.Constraint

	// rough is all that most scores are made of, so that a walk reads little;
	// exact is looked at where that leaves a doubt.
	rough []rough
	exact []exact
	// shapes are the machines of one size, by rough.shape.
	shapes []whole
	// The slots by what is free, beside the exact amounts.
	cpuSteps, memSteps [numViews]*steps
	// versions count the changes of a slot's levels, from 1; they never reach
	// maxVersion.
	versions []uint16
	// usable are the slots that take tasks: up, not silent and not draining.
	usable bitset
	// crowded are those on which some band may find no place for copies or volumes.
	crowded bitset
	// tainted are those with a taint.
	tainted   bitset
	domains   []domains
	preferred bitset
	// rare is scratch of price.
	rare bitset
	// evictable are bounds on what preemption could free, see victim.go.
	evictable []evictable
	// headrooms are what classes could have at most, see headroom.go; outdated are the
	// slots at which those are to be computed anew.
	headrooms []*headroom
	outdated  bitset
	// racks and powers are the failure domains by name. A number is never used
	// for another name.
	racks, powers domainNames
	// columns are the attributes by whose values jobs are limited, as far as that
	// was asked.
	columns map[string]*column

	// devices are the names in use; deviceFree is by view, device, slot, and
	// singles by device and slot.
	devices    []string
	deviceFree [numViews][][]int64
	singles    [][]single

	// attributes are the keys that some machine has or had since the arrays were made. A
	// machine with another one has the arrays rebuilt.
	attributes map[string]bool
	// everywhere and nowhere are the facts of constraints on other attributes; noColumn is
	// the column of each of those.
	everywhere, nowhere *fact
	noColumn            *column
	// suits counts, from 1, how often something about machines changed that constraints
	// and taints are tested on.
	suits uint64
	// facts are the hard and soft constraints in use, by content; statics are
	// the sets of them that tasks have.
	facts   map[factKey]*fact
	statics map[string]*static
	// said is what machines say of attributes, by key, for as many facts as are
	// made in a row: nil after any machine said something else.
	said map[string]*saying
	// rows of the score cache, to be told of versions that begin anew.
	cached []*class
	// generation counts how often the slots were numbered, layout how often a
	// slot's failure domains became others.
	generation, layout uint64
}

// view is who looks: production counts limits, all others reservations (§5.5).
type view uint8

const (
	viewOthers view = iota
	viewProd
	numViews
)

func viewOf(prod bool) view {
	if prod {
		return viewProd
	}
	return viewOthers
}

// row is what is free on a machine; it may be negative.
type row struct {
	cpuMilli, memBytes, diskBytes, diskBytesPerS, ports int64
}

// levels are what is free, in levelUnits of the machine's capacity, rounded
// down.
type levels struct{ cpu, mem uint8 }

// levelUnits is the grain in which scores see a machine.
const levelUnits = 128

// maxVersion bounds versions to the bits that a cached score has for it.
const maxVersion = 1 << 13

// rough is a slot in the grain of scores.
type rough struct {
	// By view.
	levels [numViews]levels
	// prod is what production holds or was promised of the CPU, in levelUnits; kept
	// only while bands are mixed.
	prod uint8
	// shape is the number of the machine's size in grid.shapes, or maxShapes.
	shape uint8
	// price is what the machine costs, in points.
	price int16
	// rack and power are those of grid.domains, or farDomain.
	rack, power uint16
}

// farDomain stands for a domain of a higher number.
const farDomain = math.MaxUint16

// exact is a slot to the byte.
type exact struct {
	// By view: what is free beyond what is held and promised.
	rows [numViews]row
	// inverse turns a request into a share of the machine, whole is the machine.
	inverse inverse
	whole   whole
	// prodCPU is what production holds or was promised, in thousandths of a core;
	// kept only while bands are mixed.
	prodCPU int64
	// price is what the machine costs for what is rare on it, see rare.go, less
	// what it is worth when it is preferred.
	price int64
}

// maxShapes bounds the sizes of machines of which each class knows its shares. A
// cell has few; where each machine is a little different the rest go without.
const maxShapes = 32

// inverse is 2^64/capacity, rounded down.
type inverse struct{ cpu, mem uint64 }

// whole is what a machine has when nothing runs on it.
type whole struct{ cpuMilli, memBytes int64 }

// domains number a machine's failure domains; zero: it shares none.
type domains struct{ rack, power int32 }

// domainNames numbers failure domains from 1 and counts the machines in each.
type domainNames struct {
	numbers map[string]int32
	sizes   []int32
	// inUse counts those with machines.
	inUse int32
}

func (d *domainNames) enter(m *cell.Machine, key string) int32 {
	name, ok := m.Attribute(key)
	if !ok {
		return 0
	}
	n := d.numbers[name]
	if n == 0 {
		if d.numbers == nil {
			d.numbers = make(map[string]int32)
			d.sizes = []int32{0}
		}
		n = int32(len(d.sizes))
		d.numbers[name] = n
		d.sizes = append(d.sizes, 0)
	}
	if d.sizes[n]++; d.sizes[n] == 1 {
		d.inUse++
	}
	return n
}

func (d *domainNames) leave(n int32) {
	if n == 0 {
		return
	}
	if d.sizes[n]--; d.sizes[n] == 0 {
		d.inUse--
	}
}

func newGrid(s *sites, cfg *Config, empty bool) *grid {
	g := &grid{sites: s, empty: empty, threads: cfg.Threads, weights: cfg.Weights, prefer: cfg.Prefer.constraint()}
	g.rebuild()
	return g
}

// rebuild makes all arrays anew after the slots were numbered anew.
func (g *grid) rebuild() {
	n := len(g.sites.walk)
	g.generation++
	g.layout++
	g.suits++
	g.rough, g.exact, g.shapes = make([]rough, n), make([]exact, n), nil
	for v := range numViews {
		g.cpuSteps[v], g.memSteps[v] = newSteps(n, cpuShift), newSteps(n, memShift)
		for d := range g.deviceFree[v] {
			g.deviceFree[v][d] = make([]int64, n)
		}
	}
	for d := range g.singles {
		g.singles[d] = make([]single, n)
	}
	g.versions, g.domains = make([]uint16, n), make([]domains, n)
	g.usable, g.tainted, g.crowded = newBitset(n), newBitset(n), newBitset(n)
	g.evictable, g.preferred = make([]evictable, n), newBitset(n)
	g.headrooms, g.outdated = nil, newBitset(n)
	g.racks, g.powers = domainNames{}, domainNames{}
	g.columns = make(map[string]*column)
	g.facts, g.statics, g.said = make(map[factKey]*fact), make(map[string]*static), nil
	g.cached = nil
	g.factsNowhere()
	for _, t := range g.sites.walk {
		g.locate(t)
	}
	split(partsOf(g.threads, n), (n+63)/64, func(_, low, high int) {
		for _, t := range g.sites.walk[low<<6 : min(high<<6, n)] {
			g.describe(t)
		}
	})
}

// locate takes over the failure domains of a machine.
func (g *grid) locate(t *site) {
	m, i := t.machine, t.slot
	g.said = nil
	for _, d := range m.Capacity().Devices {
		// Scores see the devices of machines, whether anybody asks for them or not.
		g.device(d.Name)
	}
	g.rough[i].shape = g.shape(m)
	old := g.domains[i]
	g.domains[i] = domains{g.racks.enter(m, "rack"), g.powers.enter(m, "power")}
	g.rough[i].rack, g.rough[i].power = near(g.domains[i].rack), near(g.domains[i].power)
	g.racks.leave(old.rack)
	g.powers.leave(old.power)
	if g.domains[i] != old {
		g.layout++
	}
	for _, c := range g.columns {
		if c.locate(t) {
			g.layout++
		}
	}
}

func near(domain int32) uint16 { return uint16(min(domain, farDomain)) }

// domainsAt is what domains holds of a slot.
func (g *grid) domainsAt(i int32) domains {
	o := &g.rough[i]
	if o.rack == farDomain || o.power == farDomain {
		return g.domains[i]
	}
	return domains{int32(o.rack), int32(o.power)}
}

// shape numbers the size of a machine.
func (g *grid) shape(m *cell.Machine) uint8 {
	capacity := m.Capacity()
	size := whole{capacity.CPUMilli, capacity.MemBytes}
	at := slices.Index(g.shapes, size)
	if at < 0 && len(g.shapes) < maxShapes {
		at = len(g.shapes)
		g.shapes = append(g.shapes, size)
	}
	if at < 0 {
		return maxShapes
	}
	return uint8(at)
}

// describe takes over what else a machine says of itself, and what is free. Two
// threads may do it at once in different words of the sets.
func (g *grid) describe(t *site) {
	m, i := t.machine, t.slot
	capacity := m.Capacity()
	g.exact[i].whole = whole{capacity.CPUMilli, capacity.MemBytes}
	g.exact[i].inverse = inverse{invert(capacity.CPUMilli), invert(capacity.MemBytes)}
	g.usable.set(i, m.Up() && !t.silent && !m.Closed() && (!m.Draining() || mutant.Planted(mutant.DrainUnseen)))
	g.tainted.set(i, len(m.Taints()) > 0)
	g.preferred.set(i, g.prefer != nil && cell.Holds(g.prefer, m))
	for _, f := range g.facts {
		f.holds.set(i, f.at(m))
	}
	for _, s := range g.statics {
		s.fits.set(i, g.meets(s, t))
		s.advise(t, len(g.sites.walk))
	}
	g.read(t)
	// Its capacity may be another, and soft constraints hold that did not.
	g.bump(i)
}

func invert(capacity int64) uint64 {
	if capacity <= 1 {
		return math.MaxUint64 * uint64(max(capacity, 0))
	}
	return math.MaxUint64/uint64(capacity) + 1
}

// read computes anew what is free on a machine.
func (g *grid) read(t *site) {
	capacity := t.machine.Capacity()
	g.recount(t.slot)
	g.crowd(t)
	for v := range numViews {
		free := capacity
		if !g.empty {
			free = free.Sub(t.machine.Held(v == viewProd))
		}
		if t.promises > 0 {
			if v == viewProd {
				free = free.Sub(t.promised.Limits)
			} else {
				free = free.Sub(t.promised.Reserved)
			}
		}
		g.exact[t.slot].rows[v] = row{free.CPUMilli, free.MemBytes, free.DiskBytes, free.DiskBytesPerS, free.Ports}
		for d, name := range g.devices {
			g.deviceFree[v][d][t.slot] = free.Device(name)
		}
	}
	g.readSingles(t)
	if g.weights.Mix != 0 {
		g.exact[t.slot].prodCPU = t.promisedProdCPU
		if !g.empty {
			g.exact[t.slot].prodCPU += heldByProd(t.machine)
		}
	}
	g.gauge(t.slot)
}

// crowd notes whether some band may find no place on a machine.
func (g *grid) crowd(t *site) { g.crowded.set(t.slot, !g.empty && t.machine.NearShare(t.places)) }

// heldByProd is how much CPU production holds of a machine, allocs as a whole.
func heldByProd(m *cell.Machine) (cpuMilli int64) {
	for p := range m.Copies() {
		if p.Alloc() == nil && p.Priority() >= prodPriority {
			cpuMilli += p.Resources().CPUMilli
		}
	}
	for a := range m.Allocs() {
		if a.Set().Priority() >= prodPriority {
			cpuMilli += a.Capacity().CPUMilli
		}
	}
	return cpuMilli
}

// take is what read would do after a promise of the machine's own room.
func (g *grid) take(t *site, limits, reserved *cell.Resources, prod bool) {
	g.outdated.set(t.slot, true)
	g.crowd(t)
	if prod && g.weights.Mix != 0 {
		g.exact[t.slot].prodCPU += limits.CPUMilli
	}
	for v := range numViews {
		res := reserved
		if v == viewProd {
			res = limits
		}
		r := &g.exact[t.slot].rows[v]
		r.cpuMilli -= res.CPUMilli
		r.memBytes -= res.MemBytes
		r.diskBytes -= res.DiskBytes
		r.diskBytesPerS -= res.DiskBytesPerS
		r.ports -= res.Ports
		for _, d := range res.Devices {
			g.deviceFree[v][g.device(d.Name)][t.slot] -= d.Milli
		}
	}
	if len(t.promised.Devices) > 0 {
		g.readSingles(t)
	}
	g.gauge(t.slot)
}

// gauge sets the levels and steps of a slot to what is free there.
func (g *grid) gauge(i int32) {
	x, o := &g.exact[i], &g.rough[i]
	now := *o
	for v := range numViews {
		r := &x.rows[v]
		g.cpuSteps[v].put(i, r.cpuMilli)
		g.memSteps[v].put(i, r.memBytes)
		now.levels[v] = levels{levelOf(r.cpuMilli, x.whole.cpuMilli), levelOf(r.memBytes, x.whole.memBytes)}
	}
	if g.weights.Mix != 0 {
		now.prod = levelOf(x.prodCPU, x.whole.cpuMilli)
	}
	if now != *o {
		*o = now
		g.bump(i)
	}
}

// charge sets what the machine costs.
func (g *grid) charge(i int32, price int64) {
	g.exact[i].price = price
	g.rough[i].price = int16(min(max(price, math.MinInt16), maxRarePoints))
}

func levelOf(free, capacity int64) uint8 {
	if free <= 0 || capacity <= 0 {
		return 0
	}
	return uint8(min(free*levelUnits/capacity, levelUnits))
}

// bump ends what was cached of a slot.
func (g *grid) bump(i int32) {
	g.versions[i]++
	if g.versions[i] == maxVersion {
		g.versions[i] = 1
		for _, cl := range g.cached {
			cl.scores[i] = 0
		}
	}
}

// device returns the column of a device, and makes it when it is new.
func (g *grid) device(name string) int {
	for d, known := range g.devices {
		if known == name {
			return d
		}
	}
	g.devices = append(g.devices, name)
	for v := range g.deviceFree {
		column := make([]int64, len(g.sites.walk))
		g.deviceFree[v] = append(g.deviceFree[v], column)
	}
	g.singles = append(g.singles, make([]single, len(g.sites.walk)))
	for _, t := range g.sites.walk {
		g.read(t)
	}
	return len(g.devices) - 1
}

// share is how much of a machine a request is, in fullPoints, rounded down. The
// inverse is rounded up, so that a half comes to a half.
func share(request int64, inverse uint64) int64 {
	hi, _ := bits.Mul64(uint64(request)*fullPoints, inverse)
	return int64(hi)
}

// all puts every slot into a set.
func (g *grid) all(b bitset) { b.fill(len(g.sites.walk)) }
