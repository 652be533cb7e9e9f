package replica

import "testing"

// TestPatience: elections that follow each other closely stretch the timeout, and calm
// takes that back.
func TestPatience(t *testing.T) {
	p := patience{}
	p.saw(7, false)
	pass := func(ticks int) (ofRaft int) {
		for range ticks {
			if p.tick(0, false) {
				ofRaft++
			}
		}
		return ofRaft
	}
	for _, step := range []struct {
		elections, ticks int
		want             int
	}{
		{0, 100, 100},
		{1, 10, 10}, {1, 10, 10},
		// The third within a second: twice as long, then longer.
		{1, 40, 20}, {1, 40, 10}, {1, 80, 10}, {20, 160, 20},
		// From there it takes 15 s until a timeout is as long as ever.
		{0, 90, 11}, {0, 250, 63}, {0, 250, 125}, {0, 500, 500},
		// One who was away for many terms has seen one election.
		{1, 10, 10},
	} {
		for i := range step.elections {
			if i++; step.elections == 1 {
				i = 50
			}
			p.saw(p.term+uint64(i), false)
		}
		if got := pass(step.ticks); got != step.want {
			t.Errorf("after %d elections more: %d ticks of raft in %d, want %d; %d are left", step.elections, got, step.ticks, step.want, p.ticks)
		}
	}
}

// TestPatienceOfWhoIsLate: one tick that comes late is nothing, with the second the
// timeout is as long as that deserves, and five seconds later it is as ever.
func TestPatienceOfWhoIsLate(t *testing.T) {
	for _, test := range []struct {
		late []uint64
		want int
	}{
		{nil, 200},
		{[]uint64{2, 2, 2}, 200},
		{[]uint64{50}, 200},
		{[]uint64{50, 4}, 50},
		{[]uint64{5, 3, 5}, 40},
		{[]uint64{50, 90, 50}, 25},
		// Of many the latest count.
		{[]uint64{40, 40, 4, 4, 4, 4, 4, 4, 4, 4, 4}, 50},
	} {
		p := patience{}
		for _, by := range test.late {
			p.tick(by, false)
		}
		p.held = 0
		for _, want := range []int{test.want, 200} {
			got := 0
			for range 200 {
				if p.tick(0, false) {
					got++
				}
			}
			if got != want {
				t.Errorf("ticks late by %v: then %d of 200 are raft's, want %d", test.late, got, want)
			}
			for range patientTicks {
				p.tick(0, false)
			}
			p.held = 0
		}
	}
}

// TestPatienceOfWhoLeads: he has half of the ticks at most, and a quarter at least.
func TestPatienceOfWhoLeads(t *testing.T) {
	p := patience{}
	for _, test := range []struct{ late, want uint64 }{{0, 2}, {2, 2}, {3, 3}, {50, 4}} {
		p.tick(test.late, true)
		p.tick(test.late, true)
		if got := p.factor(true); got != test.want {
			t.Errorf("late by %d: a timeout is %d times as long, want %d", test.late, got, test.want)
		}
	}
}

// TestPatienceOfElectionsWithReason: elections after masters whose processes are gone, or
// that they asked for, make nobody patient; after such as were only not heard they do.
func TestPatienceOfElectionsWithReason(t *testing.T) {
	const others = 3
	for _, test := range []struct {
		name    string
		depose  func(p *play, master, next uint64)
		patient bool
	}{
		{"not heard", func(p *play, master, _ uint64) { p.unheard(master) }, true},
		{"gone", func(p *play, master, _ uint64) {
			for id := range p.cores {
				if id != master {
					p.step(id, Ended{Member: master})
				}
			}
			p.unheard(master)
			p.restart(master)
		}, false},
		// Its stream was lost, and it goes on.
		{"heard again", func(p *play, master, _ uint64) {
			for id := range p.cores {
				if id != master {
					p.step(id, Ended{Member: master})
				}
			}
			p.step(master, Tick{})
			p.settle()
			p.unheard(master)
		}, true},
		{"handed over", func(p *play, master, next uint64) {
			p.step(master, Transfer{To: next})
			p.settle()
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &play{t: t, cores: make(map[uint64]*actor)}
			p.cell(others)
			p.step(1, Campaign{})
			p.settle()
			// One that is a voter all the time has seen all of them.
			for n := range maxElections {
				was := p.master()
				test.depose(p, was, was%others+1)
				if now := p.master(); now == was || now == 0 {
					t.Fatalf("election %d: %d was elected, and then %d", n, was, now)
				}
			}
			for id, a := range p.cores {
				if got := a.patience.ticks > 0; got != test.patient {
					t.Errorf("replica %d is patient: %v, want %v (%d ticks)", id, got, test.patient, a.patience.ticks)
				}
			}
		})
	}
}

// master is who leads in the latest term; 0: nobody.
func (p *play) master() (id uint64) {
	term := uint64(0)
	for of, a := range p.cores {
		if s := a.State(); s.Term > term {
			id, term = 0, s.Term
			if s.Leading {
				id = of
			}
		} else if s.Term == term && s.Leading {
			id = of
		}
	}
	return id
}

// unheard keeps the others from hearing of a master until there is another one.
func (p *play) unheard(master uint64) {
	p.cores[master].cut = true
	for n := 0; n < 1000 && (p.master() == master || p.master() == 0); n++ {
		for _, id := range []uint64{1, 2, 3} {
			if id != master {
				p.step(id, Tick{})
			}
		}
		p.settle()
	}
	p.cores[master].cut = false
	p.step(p.master(), Tick{})
	p.settle()
}
