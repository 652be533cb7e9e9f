package replica

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/mutant"
	"borg/proto/borgpb"
)

// ReadCheckpoint makes the cell that a checkpoint file holds. Every byte of the file
// is checked, and that the records have the digest of its header.
func ReadCheckpoint(r io.Reader) (*cell.Cell, *borgpb.CheckpointHeader, error) {
	file, err := checkpoint.NewReader(r)
	if err != nil {
		return nil, nil, err
	}
	h := file.Header()
	c, err := cell.Load(file.Records())
	// What is wrong with the file explains what the cell missed.
	if ferr := file.Err(); ferr != nil {
		if mutant.Planted(mutant.BrokenIsEmpty) {
			return cell.New(h.GetCellId(), h.GetEpoch()), h, nil
		}
		return nil, nil, ferr
	}
	if err != nil {
		return nil, nil, err
	}
	if c.ID() != h.GetCellId() || c.Index() != h.GetIndex() || c.Epoch() != h.GetEpoch() {
		return nil, nil, fmt.Errorf("the header speaks of cell id %s at (%d, %d), the records of %s at (%d, %d)",
			h.GetCellId(), h.GetEpoch(), h.GetIndex(), c.ID(), c.Epoch(), c.Index())
	}
	if d := c.Digest(); string(d[:]) != string(h.GetDigest()) {
		return nil, nil, fmt.Errorf("the cell has digest %x and the header says %x", d, h.GetDigest())
	}
	return c, h, nil
}

// Restore makes the directory of one replica of a cell that begins a new epoch with
// a cell that was restored: it lies there as if it had been flushed, and the log
// begins after it. was is the header of the checkpoint. All members are made alike,
// from the same file; see Init.
func Restore(store checkpoint.Config, id *borgpb.ReplicaIdentity, was *borgpb.CheckpointHeader, c *cell.Cell) error {
	if c.Index() <= firstIndex {
		return errors.New("the checkpoint is of a cell that did nothing yet; begin a new one with `borgmaster init`")
	}
	h, err := firstHeader(id)
	if err != nil {
		return err
	}
	if id.GetCellId() != c.ID() || id.GetEpoch() != c.Epoch() {
		return fmt.Errorf("the cell is %s of epoch %d and the replica is of %s, epoch %d", c.ID(), c.Epoch(), id.GetCellId(), id.GetEpoch())
	}
	d := c.Digest()
	id.BeganDigest, h.Digest = d[:], d[:]
	h.CellFormat, h.Index, h.Term = c.Format(), c.Index(), c.Term()
	h.CellTimeNs, h.WallTimeNs = c.TimeNs(), c.WallNs()
	h.Removed = slices.Clone(was.GetRemoved())
	for _, m := range was.GetMembers() {
		h.Removed = append(h.Removed, m.GetId())
	}
	slices.Sort(h.Removed)
	h.Removed = slices.DeleteFunc(slices.Compact(h.Removed), func(n uint64) bool {
		return slices.ContainsFunc(h.Members, func(m *borgpb.Member) bool { return m.GetId() == n })
	})
	return checkpoint.CreateFrom(store, id, h, c.Records())
}
