package scheduler

import (
	"math/rand/v2"
	"testing"
)

// More is never at a lower step, and whoever may hold a request is in its set.
func TestSteps(t *testing.T) {
	last := uint8(0)
	for amount := int64(-5); amount < 1<<22; amount += 7 {
		k := stepOf(amount, cpuShift)
		if k < last || k > maxSteps {
			t.Fatalf("%d is at step %d, less at %d", amount, k, last)
		}
		last = k
	}
	if last != maxSteps {
		t.Errorf("the highest step that was seen is %d, want %d", last, maxSteps)
	}
	r := rand.New(rand.NewPCG(1, 2))
	s, free := newSteps(200, memShift), make([]int64, 200)
	all := newBitset(200)
	all.fill(200)
	for range 5000 {
		i := r.IntN(200)
		free[i] = r.Int64N(1<<40)>>r.IntN(40) - 100
		s.put(int32(i), free[i])
		request := r.Int64N(1<<40) >> r.IntN(40)
		may := s.of(request, all)
		for i, n := range free {
			if n >= request && !may.has(int32(i)) {
				t.Fatalf("a slot with %d free is left out for %d", n, request)
			}
			if 2*n < request && n >= 0 && request >= 1<<memShift && may.has(int32(i)) {
				t.Fatalf("a slot with %d free is looked at for %d", n, request)
			}
		}
	}
}
