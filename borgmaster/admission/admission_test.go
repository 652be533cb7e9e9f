package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const ms = int64(1e6)

// cellLog is a log that commits what it has in batches: each takes fixedNs and so much
// more for each write. Writes come by schedule, so that all of it is arithmetic.
type cellLog struct {
	t       *testing.T
	c       *Core[string]
	now     int64
	batch   []*Place[string]
	pending []*Place[string]
	endsNs  int64
	fixedNs int64
	eachNs  int64
	// What became of writes.
	took             map[string][]int64
	refused, expired map[string]int
	waits            map[*Place[string]]bool
	// Users come back when they were told to; otherwise they go on asking.
	heed   bool
	backNs map[string]int64
}

func newCellLog(t *testing.T, fixedNs, eachNs int64) *cellLog {
	return &cellLog{t: t, c: New[string](Config{Replica: 3}), now: 1, fixedNs: fixedNs, eachNs: eachNs,
		took: map[string][]int64{}, refused: map[string]int{}, expired: map[string]int{}, waits: map[*Place[string]]bool{}, backNs: map[string]int64{}}
}

func (l *cellLog) ask(user string, bytes int) *Refusal {
	if l.heed && l.now < l.backNs[user] {
		return nil
	}
	p, r := l.c.Enter(l.now, user, bytes, user)
	if r != nil {
		l.refused[user]++
		l.backNs[user] = l.now + r.RetryNs
		return r
	}
	if p.Placed() {
		l.propose(p)
	} else {
		l.waits[p] = true
	}
	l.step()
	return nil
}

func (l *cellLog) propose(p *Place[string]) {
	delete(l.waits, p)
	l.pending = append(l.pending, p)
	if l.batch == nil {
		l.begin()
	}
}

func (l *cellLog) begin() {
	if l.batch, l.pending = l.pending, nil; l.batch != nil {
		l.endsNs = l.now + l.fixedNs + int64(len(l.batch))*l.eachNs
	}
}

func (l *cellLog) step() {
	granted, late := l.c.Step(l.now)
	for _, p := range granted {
		l.propose(p)
	}
	for _, p := range late {
		delete(l.waits, p.Place)
		l.expired[p.Place.Who]++
	}
}

// to lets time pass.
func (l *cellLog) to(now int64) {
	for l.batch != nil && l.endsNs <= now {
		l.now = l.endsNs
		done := l.batch
		l.batch = nil
		for _, p := range done {
			l.took[p.Who] = append(l.took[p.Who], l.now-p.sinceNs)
			l.c.Leave(l.now, p, true)
		}
		l.step()
		if l.batch == nil {
			l.begin()
		}
	}
	l.now = now
	l.step()
}

// quiet is what the writes took of all but the flood, which are then forgotten.
func (l *cellLog) quiet() (took []int64) {
	for user, of := range l.took {
		if user != "flood" {
			took = append(took, of...)
			delete(l.took, user)
		}
	}
	return took
}

func p99(of []int64) int64 {
	s := slices.Clone(of)
	slices.Sort(s)
	return s[len(s)*99/100]
}

// TestFloodLeavesOthersAlone: one user asks for ten times what the log can do; those who
// ask now and then wait less than twice as long as in quiet, and are never refused.
func TestFloodLeavesOthersAlone(t *testing.T) {
	l := newCellLog(t, 2*ms, 300_000)
	run := func(until int64, flood bool) {
		for at := l.now; at < until; at += 50_000 {
			l.to(at)
			if flood {
				// Two each 50 us are 40,000/s, of a log that does about 3,000.
				l.ask("flood", 100)
				l.ask("flood", 100)
			}
			if at/50_000%30 == 1 {
				l.ask(fmt.Sprint("quiet", at/50_000/30%10), 100)
			}
		}
	}
	run(20_000*ms, false)
	idle := p99(l.quiet())
	run(23_000*ms, true)
	clear(l.took)
	run(40_000*ms, true)
	flooded := p99(l.quiet())
	t.Logf("others' p99: %.1f ms in quiet, %.1f ms beside a flood; the flood got %d/s, %d refused; %s",
		float64(idle)/1e6, float64(flooded)/1e6, len(l.took["flood"])/17, l.refused["flood"], l.c.Stats())
	if flooded > 2*idle {
		t.Errorf("others' p99 is %.1f ms beside a flood, and %.1f ms in quiet", float64(flooded)/1e6, float64(idle)/1e6)
	}
	delete(l.expired, "flood")
	refused := l.refused["flood"]
	if delete(l.refused, "flood"); len(l.refused)+len(l.expired) > 0 {
		t.Errorf("writes of others were refused: %v, %v", l.refused, l.expired)
	}
	if got := len(l.took["flood"]) / 17; got < 50 {
		t.Errorf("the flood, which heeds nothing, got %d writes a second", got)
	}
	if refused == 0 {
		t.Error("nothing of the flood was refused")
	}
}

// TestAloneMayUseAll: one user who asks with many clients at once gets what the log does.
func TestAloneMayUseAll(t *testing.T) {
	l := newCellLog(t, 2*ms, 100_000)
	under := func() int { return len(l.pending) + len(l.batch) + len(l.waits) }
	for at := l.now; at < 12_000*ms; at += 100_000 {
		if l.to(at); at < 2_000*ms {
			// Until the window has found its size.
			clear(l.took)
		}
		for under() < 512 {
			if r := l.ask("alone", 100); r != nil {
				t.Fatal(r)
			}
		}
	}
	if got := len(l.took["alone"]) / 10; got < 9_000 {
		t.Errorf("%d writes a second of a log that does 9,600 with 512 clients", got)
	}
}

// TestCrowd: many users who ask for few things at a time, and for the next when
// they have one, get what the log does for so many: nobody of them is to be kept from
// another.
func TestCrowd(t *testing.T) {
	for _, x := range []crowd{
		{"a quick log", 512, 1, 100_000, 8_300, 7_000, 0, false},
		// A round of all takes longer than a write should: that is no reason to have
		// them stand in line.
		{"a slow log", 512, 1, 450_000, 2_130, 2_000, 0, false},
		// Who asks again before he has his answer still asks for little.
		{"a slow log, asked twice now and then", 512, 1, 450_000, 2_130, 1_900, 25, false},
		// As long as it is not known that they ask for more they ask for little.
		{"of several each", 64, 8, 100_000, 8_300, 7_000, 0, false},
		{"of many each", 16, 32, 100_000, 8_300, 7_000, 0, false},
		{"of very many each", 4, 128, 100_000, 8_300, 7_000, 0, false},
		// Each has a place in each turn, of 25 in a second.
		{"of several each, and one who asks for little", 64, 8, 100_000, 8_300, 1_500, 0, true},
	} {
		t.Run(x.name, x.run)
	}
}

type crowd struct {
	name string
	// Users, and what each has under way.
	users, each   int
	opNs          int64
	does, atLeast int
	// One in so many asks is asked twice; 0: none.
	twice int
	// Somebody is beside them who asks for one thing now and then.
	quiet bool
}

func (x crowd) run(t *testing.T) {
	const runs = 6_000
	l := newCellLog(t, 10*ms, x.opNs)
	asks := 0
	next := func(name string) {
		asks++
		times := 1
		if x.twice > 0 && asks%x.twice == 0 {
			times = 2
		}
		for range times {
			if r := l.ask(name, 100); r != nil {
				t.Fatal(r)
			}
		}
	}
	for i := range x.users * x.each {
		next(fmt.Sprint("user-", i%x.users))
	}
	sum := 0
	var quiet []int64
	for at := int64(1); at < runs; at++ {
		l.to(at * ms)
		if x.quiet {
			quiet = append(quiet, l.took["quiet"]...)
			delete(l.took, "quiet")
			if at%20 == 0 {
				l.ask("quiet", 100)
			}
		}
		var back []string
		for name, took := range l.took {
			for range took {
				back = append(back, name)
			}
			if at > runs/2 {
				// Until then the window finds its size.
				sum += len(took)
			}
		}
		clear(l.took)
		slices.Sort(back)
		for _, name := range back {
			next(name)
		}
	}
	if len(l.expired) > 0 {
		t.Errorf("%d users waited in vain", len(l.expired))
	}
	if x.quiet {
		// One entry that was on its way, and one of its own beside a whole turn of the others.
		if most := 2 * (10*ms + 2*int64(x.users)*x.opNs); p99(quiet) > most {
			t.Errorf("99 of 100 of a user who asks for little took %.1f ms, want at most %.1f", float64(p99(quiet))/1e6, float64(most)/1e6)
		}
		t.Logf("%d of a user who asks for little: 99 of 100 within %.1f ms, the others had %d a second", len(quiet), float64(p99(quiet))/1e6, sum*1000/(runs/2))
	}
	if got := sum * 1000 / (runs / 2); got < x.atLeast {
		t.Errorf("%d writes a second of a log that does %d with 512 clients; %s", got, x.does, l.c.Stats())
	}
}

// TestTwoShareAlike: of two who ask for too much, and come back when they are told to,
// neither gets more than twice what the other gets, though one asks for twelve times as much.
func TestTwoShareAlike(t *testing.T) {
	l := newCellLog(t, 2*ms, 300_000)
	l.heed = true
	for at := l.now; at < 10_000*ms; at += 50_000 {
		l.to(at)
		l.ask("much", 100)
		l.ask("much", 100)
		l.ask("much", 100)
		if at/50_000%4 == 0 {
			l.ask("less", 100)
		}
	}
	much, less := len(l.took["much"]), len(l.took["less"])
	if much > 2*less || less > 2*much {
		t.Errorf("one got %d writes, the other %d", much, less)
	}
}

// TestBounds: whatever comes, what waits is bounded, and in the end nothing is left.
func TestBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l := newCellLog(t, 5*ms, ms)
	for range 60_000 {
		l.to(l.now + r.Int64N(ms))
		if r := l.ask(fmt.Sprint("u", r.IntN(40)), r.IntN(1<<uint(r.IntN(21)))); r != nil && (r.RetryNs < minRetryNs || r.RetryNs > maxRetryNs) {
			t.Fatalf("sent away for %d ns: %v", r.RetryNs, r)
		}
		if s := l.c.Stats(); s.Waiting > maxWaiting || s.WaitingBytes > maxWaitingBytes || s.Waiting != len(l.waits) {
			t.Fatalf("%d wait with %d bytes, and %d are known to", s.Waiting, s.WaitingBytes, len(l.waits))
		}
		if len(l.waits) > 0 && r.IntN(10) == 0 {
			for p := range l.waits {
				l.c.Leave(l.now, p, false)
				delete(l.waits, p)
				break
			}
		}
	}
	for l.batch != nil || len(l.waits) > 0 {
		l.to(l.now + 100*ms)
	}
	l.to(l.now + 60_000*ms)
	l.c.sweep(l.now)
	if s := l.c.Stats(); s.Waiting != 0 || s.WaitingBytes != 0 || s.Used != 0 || s.Users != 0 || l.c.outOfTurn != 0 {
		t.Errorf("left at the end: %+v, %d out of turn", s, l.c.outOfTurn)
	}
}

// TestManyUsers: users above the bound are served too, and are not remembered.
func TestManyUsers(t *testing.T) {
	c := New[int](Config{})
	for n := range maxUsers + 1000 {
		if r := c.Begin(1, fmt.Sprint(n), 10); r != nil {
			t.Fatal(r)
		}
	}
	if len(c.users) > maxUsers+1 {
		t.Errorf("%d users are remembered", len(c.users))
	}
	for n := range maxUsers + 1000 {
		c.End(fmt.Sprint(n), true)
	}
	if c.sweep(60_000 * ms); len(c.users) != 0 {
		t.Errorf("%d users are remembered who have nothing here", len(c.users))
	}
}

// TestHeedless: who goes on asking is turned away for longer and longer, and who heeds
// what he is told is not.
func TestHeedless(t *testing.T) {
	c := New[int](Config{})
	why := refuse("alice", 200*ms, "b", "w")
	now := ms
	closedFor := func(calls int) int64 {
		c.Close(now, "alice", why)
		u := c.users["alice"]
		for range calls {
			c.Closed(now, "alice")
		}
		was := u.closedNs - now
		now = u.closedNs + ms
		return was
	}
	for n, want := range []int64{100, 200, 400, 800, 1600, 1600} {
		if got := closedFor(1000); got != want*ms {
			t.Errorf("time %d: turned away for %d ms, want %d", n, got/ms, want)
		}
	}
	for _, want := range []int64{1600, 800, 400, 200, 100, 100} {
		if got := closedFor(3); got != want*ms {
			t.Errorf("who heeds it is turned away for %d ms, want %d", got/ms, want)
		}
	}
}

// TestAllowed: who was turned away may have half as many under way as he had then, more
// with what is done since, and in the end as many as anybody.
func TestAllowed(t *testing.T) {
	c := New[int](Config{})
	now := ms
	begin := func() (n int) {
		for n < 1000 && c.Begin(now, "alice", 10) == nil {
			n++
		}
		return n
	}
	for range 40 {
		c.Begin(now, "alice", 10)
	}
	for _, want := range []int{20, 10, 5, 4, 4} {
		c.Close(now, "alice", refuse("alice", 200*ms, "b", "w"))
		for range 1000 {
			c.End("alice", false)
		}
		now += 201 * ms
		if got := begin(); got != want {
			t.Errorf("%d may be under way after that was too much, want %d", got, want)
		}
	}
	if r := c.Closed(now, "alice"); r == nil || !strings.Contains(r.Error(), "turned away by replica") {
		t.Errorf("one more: %v", r)
	}
	for want := 5; want < 20; want++ {
		for range want - 1 {
			c.End("alice", true)
		}
		now += momentNs
		if got := begin(); got != want {
			t.Errorf("%d may be under way after %d were done, want %d", got, want-1, want)
		}
	}
	for _, want := range []int{38, 76, 152} {
		now += forgiveNs
		if got := begin(); got != want/2 {
			t.Errorf("%d more may be under way after nobody turned her away for a while, want %d", got, want/2)
		}
	}
}

// TestForgiven: who goes on asking for more than she may is held back, and who does not is
// as free as anybody when it is some time ago.
func TestForgiven(t *testing.T) {
	c := New[int](Config{})
	now := ms
	c.Close(now, "alice", refuse("alice", 200*ms, "b", "w"))
	most := 0
	for end := now + 10*forgiveNs; now < end; now += 10 * ms {
		n := 0
		for c.Begin(now, "alice", 10) == nil {
			n++
		}
		if most = max(most, n); n > 2*leastAllowed {
			// That is too much for the log.
			c.Close(now, "alice", refuse("alice", 200*ms, "b", "w"))
		}
		for range n {
			c.End("alice", false)
		}
	}
	if most != 4*leastAllowed {
		t.Errorf("%d of hers began at once at most, want %d", most, 4*leastAllowed)
	}
	now += forgiveNs + ms
	for n := range 1000 {
		if r := c.Begin(now, "alice", 10); r != nil {
			t.Fatalf("it is held against her for ever: after %d, %v", n, r)
		}
	}
}

// TestHeadsCount: heads that are let in count before their writes begin, for a moment.
func TestHeadsCount(t *testing.T) {
	c := New[int](Config{})
	now := ms
	c.Close(now, "alice", refuse("alice", 200*ms, "b", "w"))
	now += 101 * ms
	heads := func() (n int) {
		for n < 1000 && c.Closed(now, "alice") == nil {
			n++
		}
		return n
	}
	if got := heads(); got != leastAllowed {
		t.Errorf("%d heads are let in, want %d", got, leastAllowed)
	}
	now += momentNs
	if got := heads(); got != leastAllowed {
		t.Errorf("%d heads are let in after none of those before has begun, want %d", got, leastAllowed)
	}
	now += momentNs
	for range leastAllowed {
		if r := c.Closed(now, "alice"); r != nil {
			t.Fatal(r)
		}
		if r := c.Begin(now, "alice", 10); r != nil {
			t.Fatal(r)
		}
	}
	if got := heads(); got != 0 {
		t.Errorf("%d heads are let in beside as many as are allowed", got)
	}
}

// TestTurnsTogether: beside somebody who asks for little a flood has its turns together,
// and he has none to wait for.
func TestTurnsTogether(t *testing.T) {
	l := newCellLog(t, 2*ms, 100_000)
	turns, places := map[int64]bool{}, map[*Place[string]]bool{}
	for ; l.now < 2_000*ms; l.to(l.now + ms) {
		for range 4 {
			l.ask("flood", 100)
		}
		if l.now/ms%20 == 0 {
			l.ask("quiet", 100)
		}
		for _, p := range append(l.batch, l.pending...) {
			if p.Who == "flood" && l.now > 1_000*ms {
				turns[p.placedNs], places[p] = true, true
			}
		}
	}
	if most := int(1_000*ms/pauseNs) + 1; len(turns) > most || len(places) < 2*len(turns) {
		t.Errorf("%d changes of the flood had %d turns in a second, want at most %d, and each for many", len(places), len(turns), most)
	}
	for _, ns := range l.took["quiet"] {
		if ns > 10*ms {
			t.Errorf("one of a user who asks for little took %d ms", ns/ms)
		}
	}
}

func TestRates(t *testing.T) {
	c := New[int](Config{WritesPerS: 100, ReadsPerS: 10, Replica: 2})
	n := 0
	var r *Refusal
	for ; r == nil; n++ {
		r = c.Begin(ms, "alice", 0)
	}
	if n < 200 || n > 203 {
		t.Errorf("%d writes at once, of a bucket for two seconds of 100/s", n)
	}
	for _, want := range []string{`user "alice"`, "more than 100 changes a second", "--user-writes", "try again in"} {
		if !strings.Contains(r.Error(), want) {
			t.Errorf("%q does not say %q", r, want)
		}
	}
	if r := c.Begin(ms, "bob", 0); r != nil {
		t.Errorf("another user: %v", r)
	}
	for range n {
		c.End("alice", true)
	}
	if r := c.Begin(ms+r.RetryNs+10*ms, "alice", 0); r != nil {
		t.Errorf("after the time that was told: %v", r)
	}
	if r = c.Read(ms, "alice", 30); r != nil {
		t.Error(r)
	}
	if r = c.Read(ms, "alice", 1); r == nil || r.RetryNs < 900*ms || !strings.Contains(r.Error(), "--user-reads") {
		t.Errorf("a read that must wait a second: %v", r)
	}
}

// TestClosed: who was turned away is refused unheard until there may be room.
func TestClosed(t *testing.T) {
	c := New[int](Config{})
	c.Close(ms, "alice", refuse("alice", 200*ms, "b", "w"))
	if r := c.Closed(2*ms, "alice"); r == nil || r.RetryNs <= 0 || r.RetryNs > 200*ms {
		t.Errorf("closed: %+v", r)
	}
	if r := c.Begin(2*ms, "alice", 1); r == nil {
		t.Error("a write passes on")
	}
	if r := c.Closed(102*ms, "alice"); r != nil {
		t.Errorf("after half of the time: %v", r)
	}
	if r := c.Closed(2*ms, "bob"); r != nil {
		t.Errorf("another user: %v", r)
	}
}

// TestHeardMayBegin: whose head was let in is not refused because one more came after it.
func TestHeardMayBegin(t *testing.T) {
	c := New[int](Config{})
	now := ms
	c.Close(now, "alice", refuse("alice", 200*ms, "b", "w"))
	now += 101 * ms
	for range leastAllowed {
		if r := c.Closed(now, "alice"); r != nil {
			t.Fatal(r)
		}
	}
	for range 3 {
		if r := c.Closed(now, "alice"); r == nil {
			t.Fatal("one more is let in")
		}
	}
	for range leastAllowed {
		if r := c.Begin(now, "alice", 10); r != nil {
			t.Error(r)
		}
	}
	if r := c.Begin(now, "alice", 10); r == nil {
		t.Error("one more may begin")
	}
}

// TestHeedingIsNotForgetting: who stays away as long as he was told to is let in by and by
// when he comes back, however long that was.
func TestHeedingIsNotForgetting(t *testing.T) {
	c := New[int](Config{})
	now := ms
	c.Close(now, "alice", refuse("alice", 20*forgiveNs, "b", "w"))
	now = c.users["alice"].closedNs + ms
	n := 0
	for n < 1000 && c.Begin(now, "alice", 10) == nil {
		n++
	}
	if n != 2*leastAllowed {
		t.Errorf("%d may be under way, want %d", n, 2*leastAllowed)
	}
}
