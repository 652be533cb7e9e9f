package repeat

import (
	"fmt"
	"testing"
	"time"
)

// TestAllow: each kind is logged once a minute, with the number of lines left out, and all
// kinds above the bound count as one.
func TestAllow(t *testing.T) {
	l, now := new(Limiter), time.Unix(1e9, 0)
	want := func(kind string, at time.Duration, suppressed int, ok bool) {
		t.Helper()
		if n, allowed := l.Allow(kind, now.Add(at)); n != suppressed || allowed != ok {
			t.Errorf("%s after %v: %d, %t, want %d, %t", kind, at, n, allowed, suppressed, ok)
		}
	}
	want("a", 0, 0, true)
	for range 5 {
		want("a", Every-1, 0, false)
	}
	want("b", Every-1, 0, true)
	want("a", Every, 5, true)
	want("a", Every+1, 0, false)
	want("a", 3*Every, 1, true)
	logged := 0
	for i := range 100 * maxKinds {
		if _, ok := l.Allow(fmt.Sprint("kind-", i), now); ok {
			logged++
		}
	}
	if logged > maxKinds || len(l.kinds) > maxKinds+1 {
		t.Errorf("%d kinds are logged, %d are kept, want at most %d", logged, len(l.kinds), maxKinds)
	}
}
