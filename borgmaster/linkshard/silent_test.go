package linkshard

import (
	"fmt"
	"testing"
)

// silentCell is a core with machines that answer as answers says, a second after they
// are asked if they do not.
type silentCell struct {
	core    *Core
	now     int64
	out     []flying
	asked   map[int64]int
	answers func(machine string) bool
	// Hears of each step's effects; nil: nobody.
	heard func(Effects)
}

type flying struct {
	machine string
	endsNs  int64
}

func newSilentCell(machines int, answers func(machine string) bool) *silentCell {
	c := &silentCell{core: NewCore(CoreConfig{Replica: 1}), asked: map[int64]int{}, answers: answers}
	all := MachinesAre{}
	for n := range machines {
		all.Names = append(all.Names, fmt.Sprint("m", n))
	}
	c.step(all)
	c.step(LogContact{OK: true})
	c.step(MasterContact{OK: true})
	c.step(LiveSet{Term: 1, Version: 1, Live: []uint64{1}})
	return c
}

func (c *silentCell) step(event Event) {
	eff := c.core.Step(c.now, event)
	if c.heard != nil {
		c.heard(eff)
	}
	for _, name := range eff.Polls {
		c.asked[c.now/1e9]++
		ends := c.now + 1e6
		if !c.answers(name) {
			ends = c.now + 1e9
		}
		c.out = append(c.out, flying{name, ends})
	}
}

// run lets time pass, in steps of 5 ms.
func (c *silentCell) run(untilNs int64) {
	for ; c.now < untilNs; c.now += 5e6 {
		out := c.out
		c.out = nil
		for _, f := range out {
			if f.endsNs > c.now {
				c.out = append(c.out, f)
				continue
			}
			c.step(Answered{Machine: f.machine, Reached: c.answers(f.machine)})
		}
		c.step(Tick{})
	}
}

// perS is how many polls a second there were in the four before a time.
func (c *silentCell) perS(at int64) int {
	return (c.asked[at-3] + c.asked[at-2] + c.asked[at-1] + c.asked[at]) / 4
}

// TestManySilent: that most machines are silent takes no more polls than when they all
// answer, and soon far fewer; once they are back they are all heard within seconds.
func TestManySilent(t *testing.T) {
	away := false
	const machines = 2000
	c := newSilentCell(machines, func(m string) bool { return !away || m[len(m)-1] == '7' })
	c.run(20e9)
	if rest := c.perS(15); rest < machines/2*9/10 || rest > machines/2*11/10 {
		t.Fatalf("at rest %d polls a second of %d machines; want %d", rest, machines, machines/2)
	}
	away = true
	c.run(120e9)
	for _, at := range []int64{30, 34, 90, 110} {
		most := machines/20 + silentPollsPerS
		if at >= 90 {
			most = machines/20 + longSilentPollsPerS
		}
		if n := c.perS(at); n > most*11/10 || n < machines/20*9/10 {
			t.Errorf("%d s after nine of ten vanished %d polls a second; want at most %d", at-20, n, most)
		}
	}
	away = false
	c.run(130e9)
	if n := c.core.Unheard(c.now); n != 0 {
		t.Errorf("10 s after all are back %d machines are not heard", n)
	}
	if n := c.core.Returned(c.now); n != machines*9/10 {
		t.Errorf("10 s after %d machines came back %d are taken for those", machines*9/10, n)
	}
	c.run(145e9)
	if n := c.core.Returned(c.now); n != 0 {
		t.Errorf("25 s after machines came back %d are still taken for those that just did", n)
	}
}

// TestSilentBeforeTheElectedMasterWas: after a time without an elected master a machine
// that was silent for long before it is told of after one more poll, begun since, and one
// that was not after three.
func TestSilentBeforeTheElectedMasterWas(t *testing.T) {
	long, short := false, false
	c := newSilentCell(200, func(m string) bool {
		return !(long && m[len(m)-1] == '7' || short && m[len(m)-1] == '8')
	})
	told := map[string][]uint32{}
	c.heard = func(eff Effects) {
		for _, contact := range eff.Contacts {
			if !contact.Reached {
				told[contact.Machine] = append(told[contact.Machine], contact.Missed)
			}
		}
	}
	c.run(10e9)
	long = true
	c.run(60e9)
	short = true
	c.run(61e9)
	c.step(MasterContact{OK: false})
	c.run(70e9)
	c.step(MasterContact{OK: true})
	clear(told)
	back := c.now
	c.run(back + 500e6)
	for machine, missed := range told {
		t.Errorf("%s is told of with %v missed, by a poll that began before", machine, missed)
	}
	c.run(back + 30e9)
	for machine, missed := range told {
		want := uint32(1)
		if machine[len(machine)-1] == '7' {
			want = MissesForDown
		}
		if missed[0] != want {
			t.Errorf("%s is told of with %v missed; want %d at first", machine, missed, want)
		}
	}
	if len(told) != 40 {
		t.Errorf("%d machines are told of, want 40", len(told))
	}
}

// TestLateIsUnheard: of machines that all vanish some are missed first. Those that were
// not asked since are not counted as heard once they have been silent for long enough.
func TestLateIsUnheard(t *testing.T) {
	const machines = 40
	away := false
	c := newSilentCell(machines, func(string) bool { return !away })
	c.run(10e9)
	if n := c.core.Unheard(c.now); n != 0 {
		t.Fatalf("%d of %d machines that answer are not heard", n, machines)
	}
	// From here on one is asked, and the replica is too busy to ask the others.
	away = true
	c.step(Touched{Machine: "m7"})
	c.now += 1e9
	c.step(Answered{Machine: "m7"})
	for _, polls := range c.out {
		if polls.machine != "m7" {
			c.step(Answered{Machine: polls.machine})
		}
	}
	missed := c.core.Unheard(c.now)
	if missed == 0 || missed == machines {
		t.Fatalf("%d of %d machines are not heard after a second; want some", missed, machines)
	}
	if n := c.core.Unheard(c.now + 4e9); n != machines {
		t.Errorf("%d of %d machines are not heard after five seconds without an answer", n, machines)
	}
}
