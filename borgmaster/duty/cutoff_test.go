package duty

import (
	"fmt"
	"testing"
)

// TestMostKeepTheirShares: of five replicas that all seem to miss what others reach two
// lose their shares, and a cell of two replicas may lose one.
func TestMostKeepTheirShares(t *testing.T) {
	for members, most := range map[int]int{1: 0, 2: 1, 3: 1, 5: 2} {
		d := New(Bounds{})
		elected := Elected{Term: 1, Self: 1}
		for id := range uint64(members) {
			elected.Members = append(elected.Members, id+1)
		}
		for n := range 100 {
			elected.Machines = append(elected.Machines, MachineSeen{Name: fmt.Sprint("m", n), Addr: "x:1", Up: true})
		}
		d.Step(0, elected)
		report := func() {
			for _, id := range elected.Members {
				d.Step(1e9, Reported{Replica: id})
			}
		}
		report()
		for _, id := range elected.Members {
			d.cutOff(1e9, id)
			report()
		}
		live, _ := d.Live()
		if without := members - len(live); without != most {
			t.Errorf("of %d replicas %d are without a share; want %d", members, without, most)
		}
	}
}

// TestReturnsCountWithoutAShare: what a replica says of machines that came back to it counts
// when it has lost its share since, for as long as it says so.
func TestReturnsCountWithoutAShare(t *testing.T) {
	d := New(Bounds{})
	elected := Elected{Term: 1, Self: 1, Members: []uint64{1, 2, 3}}
	for n := range 20 {
		elected.Machines = append(elected.Machines, MachineSeen{Name: fmt.Sprint("m", n), Addr: "x:1", Up: true})
	}
	d.Step(0, elected)
	for _, id := range elected.Members {
		d.Step(1e9, Reported{Replica: id, Returned: 2})
	}
	d.cutOff(1e9, 3)
	if live, _ := d.Live(); len(live) != 2 {
		t.Fatalf("%v share the machines; want two", live)
	}
	if !d.healing(1e9) {
		t.Error("six machines came back, two of them to a replica that lost its share since: nobody sees that they do in numbers")
	}
	for id := range uint64(2) {
		d.Step(2e9, Reported{Replica: id + 1, Returned: 2})
	}
	if d.healing(2e9) {
		t.Error("what a replica said a second ago counts")
	}
}
