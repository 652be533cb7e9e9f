package duty

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"borg/borgmaster/linkshard"
	"borg/proto/borgrpc"
)

// slowCell is an elected master and the link shards of its replicas, each of which is late
// by as much as it is slow. Time is virtual, in steps of 10 ms.
type slowCell struct {
	t        *testing.T
	rand     *rand.Rand
	now      int64
	duties   *Core
	shards   map[uint64]*slowShard
	machines []string
	members  []uint64
	// Machines that do not answer, and those that were called down.
	away, down map[string]bool
}

// slowShard is the link shard of a replica.
type slowShard struct {
	id   uint64
	core *linkshard.Core
	// How late its timers are on average; it neither polls nor speaks any more.
	slowNs int64
	dead   bool
	// Its next turn, its last beat, its next report, and the last word of the log.
	turnNs, beatNs, reportNs, raftNs int64
	// When polls that are out end.
	out map[string]int64
	// Machines to which it is connected, and when it made the last handshakes.
	connected map[string]bool
	shakes    []int64
	polled    map[string]int64
	contacts  map[string]*borgrpc.Contact
}

const slowStepNs = 10e6

func newSlowCell(t *testing.T, seed uint64) *slowCell {
	c := &slowCell{t: t, rand: rand.New(rand.NewPCG(seed, 4)), duties: New(Bounds{}), shards: map[uint64]*slowShard{}, members: []uint64{1, 2, 3, 4, 5}, away: map[string]bool{}, down: map[string]bool{}}
	elected := Elected{Term: 1, Self: 1, Members: c.members}
	for i := range 400 {
		c.machines = append(c.machines, fmt.Sprintf("m%03d", i))
		elected.Machines = append(elected.Machines, MachineSeen{Name: c.machines[i], Addr: "x:1", Up: true})
	}
	c.now = 100e9
	c.duties.Step(c.now, elected)
	for _, id := range c.members {
		s := &slowShard{
			id: id, core: linkshard.NewCore(linkshard.CoreConfig{Replica: id}), slowNs: int64(c.rand.IntN(1000)) * 1e6,
			out: map[string]int64{}, connected: map[string]bool{}, polled: map[string]int64{}, contacts: map[string]*borgrpc.Contact{}, beatNs: c.now, reportNs: c.now,
		}
		c.shards[id] = s
		c.do(s, linkshard.MachinesAre{Names: c.machines})
		c.do(s, linkshard.LogContact{OK: true})
		c.do(s, linkshard.MasterContact{OK: true})
	}
	return c
}

// late draws how late something is that a replica does.
func (c *slowCell) late(s *slowShard) int64 {
	return int64(c.rand.ExpFloat64() * float64(s.slowNs))
}

// do has a shard take in an event and poll what is due.
func (c *slowCell) do(s *slowShard, e linkshard.Event) {
	effects := s.core.Step(c.now, e)
	for _, said := range effects.Contacts {
		s.contacts[said.Machine] = said
	}
	for _, name := range effects.Polls {
		if !s.connected[name] {
			s.connected[name] = true
			s.shakes = append(s.shakes, c.now)
		}
		if s.out[name] = c.now + 1e6 + min(c.late(s), s.core.TimeoutNs(c.now)); c.away[name] {
			s.out[name] = c.now + s.core.TimeoutNs(c.now)
		}
	}
}

// turn is what a shard does when it gets the processor.
func (c *slowCell) turn(s *slowShard) {
	for _, name := range c.machines {
		if ends, ok := s.out[name]; ok && ends <= c.now {
			delete(s.out, name)
			s.polled[name] = c.now
			c.do(s, linkshard.Answered{Machine: name, Reached: !c.away[name], Down: c.down[name], Err: "timed out"})
		}
	}
	if gap := c.now - s.beatNs; gap >= linkshard.BeatNs {
		c.do(s, linkshard.Beat{LateNs: gap - linkshard.BeatNs})
		s.beatNs = c.now
	}
	c.do(s, linkshard.Tick{})
	if c.now >= s.reportNs {
		// It waits for the answer, and sends the next one then.
		s.reportNs = c.now + 100e6 + c.late(s)
		unheard := uint32(s.core.Unheard(c.now))
		_, _, version := s.core.Live()
		var contacts []*borgrpc.Contact
		for _, name := range slices.Sorted(maps.Keys(s.contacts)) {
			contacts = append(contacts, s.contacts[name])
		}
		clear(s.contacts)
		c.step(Reported{
			Replica: s.id, Contacts: contacts, SilentNs: s.core.DeafNs(c.now), Unheard: &unheard, LiveVersion: version, Applied: new(uint64(c.now / 1e9)),
			LateNs: s.core.LateNs(c.now), PeriodNs: s.core.PeriodNs(c.now),
		})
		live, now := c.duties.Live()
		c.do(s, linkshard.LiveSet{Term: 1, Version: now, Live: live})
	}
}

func (c *slowCell) step(e Event) {
	for _, effect := range c.duties.Step(c.now, e) {
		switch x := effect.(type) {
		case Probe:
			c.step(Probed{Machine: x.Machine, Replica: x.Replica, Reached: !c.away[x.Machine], Err: "timed out"})
		case Propose:
			if x.Op.GetMachineDown() == nil {
				continue
			}
			if c.down[x.Machine] = true; !c.away[x.Machine] {
				c.t.Errorf("%s answers and is called down: %s", x.Machine, x.Op.GetMachineDown().Reason)
			}
			c.step(MachineSeen{Name: x.Machine, Addr: "x:1"})
			c.step(Proposed{Machine: x.Machine, OK: true})
		}
	}
}

// run lets time pass.
func (c *slowCell) run(ns int64) {
	for end := c.now + ns; c.now < end; c.now += slowStepNs {
		var heard []RaftHeard
		for _, id := range c.members {
			s := c.shards[id]
			if s.dead {
				heard = append(heard, RaftHeard{ID: id, AgoNs: c.now - s.raftNs})
				continue
			}
			if c.rand.Int64N(s.slowNs/4+1) < slowStepNs {
				// The log goes first, and waits a part of what others wait.
				s.raftNs = c.now
			}
			if c.now >= s.turnNs {
				c.turn(s)
				s.turnNs = c.now + c.late(s)
			}
			heard = append(heard, RaftHeard{ID: id, AgoNs: c.now - s.raftNs})
		}
		if c.now%100e6 == 0 {
			c.step(Ticked{Applied: uint64(c.now / 1e9), Members: c.members, Raft: heard, LateNs: c.late(c.shards[1]) / 4})
		}
	}
}

// withinBudget checks that no replica made more handshakes in a time than its budget has.
func (c *slowCell) withinBudget() {
	const burst = 32
	for _, s := range c.shards {
		for i := range s.shakes {
			for _, ns := range []int64{100e6, 1e9} {
				end, _ := slices.BinarySearch(s.shakes, s.shakes[i]+ns)
				if n, most := end-i, burst+int(linkshard.HandshakesPerS*ns/1e9)+1; n > most {
					c.t.Fatalf("replica %d made %d handshakes within %d ms, and may make %d", s.id, n, ns/1e6, most)
				}
			}
		}
	}
}

// slowly runs a test with slow cells of several seeds.
func slowly(t *testing.T, test func(t *testing.T, c *slowCell)) {
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if one, err := strconv.ParseUint(os.Getenv("BORG_SLOW_SEED"), 10, 64); err == nil {
		seeds = []uint64{one}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					name, _, _ := strings.Cut(t.Name(), "/")
					t.Logf("repeat with: BORG_SLOW_SEED=%d go test ./borgmaster/duty -run '^%s$'", seed, name)
				}
			}()
			c := newSlowCell(t, seed)
			// Until all have told how late they are.
			c.run(30e9)
			test(t, c)
		})
	}
}

// TestSlowReplicasKeepTheirShares: replicas that are late by random times keep their
// shares, and poll less often; the machines of one that falls silent go to the others,
// within the budget of handshakes.
func TestSlowReplicasKeepTheirShares(t *testing.T) {
	slowly(t, func(t *testing.T, c *slowCell) {
		_, first := c.duties.Live()
		c.run(120e9)
		if live, version := c.duties.Live(); version != first || len(live) != 5 {
			t.Fatalf("%v share the machines at version %d, and did at %d; all five only are slow", live, version, first)
		}
		c.withinBudget()
		stretched := 0
		for _, s := range c.shards {
			if s.core.PeriodNs(c.now) > restPeriodNs*3/2 {
				stretched++
			}
		}
		if stretched == 0 {
			t.Error("no replica polls less often")
		}
		dead := c.shards[uint64(2+c.rand.IntN(4))]
		dead.dead = true
		diedNs := c.now
		c.run(60e9)
		live, version := c.duties.Live()
		if version != first+1 || slices.Contains(live, dead.id) || len(live) != 4 {
			t.Fatalf("%v share the machines at version %d; replica %d is silent", live, version, dead.id)
		}
		c.withinBudget()
		for _, name := range c.machines {
			if owner := c.shards[linkshard.Owner(name, live)]; owner.polled[name] < diedNs {
				t.Errorf("%s was not polled by replica %d since its share moved", name, owner.id)
			}
		}
	})
}

// TestSlowVerdicts: where replicas are slow, machines that are away are called down, later;
// none that answers is, and none at all while most are away, though it takes a long round
// to know that they are. No share moves for it.
func TestSlowVerdicts(t *testing.T) {
	slowly(t, func(t *testing.T, c *slowCell) {
		_, first := c.duties.Live()
		few := c.machines[:10]
		for _, name := range few {
			c.away[name] = true
		}
		c.run(180e9)
		for _, name := range few {
			if !c.down[name] {
				t.Errorf("%s has been away for three minutes and is not down", name)
			}
		}
		clear(c.away)
		c.run(60e9)
		for _, i := range c.rand.Perm(len(c.machines))[:len(c.machines)*7/10] {
			c.away[c.machines[i]] = true
		}
		before := len(c.down)
		c.run(180e9)
		if n := len(c.down) - before; n > 0 {
			t.Errorf("%d machines are called down while 70 of 100 are away", n)
		}
		if live, version := c.duties.Live(); version != first {
			t.Errorf("%v share the machines at version %d, and did at %d", live, version, first)
		}
	})
}
