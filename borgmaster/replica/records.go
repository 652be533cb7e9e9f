package replica

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/mutant"
	"borg/proto/borgpb"
)

// LoadCell makes the cell of the records in a store.
func LoadCell(store *checkpoint.Store) (*cell.Cell, error) {
	p, err := store.Picture()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	h := p.Header()
	if h.GetIndex() <= firstIndex {
		// Nothing was ever flushed: the cell is as it began.
		return cell.New(store.Identity().GetCellId(), h.GetEpoch()), nil
	}
	c, err := cell.Load(p.Records())
	if err2 := p.Err(); err2 != nil {
		err = err2
	}
	if err != nil {
		return nil, fmt.Errorf("load the cell at index %d: %w", h.GetIndex(), err)
	}
	if c.Index() != h.GetIndex() || c.ID() != h.GetCellId() || c.Epoch() != h.GetEpoch() {
		return nil, fmt.Errorf("the records are of cell %s at (%d, %d) and should be of %s at (%d, %d)", c.ID(), c.Epoch(), c.Index(), h.GetCellId(), h.GetEpoch(), h.GetIndex())
	}
	if d := c.Digest(); len(h.GetDigest()) > 0 && string(d[:]) != string(h.GetDigest()) {
		return nil, fmt.Errorf("the records at index %d have the digest %x and should have %x: the disk did not keep them; remove this replica from the cell and join with a new number", h.GetIndex(), d, h.GetDigest())
	}
	return c, nil
}

// NeedsFlush tells whether the records on disk stand for less than the cell.
func NeedsFlush(store *checkpoint.Store, c *cell.Cell) bool {
	return c.Index() > firstIndex && store.Header().GetIndex() != c.Index()
}

// PrepareFlush takes the changed records out of the cell. They are on their way
// to the disk once the flush is committed with the header, in one batch, so
// that the records always stand for the index that they say.
func PrepareFlush(store *checkpoint.Store, c *cell.Cell, m Membership) (*checkpoint.Flush, *borgpb.CheckpointHeader) {
	f := store.NewFlush()
	h := proto.CloneOf(store.Header())
	m.fill(h)
	c.Flush(f.Put)
	d := c.Digest()
	h.Digest = d[:]
	h.Index, h.Term = c.Index(), c.Term()
	if mutant.Planted(mutant.RecordsAhead) {
		h.Index--
	}
	h.CellFormat = c.Format()
	h.Epoch = c.Epoch()
	h.CellTimeNs, h.WallTimeNs = c.TimeNs(), c.WallNs()
	return f, h
}

// digestEvery is how many entries lie between two digests in the log. The cell
// remembers its digests at these indexes.
const digestEvery = 1024

// DigestOp logs a cell's digest just after it has applied an entry, for the
// other replicas to compare with theirs; nil: not at this index.
func DigestOp(c *cell.Cell, index uint64) *borgpb.Op {
	if index%digestEvery != 0 {
		return nil
	}
	d, ok := c.DigestAt(index)
	if !ok {
		return nil
	}
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: "borgmaster", Role: borgpb.Role_ROLE_MASTER},
		Op:        &borgpb.Op_Digest{Digest: &borgpb.LogDigest{Index: index, Digest: d[:]}},
	}
}
