package borglet

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestDivideCores(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cores   [][]int
		most    int
		threads int
		own     []int
	}{
		{"one core", [][]int{{0}}, 9, 1, nil},
		{"one core of two threads", [][]int{{0, 1}}, 9, 2, nil},
		{"two", [][]int{{0}, {1}}, 9, 1, []int{1}},
		{"threads far apart", [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, 9, 2, []int{1, 5, 2, 6, 3, 7}},
		{"not all of them", [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, 2, 2, []int{1, 5, 2, 6}},
		{"none wanted", [][]int{{0}, {1}}, 0, 1, nil},
		{"two kinds: large ones come first", [][]int{{0, 1}, {2, 3}, {4}, {5}, {6}}, 9, 1, []int{4, 5, 6}},
		{"two kinds, as many of each", [][]int{{0, 1}, {2}, {3}, {4, 5}}, 9, 1, []int{2, 3}},
		{"three threads are none that can be asked for", [][]int{{0, 1, 2}, {3, 4, 5}}, 9, 0, nil},
	} {
		c := DivideCores(tt.cores, tt.most)
		if c.Threads != tt.threads || !slices.Equal(c.Own, tt.own) {
			t.Errorf("%s: threads %d own %v, want %d %v", tt.name, c.Threads, c.Own, tt.threads, tt.own)
		}
	}
}

// TestCoresAreWhole gives and takes cores of random machines by the lowest free numbers,
// as the cell does: what a copy has is always whole cores, nobody's else, and the rest is
// never empty and never shares a core with anybody.
func TestCoresAreWhole(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		threads := 1 << r.IntN(4)
		var cores [][]int
		count := 1 + r.IntN(24)
		coreOf := map[int]int{}
		for i := range count {
			var core []int
			for k := range threads {
				core = append(core, i+k*count)
				coreOf[i+k*count] = i
			}
			cores = append(cores, core)
		}
		r.Shuffle(count, func(i, k int) { cores[i], cores[k] = cores[k], cores[i] })
		c := DivideCores(cores, 1+r.IntN(count))
		used := make([]bool, len(c.Own))
		var live [][]uint32
		for range 60 {
			if len(live) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(live))
				for _, n := range live[i] {
					used[n] = false
				}
				live = slices.Delete(live, i, i+1)
			}
			want := threads * (1 + r.IntN(4))
			var got []uint32
			for n := range used {
				if !used[n] && len(got) < want {
					got = append(got, uint32(n))
				}
			}
			if len(got) == want {
				for _, n := range got {
					used[n] = true
				}
				live = append(live, got)
			}
			owner := map[int]int{}
			var taken []int
			for i, numbers := range live {
				cpus, err := c.Of(numbers)
				if err != nil {
					t.Fatalf("seed %d: %v of %+v: %v", seed, numbers, c, err)
				}
				for _, cpu := range cpus {
					if before, is := owner[coreOf[cpu]]; is && before != i {
						t.Fatalf("seed %d: core %d has two owners: %v", seed, coreOf[cpu], live)
					}
					owner[coreOf[cpu]] = i
				}
				taken = append(taken, cpus...)
			}
			rest := c.Rest(taken)
			if len(rest)+len(taken) != len(c.All) || len(rest) < threads {
				t.Fatalf("seed %d: rest %v of %v, taken %v", seed, rest, c.All, taken)
			}
			for _, cpu := range rest {
				if _, is := owner[coreOf[cpu]]; is {
					t.Fatalf("seed %d: processor %d of the rest is of a core that is taken", seed, cpu)
				}
			}
		}
	}
}

func TestCoresRefused(t *testing.T) {
	c := DivideCores([][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, 9)
	for _, numbers := range [][]uint32{{0}, {1, 2}, {0, 2}, {0, 1, 2}, {1, 0}, {6, 7}} {
		if cpus, err := c.Of(numbers); err == nil {
			t.Errorf("%v are %v, want an error", numbers, cpus)
		}
	}
	if cpus, err := c.Of([]uint32{2, 3, 0, 1}); err != nil || !slices.Equal(cpus, []int{1, 2, 5, 6}) {
		t.Errorf("got %v, %v", cpus, err)
	}
}
