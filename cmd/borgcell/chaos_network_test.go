package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// wiredCell starts a cell with a wire between all its processes, and to them.
func wiredCell(t *testing.T, masters, machines int) (*Cell, *wire) {
	t.Helper()
	// The wire outlives the cell, whose end it carries.
	w := newWire()
	t.Cleanup(w.close)
	c := newChaosCell(t, masters, machines)
	w.between(t, c)
	c.startAll(t)
	return c, w
}

// storm puts random faults on the links of a cell.
type storm struct {
	c      *Cell
	w      *wire
	random *rand.Rand
	// What was done, and how often.
	did map[string]int
}

// ends are all ends of links, the masters first.
func (s *storm) ends() []string {
	var names []string
	for i := 1; i <= s.c.Masters; i++ {
		names = append(names, s.c.masterName(i))
	}
	for k := 1; k <= s.c.Machines; k++ {
		names = append(names, s.c.machineName(k))
	}
	return append(names, outside)
}

// pick returns two different ends that speak to each other: one is a master.
func (s *storm) pick() (a, b string) {
	ends := s.ends()
	i := s.random.IntN(s.c.Masters)
	j := s.random.IntN(len(ends) - 1)
	if j >= i {
		j++
	}
	return ends[i], ends[j]
}

func (s *storm) both(a, b string, f fault) {
	s.w.set(link{a, b}, f)
	s.w.set(link{b, a}, f)
}

// alone cuts one end off from all others.
func (s *storm) alone(name string, f fault) {
	for _, other := range s.ends() {
		if other != name {
			s.both(name, other, f)
		}
	}
}

// blow does one random thing and says what.
func (s *storm) blow() string {
	a, b := s.pick()
	cut := fault{hold: s.random.IntN(2) == 0}
	cut.lose = !cut.hold
	all := []struct {
		what string
		do   func()
	}{
		{"one way held", func() { s.w.set(link{a, b}, fault{hold: true}) }},
		{"one way lost", func() { s.w.set(link{b, a}, fault{lose: true}) }},
		{"both ways cut", func() { s.both(a, b, cut) }},
		{"shut", func() { s.w.set(link{a, b}, fault{shut: true}) }},
		{"late", func() { s.both(a, b, fault{delay: 50 * time.Millisecond, jitter: 100 * time.Millisecond}) }},
		{"resets", func() { s.both(a, b, fault{reset: 0.1}) }},
		{"drips", func() { s.w.set(link{a, b}, fault{bytesPerS: 2000}) }},
		{"master alone", func() { s.alone(s.c.masterName(1+s.random.IntN(s.c.Masters)), cut) }},
		{"machine alone", func() { s.alone(s.c.machineName(1+s.random.IntN(s.c.Machines)), cut) }},
		{"masters in two parts", func() { s.split(cut) }},
		{"all late", func() {
			for _, x := range s.ends() {
				s.alone(x, fault{delay: 5 * time.Millisecond, jitter: 30 * time.Millisecond})
			}
		}},
	}
	one := all[s.random.IntN(len(all))]
	one.do()
	s.did[one.what]++
	return fmt.Sprintf("%s (%s, %s)", one.what, a, b)
}

// split parts the masters at random; each machine goes with one part, and
// whoever asks from outside reaches both.
func (s *storm) split(f fault) {
	side := make(map[string]int)
	for _, name := range s.ends() {
		side[name] = s.random.IntN(2)
	}
	for a, x := range side {
		for b, y := range side {
			if x != y && a != outside && b != outside {
				s.w.set(link{a, b}, f)
			}
		}
	}
}

// rage blows for a while: a few faults at a time, each of them for up to a few
// seconds, now and then so long that a machine is taken for down.
func (s *storm) rage(t *testing.T, howLong time.Duration) {
	t.Helper()
	end := time.Now().Add(howLong)
	for calm := 0; time.Now().Before(end); calm++ {
		t.Logf("%s: %s", time.Now().Format("15:04:05.000"), s.blow())
		lasts := 100*time.Millisecond + time.Duration(s.random.Int64N(int64(3*time.Second)))
		if s.random.IntN(25) == 0 {
			lasts = 20 * time.Second
		}
		<-time.After(min(lasts, time.Until(end)))
		if s.random.IntN(2) == 0 {
			s.w.heal()
			<-time.After(min(time.Second, time.Until(end)))
		}
	}
	s.w.heal()
}

// Whatever the network does, what was acknowledged is kept exactly once, no task
// ends without a cause in the log, and once it is well everything runs as
// wanted, once.
func TestNetworkFaults(t *testing.T) {
	alongside(t)
	c, w := wiredCell(t, 5, 3)
	s := &storm{c: c, w: w, random: chance(t), did: make(map[string]int)}
	before := c.run(t, "web", sleepers(size(6, 30)))
	state, err := c.client.GetCell(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	l, endLoad := c.underLoad(t, 50)
	s.rage(t, time.Duration(size(4, 180))*time.Second)
	endLoad()
	if err := until(shortly(t), "the cell works again", c.ready); err != nil {
		t.Fatal(err)
	}
	s.wasBetween(t)
	if _, err := c.jobIs(shortly(t), "web", "all tasks run", started); err != nil {
		t.Error(err)
	}
	c.oneEach(t, "web")
	c.checkAcks(t, l)
	moved := c.causeless(t, before, state.AppliedIndex)
	t.Logf("%d faults: %v; %d submits acknowledged, %d not; %d of %d tasks moved, with causes",
		sum(s.did), s.did, len(l.acks), len(l.errs), moved, len(before))
}

// wasBetween checks that the wire carried what it was to carry, and knew whose
// it was: each master reached each other one, some master each machine, and
// somebody from outside a master.
func (s *storm) wasBetween(t *testing.T) {
	t.Helper()
	seen := s.w.diallers()
	for _, to := range s.ends() {
		masters, others := 0, 0
		for i := 1; i <= s.c.Masters; i++ {
			if seen[link{s.c.masterName(i), to}] > 0 {
				masters++
			}
		}
		if seen[link{outside, to}] > 0 {
			others++
		}
		isMaster := s.c.machineNumber(to) == 0
		if to != outside && masters == 0 || to != outside && isMaster && masters < s.c.Masters-1 || !isMaster && others > 0 {
			t.Errorf("the wire saw %s dialled by %d masters, and from outside %v", to, masters, others > 0)
		}
	}
}

// causeless fails the test for every task whose process is another one than
// before although the log has no cause for it, and returns how many have one.
func (c *Cell) causeless(t *testing.T, before snapshot, after uint64) (moved int) {
	t.Helper()
	causes := make(map[string][]string)
	err := c.client.Events(shortly(t), &borgrpc.EventsRequest{FromIndex: after + 1}, func(resp *borgrpc.EventsResponse) error {
		if resp.OldestIndex > after+1 {
			return fmt.Errorf("events from %d on are known, wanted from %d", resp.OldestIndex, after+1)
		}
		for _, e := range resp.Events {
			switch e.Kind {
			case borgpb.EventKind_EVENT_KIND_EVICT, borgpb.EventKind_EVENT_KIND_KILL, borgpb.EventKind_EVENT_KIND_LOST:
				causes[e.Object] = append(causes[e.Object], fmt.Sprintf("%v: %s", e.Kind, e.Reason))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	died := 0
	for _, name := range slices.Sorted(maps.Keys(before)) {
		was := before[name]
		if ticks, alive, err := readStat(int(was.pid)); err == nil && alive && ticks == was.startTicks {
			continue
		}
		if len(causes[name]) > 0 {
			t.Logf("%s moved: %v", name, causes[name])
			moved++
			continue
		}
		t.Errorf("%s was process %d on %s and has ended without a cause in the log", name, was.pid, was.machine)
		died++
	}
	counted(t, "chaos.tasks_died", died)
	return moved
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
