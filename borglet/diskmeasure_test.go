package borglet

import (
	"testing"
	"time"
)

// TestFillingDiskIsMeasured: while the disk fills, the next measurement comes early, also after
// one that took long, as by the many files of one user. It never takes more than half of the time.
func TestFillingDiskIsMeasured(t *testing.T) {
	for _, test := range []struct{ took, want time.Duration }{
		{100 * time.Millisecond, diskLeast},
		{time.Second, 20 * time.Second},
		{10 * time.Second, diskPatience},
		{time.Minute, time.Minute},
	} {
		var d diskMeter
		began := time.Unix(1_700_000_000, 0)
		d.done(began, began.Add(test.took), 100<<30)
		for _, after := range []time.Duration{test.want - time.Millisecond, test.want} {
			now := d.ended.Add(after)
			if got, want := d.hurry(now, 99<<30), after == test.want; got != want {
				t.Errorf("%v after a measurement that took %v it hurries: %v, want %v", after, test.took, got, want)
			}
			if d.hurry(now, 100<<30) {
				t.Errorf("%v after a measurement that took %v it hurries though nothing was taken", after, test.took)
			}
		}
	}
}
