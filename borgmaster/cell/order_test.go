package cell

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Heads that differ compare as their keys do.
func TestKeyHeads(t *testing.T) {
	parts := []string{"", "a", "a-long-name-of-a-user", "a-long-name-of-a-user-2", "ab", "ab0", "b", "seventeen-letters", "sixteen-letters-"}
	for _, user := range parts {
		for _, name := range parts {
			for _, user2 := range parts {
				for _, name2 := range parts {
					a, b := JobKey{user, name}, JobKey{user2, name2}
					x, y := a.head(), b.head()
					if got := slices.Compare(x[:], y[:]); got != 0 && got != a.Compare(b) || got == 0 && x != y {
						t.Errorf("the heads of %v and %v compare as %d, they themselves as %d", a, b, got, a.Compare(b))
					}
				}
			}
		}
	}
}

// The jobs are what one sorted list would be, whatever comes and goes.
func TestJobsAreOneSortedList(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		var o jobs
		have := map[JobKey]*Job{}
		check := func() {
			t.Helper()
			want := slices.SortedFunc(func(yield func(*Job) bool) {
				for _, j := range have {
					if !yield(j) {
						return
					}
				}
			}, func(a, b *Job) int { return a.key.Compare(b.key) })
			if got := slices.Collect(o.each()); !slices.Equal(got, want) || o.len() != len(want) || !o.wellFormed() {
				t.Fatalf("seed %d: %d jobs are not the %d that there are, in order", seed, len(got), len(want))
			}
			for range 20 {
				key := JobKey{fmt.Sprint("user-", r.IntN(5)), fmt.Sprint("job-", r.IntN(2_000))}
				if got := o.of(key); got != have[key] {
					t.Fatalf("seed %d: %v is %v, not %v", seed, key, got, have[key])
				}
				at, found := slices.BinarySearchFunc(want, key, func(j *Job, k JobKey) int { return j.key.Compare(k) })
				if got := slices.Collect(o.from(key)); !slices.Equal(got, want[at:]) {
					t.Fatalf("seed %d: from %v on there are %d jobs, not %d", seed, key, len(got), len(want[at:]))
				}
				if found {
					at++
				}
				if got := slices.Collect(o.after(key)); !slices.Equal(got, want[at:]) {
					t.Fatalf("seed %d: behind %v there are %d jobs, not %d", seed, key, len(got), len(want[at:]))
				}
			}
		}
		check()
		for phase, coming := range []int{10, 8, 2, 9, 0} {
			for n := 0; n < 6_000 && (n < 3_000 || coming > 0 || len(have) > 0); n++ {
				key := JobKey{fmt.Sprint("user-", r.IntN(3)), fmt.Sprint("job-", r.IntN(2_000))}
				if r.IntN(10) < coming {
					if have[key] == nil {
						have[key] = &Job{key: key}
						o.add(have[key])
					}
				} else {
					delete(have, key)
					o.remove(key)
				}
			}
			if coming == 0 {
				for key := range have {
					delete(have, key)
					o.remove(key)
				}
			}
			check()
			for u := range o.users.each() {
				if phase == 0 && len(u.list.runs) < 3 {
					t.Fatalf("seed %d: all %d jobs of %s lie in %d runs, nothing was split", seed, u.list.len(), u.user, len(u.list.runs))
				}
			}
		}
		if len(o.byUser) != 0 || len(o.users.runs) != 0 {
			t.Fatalf("seed %d: %d users without jobs are left, in %d runs", seed, len(o.byUser), len(o.users.runs))
		}
	}
}
