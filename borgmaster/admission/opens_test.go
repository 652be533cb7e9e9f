package admission

import (
	"strings"
	"testing"
)

// TestOpens: so many streams at once, and a few more each second; others have theirs.
func TestOpens(t *testing.T) {
	c := New[int](Config{Replica: 2})
	now := 5 * ms
	for n := range MaxOpens {
		if r := c.Open(now, "alice"); r != nil {
			t.Fatalf("stream %d: %v", n, r)
		}
	}
	r := c.Open(now, "alice")
	if r == nil || r.RetryNs < minRetryNs || !strings.Contains(r.Error(), `user "alice" has begun 384 streams or reads of much at replica 2`) {
		t.Fatalf("one more is refused so: %v", r)
	}
	if r := c.Open(now, "bob"); r != nil {
		t.Errorf("somebody else: %v", r)
	}
	later, begun := now+1_000*ms, 0
	for c.Open(later, "alice") == nil {
		begun++
	}
	if begun != opensPerS {
		t.Errorf("a second later %d more may begin, want %d", begun, opensPerS)
	}
}
