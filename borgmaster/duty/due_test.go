package duty

import "testing"

// TestTimeWhenDue: in a cell in which nothing happens the clocks are moved on when something
// waits for them, but not oftener than once a second; and each ten seconds otherwise.
func TestTimeWhenDue(t *testing.T) {
	const tickNs, seconds = 200_000_000, 20
	for _, q := range []struct {
		dueInNs int64
		ending  bool
		want    int
	}{{0, false, 2}, {300_000_000, false, 20}, {5_000_000_000, false, 4}, {60_000_000_000, false, 2}, {50_000_000, true, 100}} {
		d := New(Bounds{})
		d.Step(0, Elected{Term: 1, Self: 1, Members: []uint64{1}})
		d.Step(0, Ticked{Applied: 7, Members: []uint64{1}, DueInNs: q.dueInNs, Ending: q.ending})
		times := 0
		for now := int64(tickNs); now <= seconds*1_000_000_000; now += tickNs {
			for _, e := range d.Step(now, Ticked{Applied: 7, Members: []uint64{1}, DueInNs: q.dueInNs, Ending: q.ending}) {
				if p, ok := e.(Propose); ok && p.Op.GetTime() != nil {
					times++
				} else {
					t.Errorf("%#v", e)
				}
			}
		}
		if times != q.want {
			t.Errorf("with something due in %d ms the time is moved on %d times in %d s, want %d", q.dueInNs/1_000_000, times, seconds, q.want)
		}
	}
}
