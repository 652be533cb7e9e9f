package borgmaster

import (
	"strings"
	"testing"
	"time"

	"borg/borgmaster/linkshard"
	"borg/pages"
)

// TestSlowPollsAreTold: a replica that keeps to a longer interval says so, and one that
// does not says nothing.
func TestSlowPollsAreTold(t *testing.T) {
	for _, x := range []struct {
		interval time.Duration
		want     []string
	}{
		{2 * time.Second, nil},
		{2500 * time.Millisecond, nil},
		{9 * time.Second, []string{"short of processor", "400 machines", "every 9 s", "every 2 s", "150 ms late"}},
	} {
		l := &look{shard: linkshard.Stats{Share: 400, Interval: x.interval, RestInterval: 2 * time.Second, Late: 150 * time.Millisecond}}
		var v pages.Verdict
		l.judgePolls(&v)
		if (len(v.Findings) > 0) != (x.want != nil) {
			t.Fatalf("with an interval of %v: %v", x.interval, v.Findings)
		}
		for _, words := range x.want {
			if !strings.Contains(v.Findings[0].Text, words) {
				t.Errorf("with an interval of %v: %q lacks %q", x.interval, v.Findings[0].Text, words)
			}
		}
	}
}
