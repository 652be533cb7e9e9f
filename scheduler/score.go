package scheduler

import (
	"slices"
	"strings"

	"borg/borgmaster/cell"
)

// fullPoints is what fullness gives at most.
const fullPoints = 1024

// batchShift makes spreading cheap for batch jobs: losing many tasks at once
// costs them time, not users.
const batchShift = 3

// Policy is how a place is judged by what would be left of it.
type Policy uint8

const (
	// Hybrid leaves as little stranded as it can: CPU that nobody can use since
	// the memory has run out, or the other way round. Of equals it fills the
	// fullest.
	Hybrid Policy = iota
	// BestFit takes the place of which least is left, in the resource of which
	// most is left.
	BestFit
	// WorstFit spreads load: the cheapest place by a cost that grows faster
	// than use (E-PVM, §3.2).
	WorstFit
	numPolicies
)

var policyNames = [numPolicies]string{"hybrid", "best-fit", "worst-fit"}

func (p Policy) String() string { return policyNames[p] }

// ParsePolicy reads the name of a policy; empty is the default one.
func ParsePolicy(name string) (p Policy, ok bool) {
	if name == "" {
		return Hybrid, true
	}
	at := slices.Index(policyNames[:], name)
	return Policy(max(at, 0)), at >= 0
}

// PolicyWords lists the policies for people.
func PolicyWords() string { return strings.Join(policyNames[:], ", ") }

// Score says how good a feasible place is, by parts; more is better. All parts
// are points in fixed point: integers, so that they are the same everywhere.
type Score struct {
	// Fit is the policy's.
	Fit int64
	// Rare is the price, never positive, of what is rare on the machine.
	Rare int64
	// Prefer is for a machine that is better for everything, see Config.Prefer.
	Prefer int64
	// Soft is for soft constraints that hold.
	Soft int64
	// Packages is for packages that are there already.
	Packages int64
	// Devices is what becomes of the machine's devices.
	Devices int64
	// Taints is the price, never positive, of taints that advise against it.
	Taints int64
	// Mix is for bands that share the machine.
	Mix int64
	// Spread is the price, never positive, of neighbours of the same job.
	Spread int64
}

// Total is what places are compared by.
func (s Score) Total() int64 {
	return s.Fit + s.Rare + s.Prefer + s.Soft + s.Packages + s.Devices + s.Taints + s.Mix + s.Spread
}

const numParts = 9

func (s *Score) small() smallScore {
	return smallScore{
		int32(s.Fit), int32(s.Rare), int32(s.Prefer), int32(s.Soft), int32(s.Packages),
		int32(s.Devices), int32(s.Taints), int32(s.Mix), int32(s.Spread),
	}
}

func (s smallScore) large() Score {
	n := func(i int) int64 { return int64(s[i]) }
	return Score{n(0), n(1), n(2), n(3), n(4), n(5), n(6), n(7), n(8)}
}

// Part is one part of a score by name.
type Part struct {
	Name   string
	Points int64
}

// Parts lists all of them.
func (s Score) Parts() []Part {
	return []Part{
		{"fit", s.Fit},
		{"rare", s.Rare},
		{"prefer", s.Prefer},
		{"soft", s.Soft},
		{"packages", s.Packages},
		{"devices", s.Devices},
		{"taints", s.Taints},
		{"mix", s.Mix},
		{"spread", s.Spread},
	}
}

// points scores a place by what is free of it before, and what the request
// takes, both in fullPoints of its capacity.
func (p Policy) points(freeCPU, freeMem, cpu, mem int64) int64 {
	leftCPU, leftMem := max(freeCPU-cpu, 0), max(freeMem-mem, 0)
	switch p {
	case Hybrid:
		return hybridPoints(freeCPU, freeMem, cpu, mem)
	case BestFit:
		return fullPoints - max(leftCPU, leftMem)
	}
	return cost(fullPoints-freeCPU) + cost(fullPoints-freeMem) - cost(fullPoints-leftCPU) - cost(fullPoints-leftMem)
}

// hybridPoints are small, so that they need no call: it is the policy of nearly
// all walks.
func hybridPoints(freeCPU, freeMem, cpu, mem int64) int64 {
	leftCPU, leftMem := max(freeCPU-cpu, 0), max(freeMem-mem, 0)
	// Squares: where much is stranded already, a little more weighs more.
	before, after := freeCPU-freeMem, leftCPU-leftMem
	return (before*before - after*after - 8*(leftCPU+leftMem)) >> 8
}

// cost grows with the cube of use: 0 to 8,192 points.
func cost(used int64) int64 { return used * used * used >> 17 }

// fullness is how much of whole is used when left is left: 0 to fullPoints.
// Amounts up to 2^50 bytes times fullPoints stay below 2^63.
func fullness(whole, left int64) int64 {
	if whole <= 0 || left >= whole {
		return 0
	}
	if left <= 0 {
		return fullPoints
	}
	return (whole - left) * fullPoints / whole
}

// A cached score is a version, whether the request fits at the levels alone,
// and the points above lowestScore.
const (
	scoreBits    = 18
	sureBit      = 1 << scoreBits
	lowestScore  = -(1 << 16)
	highestScore = lowestScore + sureBit - 1
)

// liking is something that is worth points where it holds.
type liking struct {
	holds  bitset
	points int64
	// packages: it is a package, and no soft constraint.
	packages bool
}

// pointsAt scores a slot for a class, all but the spread, and tells whether
// the levels alone show that it fits: then the exact amounts need no look.
func (g *grid) pointsAt(c *class, i int32, policy Policy) (points int64, sure bool) {
	o := &g.rough[i]
	l := o.levels[c.view]
	const grain = fullPoints / levelUnits
	freeCPU, freeMem := int64(l.cpu)*grain, int64(l.mem)*grain
	var cpu, mem int64
	if int(o.shape) < len(c.shares) {
		of := c.shares[o.shape]
		cpu, mem = int64(of.cpu), int64(of.mem)
	} else {
		cpu, mem = g.sharesAt(c, i)
	}
	points = policy.points(freeCPU, freeMem, cpu, mem)
	points += g.otherPoints(c, i, freeCPU, freeMem, cpu, mem) - int64(o.price)
	if g.weights.Mix != 0 {
		points += g.mixPoints(c.view, o)
	}
	// A share is rounded down, by less than two points.
	sure = c.slim && (c.cpu == 0 || freeCPU >= cpu+2) && (c.mem == 0 || freeMem >= mem+2)
	return min(max(points, lowestScore), highestScore), sure
}

// otherPoints are for what few classes like and few cells have.
func (g *grid) otherPoints(c *class, i int32, freeCPU, freeMem, cpu, mem int64) (points int64) {
	for k := range c.likings {
		if o := &c.likings[k]; o.holds.has(i) {
			points += o.points
		}
	}
	if len(g.devices) > 0 {
		points += g.devicePoints(c, i, freeCPU, freeMem, cpu, mem)
	}
	if c.static.shunned != nil && c.static.shunned.has(i) {
		points -= g.weights.Soft
	}
	return points
}

// mixPoints are for production where others hold the processors, and for others
// where production does: in a spike production takes from those, not from its
// like.
func (g *grid) mixPoints(v view, o *rough) int64 {
	prod := int64(o.prod)
	if v == viewProd {
		others := max(levelUnits-int64(o.levels[viewProd].cpu)-prod, 0)
		return g.weights.Mix * others / levelUnits
	}
	return g.weights.Mix * prod / levelUnits
}

// sharesAt is how much of a machine the request of a class is, in fullPoints.
func (g *grid) sharesAt(c *class, i int32) (cpu, mem int64) {
	if shape := int(g.rough[i].shape); shape < len(c.shares) {
		return int64(c.shares[shape].cpu), int64(c.shares[shape].mem)
	}
	inv := &g.exact[i].inverse
	return share(c.cpu, inv.cpu), share(c.mem, inv.mem)
}

// parts is pointsAt by parts, for people.
func (g *grid) parts(c *class, i int32, policy Policy) Score {
	o := &g.rough[i]
	l := o.levels[c.view]
	const grain = fullPoints / levelUnits
	freeCPU, freeMem := int64(l.cpu)*grain, int64(l.mem)*grain
	cpu, mem := g.sharesAt(c, i)
	s := Score{Fit: policy.points(freeCPU, freeMem, cpu, mem), Rare: -int64(o.price)}
	if g.preferred.has(i) {
		s.Prefer = g.weights.Prefer
		s.Rare -= s.Prefer
	}
	s.like(c, i)
	if len(g.devices) > 0 {
		s.Devices = g.devicePoints(c, i, freeCPU, freeMem, cpu, mem)
	}
	if c.static.shunned != nil && c.static.shunned.has(i) {
		s.Taints = -g.weights.Soft
	}
	if g.weights.Mix != 0 {
		s.Mix = g.mixPoints(c.view, o)
	}
	return s
}

// like adds what a class likes of a slot.
func (s *Score) like(c *class, i int32) {
	for k := range c.likings {
		switch o := &c.likings[k]; {
		case !o.holds.has(i):
		case o.packages:
			s.Packages += o.points
		default:
			s.Soft += o.points
		}
	}
}

// cachedPoints is pointsAt with what was found out before.
func (f *search) cachedPoints(c *class, i int32) (points int64, sure bool) {
	g := f.s.grid
	e := c.scores[i]
	if e>>(scoreBits+1) == uint32(g.versions[i]) {
		f.hits++
		return int64(e&(sureBit-1)) + lowestScore, e&sureBit != 0
	}
	points, sure = g.pointsAt(c, i, f.s.cfg.Policy)
	e = uint32(g.versions[i])<<(scoreBits+1) | uint32(points-lowestScore)
	if sure {
		e |= sureBit
	}
	c.scores[i] = e
	f.misses++
	return points, sure
}

// maxScoreBytes bounds the cache; classes that come later go without.
const maxScoreBytes = 64 << 20

// keepScores gives a class a row of the cache, where it is worth its memory: a
// search that stops at the first few feasible machines rarely sees one again
// before it has changed, and computing its score costs what looking it up does.
func (f *search) keepScores(c *class) {
	g := f.s.grid
	if c.scores != nil || c.finds < 2 || f.s.cfg.NoScoreCache || len(c.likings) == 0 && f.s.cfg.Enough < len(g.versions)/8 {
		return
	}
	if (len(g.cached)+1)*len(g.versions)*4 > maxScoreBytes {
		return
	}
	c.scores = make([]uint32, len(g.versions))
	g.cached = append(g.cached, c)
}

// spread prices the neighbours of the same job that one more in a slot has.
func (f *search) spread(w *want, n *counts, i int32) int64 {
	d, of, p := f.s.grid.domainsAt(i), &f.s.cfg.Weights, int64(0)
	if n.some.has(i) {
		// A fair share is one at least.
		p = of.Machine * max(0, n.on(i)+1-f.fair[cell.DomainMachine])
	}
	if d.rack != 0 {
		p += of.Rack * max(0, int64(n.rack[d.rack])+1-f.fair[cell.DomainRack])
	}
	if d.power != 0 {
		p += of.Power * max(0, int64(n.power[d.power])+1-f.fair[cell.DomainPower])
	}
	if w.batch {
		p >>= batchShift
	}
	return -p
}
