package packages

import (
	"cmp"
	"maps"
	"slices"
)

// facts are what is on disk, as far as throwing away goes.
type facts struct {
	images []imageFacts
	// Bytes on disk of each.
	blobs    map[Digest]int64
	layers   map[Digest]int64
	partials map[Digest]int64
	// active is what somebody is at work on at the moment.
	active map[drop]bool
	// growing is the room of layers that are being unpacked.
	growing int64
}

type imageFacts struct {
	digest Digest
	// small is its manifest, index and configuration.
	small  []Digest
	layers []Digest
	// packed are the layers as they came, in the same order.
	packed []Digest
	// usedNs is when it was last wanted.
	usedNs int64
	held   bool
}

// all are the digests that an image needs, each once.
func (i *imageFacts) all() []Digest {
	var list []Digest
	for _, d := range slices.Concat(i.small, i.layers, i.packed) {
		if !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// kind is what is thrown away.
type kind uint8

const (
	partialKind kind = iota
	blobKind
	imageKind
	layerKind
)

// drop is one thing to throw away.
type drop struct {
	kind   kind
	digest Digest
}

func (f *facts) bytes() (sum int64) {
	sum = f.growing
	for _, of := range []map[Digest]int64{f.blobs, f.layers, f.partials} {
		for _, n := range of {
			sum += n
		}
	}
	return sum
}

// heldBytes is what cannot be thrown away.
func (f *facts) heldBytes() (sum int64) {
	sum = f.growing
	keep := f.kept()
	for d, n := range f.layers {
		if keep[d] {
			sum += n
		}
	}
	for d, n := range f.blobs {
		if f.active[drop{blobKind, d}] {
			sum += n
		}
	}
	for d, n := range f.partials {
		if f.active[drop{partialKind, d}] {
			sum += n
		}
	}
	return sum
}

// kept are the layers that holders need or somebody is at work on.
func (f *facts) kept() map[Digest]bool {
	keep := map[Digest]bool{}
	for d := range f.layers {
		if f.active[drop{layerKind, d}] {
			keep[d] = true
		}
	}
	for _, i := range f.images {
		if i.held {
			for _, l := range i.layers {
				keep[l] = true
			}
		}
	}
	return keep
}

// plan says what to throw away, in order, so that no more than limitBytes are
// left; or all that may go, if that is not enough. First goes what is in no
// image, then the packed form of layers that are there unpacked, then images
// that nobody holds; of each the longest unused first. An image goes before its
// layers, so that a crash leaves none without.
func (f *facts) plan(limitBytes int64) []drop {
	left := f.bytes()
	if left <= limitBytes {
		return nil
	}
	var drops []drop
	gone := map[drop]bool{}
	throw := func(k kind, d Digest, of map[Digest]int64) {
		one := drop{k, d}
		n, there := of[d]
		if left <= limitBytes || !there || gone[one] || f.active[one] {
			return
		}
		gone[one] = true
		left -= n
		drops = append(drops, one)
	}
	images := slices.Clone(f.images)
	slices.SortFunc(images, func(a, b imageFacts) int {
		return cmp.Or(cmp.Compare(a.usedNs, b.usedNs), cmp.Compare(a.digest, b.digest))
	})
	users := map[Digest]int{}
	for _, i := range images {
		for _, d := range i.all() {
			users[d]++
		}
	}
	for _, d := range slices.Sorted(maps.Keys(f.layers)) {
		if users[d] == 0 {
			throw(layerKind, d, f.layers)
		}
	}
	for _, d := range slices.Sorted(maps.Keys(f.blobs)) {
		if users[d] == 0 {
			throw(blobKind, d, f.blobs)
		}
	}
	for _, i := range images {
		for n, l := range i.layers {
			if _, unpacked := f.layers[l]; unpacked {
				throw(blobKind, i.packed[n], f.blobs)
			}
		}
	}
	for _, i := range images {
		if i.held || left <= limitBytes {
			continue
		}
		drops = append(drops, drop{imageKind, i.digest})
		for _, d := range i.all() {
			if users[d]--; users[d] == 0 {
				throw(layerKind, d, f.layers)
				throw(blobKind, d, f.blobs)
			}
		}
	}
	for _, d := range slices.Sorted(maps.Keys(f.partials)) {
		throw(partialKind, d, f.partials)
	}
	return drops
}
