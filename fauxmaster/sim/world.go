package sim

import (
	"cmp"
	"container/heap"
	cryptorand "crypto/rand"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"

	"borg/history"
	"borg/history/told"
)

// Times are virtual nanoseconds.
const (
	microsecond = int64(1e3)
	millisecond = int64(1e6)
	second      = int64(1e9)
)

// Config of one run. Zero fields take the defaults.
type Config struct {
	Seed uint64
	// Length of the first phase; 10 s.
	DurationNs int64
	// Machines and clients; 12 and 12.
	Machines, Clients int
	// Without are the numbers of faults that are left out, and WithoutClients
	// those of clients; the rest stays as the seed has drawn it. Machines are
	// added by an operator who is always there.
	Without, WithoutClients []int
	// Aim names what the faults are bent towards; empty: nothing.
	Aim string
	// Disk is a failure of one disk at one write, under SweepAim; nil: none.
	Disk *DiskFault
	// Trace gets a line for everything that happens; nil: nobody does.
	Trace io.Writer
}

// fill sets the defaults.
func (c *Config) fill() {
	c.DurationNs = cmp.Or(c.DurationNs, 10*second)
	if c.Aim == SweepAim {
		// Of many runs that are nearly the same, each is small: twice as many writes are
		// twice as many runs, each twice as long.
		c.Clients = cmp.Or(c.Clients, 3)
	}
	c.Machines = cmp.Or(c.Machines, 12)
	c.Clients = cmp.Or(c.Clients, 12)
}

// Result is what a run came to.
type Result struct {
	Seed uint64
	// Hash over everything that happened.
	Hash   uint64
	Events uint64
	// Virtual length of both phases.
	VirtualNs int64
	// Acknowledged mutations, answered reads, attempts that started, elections won, entries of
	// the log.
	Acknowledged, Reads, Started, Elections int
	Entries                                 uint64
	// Times from the loss of an elected replica to the next acknowledged mutation,
	// as far as a majority was there (failover).
	FailoverNs []int64
	Marks      map[string]int
	// Writes to disks in the first phase, by the role of who wrote.
	Writes map[string]int
	// Faults that came, in words and each with its time, by number.
	Faults []string
	// What clients were told of jobs, and whether one cell can have said it.
	History history.Verdict
	// Nil: everything held.
	Violation error
}

// replicas that a cell begins with.
const replicas = 5

// World is one run.
type World struct {
	cfg   Config
	now   int64
	seq   uint64
	queue eventQueue
	count uint64
	hash  uint64
	line  []byte

	// Chance of what is drawn of the whole; each node, each sender and each fault
	// has a stream of its own, so that a draw more in one does not shift the
	// others.
	rand *rand.Rand

	swarm  swarm
	net    network
	faults []*fault
	aimed  []*aimedAt
	// Members, in the order of their numbers, and all that ever were or may become
	// one, by number.
	replicas []*replicaNode
	nodes    map[uint64]*replicaNode
	machines []*machine
	operator *operator
	// How much wall time went by for everybody while no other time did.
	passedNs int64
	clients  []*client
	watchers []*watcher
	hostRand *rand.Rand
	// When and of which machines it is asked whether they could go.
	drainRand *rand.Rand
	past      *told.Past
	truth     *truth
	failover  failover
	// When a mutation was last answered.
	wroteNs  int64
	coverage coverage
	leads    leads
	// How often the first phase went on for a while, and where that draws from.
	went     int
	wentRand *rand.Rand
	story    story
	roster   *rosterOperator
	restore  restore
	// What the crowd has asked, and what of that was done.
	crowd crowdCount
	marks map[string]int
	// The second phase has begun; all has settled in it.
	healed, over bool
	failure      error
	result       Result
}

type event struct {
	at  int64
	seq uint64
	do  func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].seq < q[j].seq
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = event{}
	*q = (*q)[:last]
	return e
}

func stream(seed uint64, purpose string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// randomBytes is a reader of chance for whoever reads crypto/rand.
type randomBytes struct{ r *rand.Rand }

func (b randomBytes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b.r.Uint32())
	}
	return len(p), nil
}

// Run makes one run.
func Run(cfg Config) (r Result) {
	cfg.fill()
	old := cryptorand.Reader
	defer func() { cryptorand.Reader = old }()
	cryptorand.Reader = randomBytes{stream(cfg.Seed, "crypto")}
	// A run makes much waste and needs little.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	w := &World{
		cfg: cfg, now: second, marks: map[string]int{}, hash: 14695981039346656037, rand: stream(cfg.Seed, "world"),
	}
	defer func() {
		if p := recover(); p != nil {
			w.fail("panic: %v\n%s", p, debug.Stack())
			r = w.end()
		}
	}()
	w.build()
	w.run()
	r = w.end()
	w.close()
	return r
}

func (w *World) build() {
	w.swarm = drawSwarm(stream(w.cfg.Seed, "swarm"))
	w.swarm.drawFlood(stream(w.cfg.Seed, "floods"))
	if err := shape(w.cfg.Aim, &w.swarm); err != nil {
		w.fail("%w", err)
		return
	}
	w.cfg.Machines = cmp.Or(w.swarm.machines, w.cfg.Machines)
	w.drawWatchers()
	w.say("swarm %+v", w.swarm)
	w.net = network{
		cut: map[[2]int]int{}, clogged: map[[2]int]int{}, held: map[[2]int][]func(){}, rand: map[int]*rand.Rand{},
	}
	w.truth, w.failover = newTruth(w), newFailover(w)
	w.story.rand = stream(w.cfg.Seed, "story")
	w.drainRand = stream(w.cfg.Seed, "drains")
	w.nodes = map[uint64]*replicaNode{}
	for id := uint64(1); id <= replicas; id++ {
		x := newReplicaNode(w, id, false)
		w.replicas, w.nodes[id] = append(w.replicas, x), x
	}
	w.drawBuilds(stream(w.cfg.Seed, "builds"))
	for i := range w.cfg.Machines {
		w.machines = append(w.machines, newMachine(w, i))
	}
	w.operator = newOperator(w)
	for i := range w.cfg.Clients {
		w.clients = append(w.clients, newClient(w, i))
	}
	for _, r := range w.replicas {
		r.start()
	}
	for _, m := range w.machines {
		m.Start()
	}
	w.operator.start()
	for _, c := range w.clients {
		if !w.leftOut(c) {
			c.start()
		}
	}
	for _, x := range w.watchers {
		x.begin()
	}
	w.planFaults()
	if w.swarm.checkpointNs > 0 {
		w.after(w.swarm.checkpointNs, w.takeCheckpoint)
	}
	w.forge()
	w.flood()
	w.crowded()
	w.lists()
	w.machinesCome()
	w.loseAll()
	w.changeMembers()
	w.transfers()
	w.covers()
	w.lapses()
	w.watch()
	w.hostRand = stream(w.cfg.Seed, "hosts")
	w.loseHosts(hostFromNs)
}

func (w *World) leftOut(c *client) bool { return slices.Contains(w.cfg.WithoutClients, c.i) }

// run handles events until the end of the second phase, or until something
// does not hold.
func (w *World) run() {
	w.at(w.now+w.cfg.DurationNs, w.healWhenBusy)
	for len(w.queue) > 0 && w.failure == nil && !w.over {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		w.count++
		e.do()
	}
}

// A seed in which hardly anything happened says nothing by its silence. Its first
// phase goes on, goOnNs at a time, until so much has come of each 30 s of it.
const (
	wantAcknowledged = 500
	wantElections    = 4
	wantStarted      = 100
	goOnNs           = 2 * second
	mostGoOn         = 30
)

// healWhenBusy begins the second phase, or lets the first one go on: then clients
// catch up, whoever is elected crashes if that is what there was too little of, and
// machines come back if tasks had nowhere to start.
func (w *World) healWhenBusy() {
	each := func(n int64) int { return int(n * w.cfg.DurationNs / (30 * second)) }
	few, idle := w.result.Elections < each(wantElections), w.truth.started < each(wantStarted)
	if w.cfg.Aim != "" || w.went == mostGoOn || !few && !idle && len(w.truth.acked) >= each(wantAcknowledged) {
		w.heal()
		return
	}
	if idle {
		w.machinesBack()
	}
	if w.went++; w.wentRand == nil {
		w.wentRand = stream(w.cfg.Seed, "goes on")
	}
	w.say("little was done; this goes on")
	w.mark("first phase went on")
	if x := w.leader(); few && x != nil {
		x.crash(0, false)
		x.startAfter(between(w.wentRand, 50*millisecond, second))
	}
	w.after(goOnNs, w.healWhenBusy)
}

// at does something at a time.
func (w *World) at(at int64, do func()) {
	w.seq++
	heap.Push(&w.queue, event{at: max(at, w.now), seq: w.seq, do: do})
}

// after does something a while from now.
func (w *World) after(ns int64, do func()) { w.at(w.now+ns, do) }

// say notes what happened, for the hash and for who reads the trace.
func (w *World) say(format string, args ...any) {
	w.line = fmt.Appendf(w.line[:0], "%.6f ", float64(w.now-second)/1e9)
	w.line = fmt.Appendf(w.line, format, args...)
	for _, b := range w.line {
		w.hash = (w.hash ^ uint64(b)) * 1099511628211
	}
	if w.cfg.Trace != nil {
		fmt.Fprintf(w.cfg.Trace, "%s\n", w.line)
	}
}

// fail notes the first thing that does not hold.
func (w *World) fail(format string, args ...any) {
	if w.failure == nil {
		w.failure = fmt.Errorf("at %.6f s: %w", float64(w.now-second)/1e9, fmt.Errorf(format, args...))
		w.say("VIOLATION %v", w.failure)
	}
}

func (w *World) end() Result {
	r := w.result
	r.Seed, r.Hash, r.Events, r.VirtualNs = w.cfg.Seed, w.hash, w.count, w.now-second
	r.Marks, r.Violation = w.marks, w.failure
	if w.truth != nil {
		r.Acknowledged, r.Reads, r.Started, r.Entries = len(w.truth.acked), w.truth.reads, w.truth.started, w.truth.index
	}
	return r
}

// close lets go of the databases.
func (w *World) close() {
	for _, id := range slices.Sorted(maps.Keys(w.nodes)) {
		if r := w.nodes[id]; r.up {
			_ = r.store.Close()
		}
	}
}

// chance is true so often in a thousand.
func chance(r *rand.Rand, permille int) bool { return permille > 0 && r.IntN(1000) < permille }

// between draws a time.
func between(r *rand.Rand, low, high int64) int64 { return low + r.Int64N(high-low+1) }

// clock is a node's own: its rate differs from true time, and its wall clock
// may be off.
type clock struct {
	ratePPM   int64
	wallOffNs int64
}

func (c clock) monoNs(now int64) int64 { return now + now/1e6*c.ratePPM }
func (c clock) trueNs(ns int64) int64  { return ns - ns/1e6*c.ratePPM }
func (c clock) wallNs(now int64) int64 { return 1_800_000_000*second + c.monoNs(now) + c.wallOffNs }

// wallNs is what a wall clock that is right shows.
func (w *World) wallNs() int64 { return clock{}.wallNs(w.now) + w.passedNs }

// passTime lets wall clocks go on, all of them and each a little differently, as if a
// minute had been a moment: slots of cron jobs lie minutes apart.
func (w *World) passTime(f *fault) string {
	by := between(f.rand, 5*second, 90*second)
	w.passedNs += by
	for _, x := range w.replicas {
		x.clock.wallOffNs += by + between(f.rand, -3*second, 3*second)
	}
	return fmt.Sprintf("%d ms go by on all wall clocks", by/millisecond)
}

// endpoints of the network.
func replicaEnd(id uint64) int { return int(id) }
func machineEnd(i int) int     { return 100 + i }
func clientEnd(i int) int      { return 10_000 + i }

// forgerEnd is where forged messages come from.
const forgerEnd = 20_000

func isMachine(end int) bool { return end >= machineEnd(0) && end < clientEnd(0) }

// network is what lies between the nodes.
type network struct {
	// How many faults cut each directed link, and how many let nothing through
	// for now; held is what waits there.
	cut, clogged map[[2]int]int
	held         map[[2]int][]func()
	// Chance of each sender.
	rand map[int]*rand.Rand
}

// open: what is sent now arrives, if chance lets it.
func (n *network) open(from, to int) bool {
	l := [2]int{from, to}
	return n.cut[l] == 0 && n.clogged[l] == 0
}

// arrive delivers what has come to the end of a link. What is under way when it
// is cut is lost with it; where it is clogged it waits.
func (n *network) arrive(from, to int, deliver func()) {
	l := [2]int{from, to}
	switch {
	case n.cut[l] > 0:
	case n.clogged[l] > 0:
		n.held[l] = append(n.held[l], deliver)
	default:
		deliver()
	}
}

// send carries something, perhaps late, perhaps twice, perhaps not at all.
func (w *World) send(from, to int, deliver func()) {
	if from == to {
		w.after(10*microsecond, deliver)
		return
	}
	r := w.net.rand[from]
	if r == nil {
		r = stream(w.cfg.Seed, fmt.Sprint("net ", from))
		w.net.rand[from] = r
	}
	s := &w.swarm
	times := 1
	if !w.healed {
		if w.net.cut[[2]int{from, to}] > 0 || chance(r, s.lossPermille) {
			return
		}
		if chance(r, s.dupPermille) {
			times = 2
		}
	}
	for range times {
		delay := between(r, 100*microsecond, 600*microsecond)
		if !w.healed && chance(r, s.latePermille) {
			delay += between(r, 0, s.lateNs)
		}
		if s.lateOrderPermille > 0 && !w.healed && isMachine(to) && chance(r, s.lateOrderPermille) {
			delay += between(r, 0, s.lateOrderNs)
		}
		w.after(delay, func() { w.net.arrive(from, to, deliver) })
	}
}

// Command repeats a run with everything that happens printed.
func (r Result) Command(durationNs int64) string {
	return fmt.Sprintf("make sim SEED=%d DURATION=%ds TRACE=1", r.Seed, durationNs/second)
}
