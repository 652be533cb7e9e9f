package borglet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"borg/mutant"
	"borg/proto/borgrpc"
)

// Fence is whom a borglet obeys: one cell, and in it the highest
// (epoch, term, index) that it has heard of. It is synced before it is obeyed,
// so that an order of a master that has been followed by another is never
// done, whatever was restarted between.
type Fence struct {
	CellID string `json:"cell_id"`
	// Name under which the cell knows this machine.
	Machine string `json:"machine"`
	Epoch   uint64 `json:"epoch"`
	Term    uint64 `json:"term"`
	Index   uint64 `json:"index"`
	// Removed are the numbers of replicas that were taken out of the cell, as far
	// as this borglet was told in this epoch, ascending. Never changed in place.
	Removed []uint64 `json:"removed,omitempty"`
}

// maxRemoved bounds Removed. Numbers are given in ascending order, so the highest
// are those whose certificates may still be good.
const maxRemoved = 4096

// Equal tells whether there is nothing new to keep.
func (f Fence) Equal(g Fence) bool {
	return f.CellID == g.CellID && f.Machine == g.Machine && f.Epoch == g.Epoch && f.Term == g.Term && f.Index == g.Index &&
		slices.Equal(f.Removed, g.Removed)
}

// removedAfter are the replicas that were taken out, once an order of a later
// fence has said which it knows. A master that is behind takes nobody from the
// set: nobody comes back. A cell of a later epoch begins anew.
func (f Fence) removedAfter(next Fence, told *borgrpc.Belief) []uint64 {
	if told == nil {
		return f.Removed
	}
	all := slices.Clone(told.Removed)
	if next.Epoch == f.Epoch {
		all = append(all, f.Removed...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[max(len(all)-maxRemoved, 0):]
}

// LoadFence reads fence.json; one that is not there is the zero Fence.
func LoadFence(dir string) (Fence, error) {
	var f Fence
	text, err := os.ReadFile(filepath.Join(dir, "fence.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("read fence: %w", err)
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return f, fmt.Errorf("read %s: %w; to let this machine join a cell anew, stop its tasks and remove the file", filepath.Join(dir, "fence.json"), err)
	}
	return f, nil
}

// Save writes fence.json, synced.
func (f Fence) Save(dir string) error {
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode fence: %w", err)
	}
	return WriteSynced(filepath.Join(dir, "fence.json"), append(text, '\n'))
}

// compare orders two fences of one cell.
func (f Fence) compare(g Fence) int {
	if mutant.Planted(mutant.FenceWithoutIndex) {
		f.Index = g.Index
	}
	return cmp.Or(cmp.Compare(f.Epoch, g.Epoch), cmp.Compare(f.Term, g.Term), cmp.Compare(f.Index, g.Index))
}

func (f Fence) wire() *borgrpc.Fence {
	return &borgrpc.Fence{CellId: f.CellID, Epoch: f.Epoch, Term: f.Term, Index: f.Index}
}

// verdict is what a fence says to an order.
type verdict uint8

const (
	obey verdict = iota
	stale
	otherCell
	otherMachine
)

// judge says whether an order is to be obeyed, and the fence to keep if so.
// idle: nothing is here that belongs to the machine as it was named before.
func (f Fence) judge(order *borgrpc.Fence, machine string, idle bool) (Fence, verdict) {
	next := Fence{
		CellID: order.GetCellId(), Machine: machine,
		Epoch: order.GetEpoch(), Term: order.GetTerm(), Index: order.GetIndex(),
	}
	switch {
	case f.CellID == "":
		return next, obey
	case f.CellID != next.CellID:
		return f, otherCell
	case next.compare(f) < 0 && !mutant.Planted(mutant.FenceNotAsked):
		return f, stale
	case f.Machine != next.Machine && !idle:
		return f, otherMachine
	}
	return next, obey
}
