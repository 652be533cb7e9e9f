package duty

import (
	"slices"
	"testing"
)

// behindCell is a master of three that applies an entry every 100 ms, and what the
// replicas say that they have applied.
type behindCell struct {
	core    *Core
	now     int64
	applied uint64
	says    map[uint64]uint64
}

func newBehindCell() *behindCell {
	c := &behindCell{core: New(Bounds{}), applied: 100, says: map[uint64]uint64{}}
	c.core.Step(0, Elected{Term: 1, Self: 1, Members: []uint64{1, 2, 3}, Machines: []MachineSeen{{Name: "m1", Addr: "x:1", Up: true}}})
	return c
}

// pass lets a time pass. Those that hang apply nothing, those that are silent about it
// say nothing of what they have applied.
func (c *behindCell) pass(ns int64, hang, silent []uint64) (live []uint64) {
	for end := c.now + ns; c.now < end; c.now += 100e6 {
		c.applied++
		c.core.Step(c.now, Ticked{Applied: c.applied, Members: []uint64{1, 2, 3}})
		for id := uint64(1); id <= 3; id++ {
			if !slices.Contains(hang, id) {
				c.says[id] = c.applied - (id - 1)
			}
			e := Reported{Replica: id, Applied: new(c.says[id])}
			if slices.Contains(silent, id) {
				e.Applied = nil
			}
			c.core.Step(c.now, e)
		}
	}
	live, _ = c.core.Live()
	return live
}

// TestBehindHasNoShare: a replica that speaks, and whose cell does not move on because its
// disk hangs, knows nothing of what is to run on its machines, so others poll them; it has
// a share again a while after it has caught up.
func TestBehindHasNoShare(t *testing.T) {
	all, others := []uint64{1, 2, 3}, []uint64{1, 2}
	c := newBehindCell()
	for _, step := range []struct {
		what string
		ns   int64
		hang []uint64
		live []uint64
	}{
		{"all follow, each a little later", 10e9, nil, all},
		{"one has just begun to hang", 2.5e9, []uint64{3}, all},
		{"one hangs", 1e9, []uint64{3}, others},
		{"it has just caught up", 1e9, nil, others},
		{"it has caught up for a while", 4e9, nil, all},
		{"it hangs for long", 60e9, []uint64{3}, others},
		{"it has caught up after long", 1e9, nil, all},
		{"two hang: it is not most who are behind", 10e9, []uint64{2, 3}, all},
	} {
		if live := c.pass(step.ns, step.hang, nil); !slices.Equal(live, step.live) {
			t.Errorf("%s: %v share the machines, want %v", step.what, live, step.live)
		}
	}
}

// TestNobodyIsBehindByMistake: a report that says nothing of it, or that was made before
// this master stood still, takes no share.
func TestNobodyIsBehindByMistake(t *testing.T) {
	c := newBehindCell()
	c.pass(10e9, nil, nil)
	if live := c.pass(10e9, []uint64{3}, []uint64{3}); len(live) != 3 {
		t.Errorf("one says nothing of what it has applied: %v share the machines", live)
	}
	c.pass(5e9, nil, nil)
	c.now += 20e9
	c.core.Step(c.now, Paused{Ns: 20e9})
	if live := c.pass(100e6, []uint64{2, 3}, nil); len(live) != 3 {
		t.Errorf("after 20 s in which this master did nothing %v share the machines", live)
	}
}
