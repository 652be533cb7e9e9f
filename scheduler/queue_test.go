package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"borg/borgmaster/cell"
)

// Lines that are merged into the list are where sorting all would put them.
func TestMergeSorts(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var q queue
		var all []*line
		for range 1 + r.IntN(6) {
			for range r.IntN(30) {
				l := &line{
					uid: cell.UID{Epoch: 1, Index: uint64(len(all)) + 1}, priority: int32(r.IntN(3)),
					key: cell.JobKey{User: fmt.Sprint("user-", r.IntN(4)), Name: "job"},
				}
				all = append(all, l)
				q.enter(l)
			}
			q.merge()
			want := slices.SortedFunc(slices.Values(all), compareLines)
			if !slices.Equal(q.list, want) || len(q.added) != 0 {
				t.Fatalf("seed %d: %d lines of %d are not in order, %d not merged", seed, len(q.list), len(all), len(q.added))
			}
		}
	}
}
