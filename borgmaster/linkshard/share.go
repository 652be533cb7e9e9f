package linkshard

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// Owner returns the replica of live that polls the machine, or 0 when live is
// empty. It is rendezvous hashing: when a replica leaves, only its machines
// move, and they spread over all the others.
func Owner(machine string, live []uint64) uint64 { return heaviest(machine, live, 0) }

// Next returns the replica that polls the machine once its owner has no share; 0 when
// there is none.
func Next(machine string, live []uint64) uint64 {
	return heaviest(machine, live, Owner(machine, live))
}

func heaviest(machine string, live []uint64, without uint64) uint64 {
	var owner, best uint64
	for _, replica := range live {
		if replica == without {
			continue
		}
		w := weight(machine, replica)
		if owner == 0 || w > best || (w == best && replica < owner) {
			owner, best = replica, w
		}
	}
	return owner
}

// Ranked returns live in the order in which the replicas would come to own the
// machine.
func Ranked(machine string, live []uint64) []uint64 {
	ranked := slices.Clone(live)
	slices.SortFunc(ranked, func(a, b uint64) int {
		if c := cmp.Compare(weight(machine, b), weight(machine, a)); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	return ranked
}

func weight(machine string, replica uint64) uint64 {
	return mix(nameHash(machine) ^ mix(replica))
}

// Turn is a place in an order of machines that has nothing to do with their names, as which
// those of a rack or of an age often have in common.
func Turn(machine string) uint64 { return mix(nameHash(machine)) }

func nameHash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// mix is the finalizer of splitmix64: FNV alone leaves names that differ in
// their last letter close together.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}
