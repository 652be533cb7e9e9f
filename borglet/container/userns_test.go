package container

import (
	"testing"

	"borg/borglet"
)

// TestIDRanges: no two copies that live have the same ids, also when some of them
// are an earlier borglet's, and what was given back is not given again at once.
func TestIDRanges(t *testing.T) {
	const first = 1 << 20
	r := newIDRanges([2]uint32{first, first + 4*idsPerCopy - 1})
	copyOf := func(n uint32) borglet.ID { return borglet.ID{JobUID: "1-1-0", Index: n, Attempt: 1} }
	r.keep(copyOf(1), first+idsPerCopy)
	// Of other ranges than ours: in nobody's way.
	r.keep(copyOf(8), 0)
	r.keep(copyOf(9), first+4*idsPerCopy)
	owner := map[uint32]uint32{first + idsPerCopy: 1}
	for _, n := range []uint32{2, 3, 4} {
		at, err := r.take(copyOf(n))
		if err != nil {
			t.Fatal(err)
		}
		if was, used := owner[at]; used || at < first || at >= first+4*idsPerCopy || (at-first)%idsPerCopy != 0 {
			t.Errorf("copy %d got %d, which is copy %d's", n, at, was)
		}
		owner[at] = n
		if again, err := r.take(copyOf(n)); err != nil || again != at {
			t.Errorf("copy %d asked again and got %d, %v", n, again, err)
		}
	}
	if at, err := r.take(copyOf(5)); err == nil {
		t.Errorf("a fifth copy of four got %d", at)
	}
	r.free(copyOf(1))
	r.free(copyOf(1))
	if at, err := r.take(copyOf(5)); err != nil || at != first+idsPerCopy {
		t.Errorf("after one was given back: %d, %v", at, err)
	}
	r.free(copyOf(2))
	r.free(copyOf(3))
	a, _ := r.take(copyOf(2))
	r.free(copyOf(2))
	if b, err := r.take(copyOf(2)); err != nil || b == a {
		t.Errorf("what was just given back is given again: %d, %v", b, err)
	}
}
