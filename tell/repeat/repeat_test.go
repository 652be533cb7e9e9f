package repeat

import (
	"fmt"
	"testing"
	"time"
)

// TestNext: each kind is told once in a while with the number of those between, and
// kinds without end are told as one.
func TestNext(t *testing.T) {
	l, now := new(Limiter), time.Unix(1e9, 0)
	want := func(kind string, at time.Duration, untold int, tell bool) {
		t.Helper()
		if n, ok := l.Next(kind, now.Add(at)); n != untold || ok != tell {
			t.Errorf("%s after %v: %d, %t, want %d, %t", kind, at, n, ok, untold, tell)
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
	told := 0
	for i := range 100 * maxKinds {
		if _, ok := l.Next(fmt.Sprint("kind-", i), now); ok {
			told++
		}
	}
	if told > maxKinds || len(l.kinds) > maxKinds+1 {
		t.Errorf("%d kinds are told, %d are known, want at most %d", told, len(l.kinds), maxKinds)
	}
}
