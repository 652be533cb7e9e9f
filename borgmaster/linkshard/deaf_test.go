package linkshard

import (
	"fmt"
	"testing"
)

// TestANewShareIsNoSilence: who was cut off from its machines and has a share again is
// not taken for deaf by what was not answered before.
func TestANewShareIsNoSilence(t *testing.T) {
	c := newSilentCell(200, func(string) bool { return false })
	c.run(3e9)
	if c.core.DeafNs(c.now) < 2e9 {
		t.Fatalf("after 3 s without an answer it is deaf for %d ns", c.core.DeafNs(c.now))
	}
	c.step(LiveSet{Term: 1, Version: 2, Live: []uint64{2}})
	c.run(63e9)
	c.step(LiveSet{Term: 1, Version: 3, Live: []uint64{1, 2}})
	c.now += 100e6
	c.step(Tick{})
	if ns := c.core.DeafNs(c.now); ns > 100e6 {
		t.Errorf("100 ms after it has a share again it is deaf for %d ns", ns)
	}
}

// TestFirstMachinesAreNoSilence: in a new cell nobody is asked for a while. The time before
// the first machines came is no silence of theirs.
func TestFirstMachinesAreNoSilence(t *testing.T) {
	c := newSilentCell(0, func(string) bool { return true })
	c.run(2e9)
	for n := range 4 * deafPolls {
		c.step(MachineAdded{Name: fmt.Sprint("m", n)})
	}
	c.now += 250e6
	c.step(Tick{})
	if len(c.out) < deafPolls {
		t.Fatalf("%d machines are asked", len(c.out))
	}
	if ns := c.core.DeafNs(c.now); ns > 250e6 {
		t.Errorf("250 ms after the first machines came it is deaf for %d ms", ns/1e6)
	}
}
