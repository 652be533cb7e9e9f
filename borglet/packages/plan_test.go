package packages

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPlan: what goes first.
func TestPlan(t *testing.T) {
	f := func() *facts {
		return &facts{
			images: []imageFacts{
				{digest: "old", small: []Digest{"old"}, layers: []Digest{"base", "a"}, packed: []Digest{"base", "a"}, usedNs: 1},
				{digest: "new", small: []Digest{"new"}, layers: []Digest{"base", "b"}, packed: []Digest{"base", "b"}, usedNs: 2},
				{digest: "held", small: []Digest{"held"}, layers: []Digest{"base", "c"}, packed: []Digest{"base", "c"}, usedNs: 0, held: true},
			},
			blobs:    map[Digest]int64{"old": 1, "new": 1, "held": 1, "base": 10, "a": 10, "b": 10, "c": 10, "stray": 5},
			layers:   map[Digest]int64{"base": 20, "a": 20, "b": 20, "c": 20, "orphan": 7},
			partials: map[Digest]int64{"half": 3},
			active:   map[drop]bool{{blobKind, "b"}: true},
		}
	}
	for _, c := range []struct {
		limit int64
		want  []drop
	}{
		{138, nil},
		{137, []drop{{layerKind, "orphan"}}},
		{126, []drop{{layerKind, "orphan"}, {blobKind, "stray"}}},
		{116, []drop{{layerKind, "orphan"}, {blobKind, "stray"}, {blobKind, "base"}}},
		{95, []drop{{layerKind, "orphan"}, {blobKind, "stray"}, {blobKind, "base"}, {blobKind, "c"}, {blobKind, "a"}, {imageKind, "old"}, {blobKind, "old"}}},
	} {
		facts := f()
		if facts.bytes() != 138 {
			t.Fatalf("the facts are %d bytes", facts.bytes())
		}
		got := facts.plan(c.limit)
		if !slices.Equal(got, c.want) {
			t.Errorf("plan(%d) = %v, want %v", c.limit, got, c.want)
		}
	}
}

// TestPlanKeeps: of any facts, nothing that is held or worked on goes, no image is
// left without a layer, and the limit is met if that can be.
func TestPlanKeeps(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 7))
		f := &facts{blobs: map[Digest]int64{}, layers: map[Digest]int64{}, partials: map[Digest]int64{}, active: map[drop]bool{}}
		name := func(of string, n int) Digest { return Digest(fmt.Sprint(of, r.IntN(n))) }
		for range r.IntN(8) {
			f.layers[name("l", 8)] = 1 + r.Int64N(100)
			f.blobs[name("l", 8)] = 1 + r.Int64N(50)
			f.partials[name("p", 4)] = r.Int64N(50)
			f.active[drop{kind(r.IntN(4)), name("l", 8)}] = true
		}
		for n := range r.IntN(6) {
			i := imageFacts{digest: Digest(fmt.Sprint("i", n)), usedNs: r.Int64N(5), held: r.IntN(3) == 0}
			for d := range f.layers {
				if r.IntN(2) == 0 {
					i.layers = append(i.layers, d)
				}
			}
			i.packed = i.layers
			f.blobs[i.digest] = 1
			i.small = []Digest{i.digest}
			f.images = append(f.images, i)
		}
		limit := r.Int64N(600)
		gone := map[drop]bool{}
		left := f.bytes()
		sizes := map[kind]map[Digest]int64{partialKind: f.partials, blobKind: f.blobs, layerKind: f.layers}
		for _, one := range f.plan(limit) {
			if gone[one] || (one.kind != imageKind && f.active[one]) {
				t.Fatalf("seed %d: %v goes twice, or is worked on", seed, one)
			}
			gone[one] = true
			left -= sizes[one.kind][one.digest]
		}
		for _, i := range f.images {
			for _, l := range i.layers {
				if gone[drop{layerKind, l}] && !gone[drop{imageKind, i.digest}] {
					t.Fatalf("seed %d: %s stays without %s", seed, i.digest, l)
				}
			}
			if i.held && gone[drop{imageKind, i.digest}] {
				t.Fatalf("seed %d: %s is held and goes", seed, i.digest)
			}
		}
		if left <= limit {
			continue
		}
		for d := range f.layers {
			if !gone[drop{layerKind, d}] && !f.kept()[d] {
				t.Fatalf("seed %d: %d bytes are left, above %d, and layer %s stays", seed, left, limit, d)
			}
		}
	}
}
