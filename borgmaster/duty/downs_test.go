package duty

import (
	"fmt"
	"testing"

	"borg/borgmaster/linkshard"
	"borg/proto/borgrpc"
)

// TestDownsInAMinute: of machines that vanish at once, the first of which are down after
// 6 s, a tenth less a twentieth of that are called down in a minute. What was not called down
// in those 6 s is not made up for, but of few machines a rack is called down at once.
func TestDownsInAMinute(t *testing.T) {
	for _, x := range []struct {
		machines int
		want     [3]int
	}{
		{100_000, [3]int{8_867, 9_500, 9_500}},
		{10_000, [3]int{887, 950, 950}},
		{1_000, [3]int{100, 100, 95}},
		{200, [3]int{20, 20, 20}},
		{10, [3]int{1, 1, 1}},
	} {
		var b downBudget
		var got [3]int
		const stepNs = 10e6
		for now := int64(silentForDownNs); now < 180e9; now += stepNs {
			for b.take(now, x.machines, DefaultBounds.DownsPerMinutePercent) {
				got[now/60e9]++
			}
		}
		for minute, n := range got {
			if n < x.want[minute]-2 || n > x.want[minute]+2 {
				t.Errorf("of %d machines %d were called down in minute %d, want %d", x.machines, n, minute+1, x.want[minute])
			}
		}
	}
}

// TestDownsGoOnInTheNextTerm: what masters before have called down in the last minute counts.
func TestDownsGoOnInTheNextTerm(t *testing.T) {
	const machines, perMinute = 200, 20
	now := int64(100e9)
	var seen []MachineSeen
	for i := range machines {
		seen = append(seen, MachineSeen{Name: fmt.Sprint("m-", i), Up: i >= 30, DownForNs: 90e9})
	}
	for i := range 15 {
		seen[i].DownForNs = int64(i+1) * 2e9
	}
	d := New(Bounds{})
	d.Step(now, Elected{Term: 2, Self: 1, Members: []uint64{1, 2, 3}, Machines: seen})
	take := func() (n int) {
		for d.downs.take(now, machines, DefaultBounds.DownsPerMinutePercent) {
			n++
		}
		return n
	}
	if got := take(); got != perMinute-15 {
		t.Errorf("%d more may be called down, want %d", got, perMinute-15)
	}
	// The oldest of the 15 is older than a minute then.
	if now += 31e9; take() != 1 {
		t.Error("none or many may be called down when one is a minute ago")
	}
}

// TestDownsGoByTurn: of more machines than may be called down the names do not say which are
// first.
func TestDownsGoByTurn(t *testing.T) {
	const machines, vanish = 1000, 500
	live := []uint64{1, 2, 3}
	var seen []MachineSeen
	number := map[string]int{}
	for i := range machines {
		name := fmt.Sprintf("m-%03d", i)
		number[name] = i
		seen = append(seen, MachineSeen{Name: name, Up: true})
	}
	d := New(DefaultBounds)
	now := int64(100e9)
	d.Step(now, Elected{Term: 2, Self: 1, Members: live, Machines: seen})
	low, high := 0, 0
	// Who tries a machine hears nothing of it for a second.
	var trying []Probe
	tried := map[string]int64{}
	for began := now; now < began+30e9; now += 100e6 {
		effects := d.Step(now, Ticked{Members: live})
		for _, replica := range live {
			r := Reported{Replica: replica, Unheard: new(uint32)}
			_, r.LiveVersion = d.Live()
			for _, m := range seen[:vanish] {
				if owners, _ := d.Live(); linkshard.Owner(m.Name, owners) == replica {
					*r.Unheard++
					r.Contacts = append(r.Contacts, &borgrpc.Contact{Machine: m.Name, Missed: 9, SilentNs: now - began, Error: "timed out"})
				}
			}
			effects = append(effects, d.Step(now, r)...)
		}
		for len(trying) > 0 && now >= tried[trying[0].Machine]+1e9 {
			effects = append(effects, d.Step(now, Probed{Machine: trying[0].Machine, Replica: trying[0].Replica, Err: "timed out"})...)
			trying = trying[1:]
		}
		for _, e := range effects {
			switch e := e.(type) {
			case Probe:
				trying, tried[e.Machine] = append(trying, e), now
			case Propose:
				if e.Op.GetMachineDown() == nil {
					continue
				}
				if number[e.Machine] < vanish/2 {
					low++
				} else {
					high++
				}
				d.Step(now, MachineSeen{Name: e.Machine})
				d.Step(now, Proposed{Machine: e.Machine, OK: true})
			}
		}
	}
	if low < 12 || high < 12 {
		t.Errorf("of those that vanished %d of the first half by name were called down, and %d of the second", low, high)
	}
}
