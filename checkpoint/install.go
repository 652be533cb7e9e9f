package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

// receiveBatchBytes is how much of a received checkpoint is written at once.
const receiveBatchBytes = 1 << 20

// Incoming is a received checkpoint: whole, checked, and written to a database
// directory of its own that nothing refers to yet.
type Incoming struct {
	gen    *generation
	header *borgpb.CheckpointHeader
}

// Header says what the checkpoint stands for. It must not be changed.
func (in *Incoming) Header() *borgpb.CheckpointHeader { return in.header }

// Receive reads a checkpoint file of this cell into a database directory of
// its own. It is then installed, or discarded. One is received at a time.
func (s *Store) Receive(r io.Reader) (*Incoming, error) {
	cr, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	h := cr.Header()
	if h.GetCellId() != s.identity.GetCellId() || h.GetCellName() != s.identity.GetCellName() {
		return nil, fmt.Errorf("the checkpoint is of cell %s (id %s), and this is a replica of %s (id %s)", h.GetCellName(), h.GetCellId(), s.identity.GetCellName(), s.identity.GetCellId())
	}
	s.mu.Lock()
	if s.incoming != nil {
		s.mu.Unlock()
		return nil, errors.New("another checkpoint is being received")
	}
	s.newest++
	name := generationName(s.newest)
	in := &Incoming{header: h}
	s.incoming = in
	s.mu.Unlock()

	if in.gen, err = openGeneration(&s.cfg, name, false); err == nil {
		err = in.write(cr)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("receive a checkpoint of index %d: %w", h.GetIndex(), err), s.Discard(in))
	}
	return in, nil
}

// write copies the records. They are synced by Install, with the last batch.
func (in *Incoming) write(cr *Reader) error {
	err := in.gen.putRecords(cr.Records())
	return errors.Join(err, cr.Err())
}

// putRecords writes records, unsynced.
func (g *generation) putRecords(records iter.Seq2[[]byte, []byte]) error {
	b := g.db.NewBatch()
	var buf []byte
	for k, v := range records {
		if mutant.Planted(mutant.RestoredInPart) && k[0] > 0x42 {
			break
		}
		buf = recordKey(buf, k)
		if err := b.Set(buf, v, nil); err != nil {
			return err
		}
		if b.Len() >= receiveBatchBytes {
			if err := g.commit(b, pebble.NoSync); err != nil {
				return err
			}
			b = g.db.NewBatch()
		}
	}
	return g.commit(b, pebble.NoSync)
}

// Discard removes a received checkpoint that is not to be installed.
func (s *Store) Discard(in *Incoming) error {
	s.mu.Lock()
	if s.incoming == in {
		s.incoming = nil
	}
	s.mu.Unlock()
	if in.gen == nil {
		return nil
	}
	in.gen.retire()
	return in.gen.unref()
}

// Received returns the received checkpoint that waits to be installed, if any.
func (s *Store) Received() *Incoming {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incoming
}

// Install makes a received checkpoint the replica's state: its records, an
// empty log that begins after it, and the given hard state. It is durable when
// it returns; a crash before that leaves the state from before.
func (s *Store) Install(in *Incoming, hard *raftpb.HardState) error {
	return s.guard("install a checkpoint", func(old *generation) error {
		hard = proto.CloneOf(hard)
		if hard.GetCommit() < in.header.GetIndex() {
			hard.Commit = new(in.header.GetIndex())
		}
		b := in.gen.db.NewBatch()
		if err := putStart(b, s.identity, in.header, hard); err != nil {
			return err
		}
		// The sync covers the records too: they are in the same write-ahead log.
		if err := in.gen.commit(b, pebble.Sync); err != nil {
			return err
		}
		// The directory's own entry in db/ is synced with the marker.
		if err := s.marker.Move(in.gen.name); err != nil {
			return err
		}
		old.retire()
		s.mu.Lock()
		s.gen, s.header, s.hard, s.incoming = in.gen, in.header, hard, nil
		s.log = logIndex{start: in.header.GetIndex(), startTerm: in.header.GetTerm(), cacheLimit: s.cfg.CacheBytes}
		s.mu.Unlock()
		return old.unref()
	})
}

// HardState returns the last durable hard state. It must not be changed.
func (s *Store) HardState() *raftpb.HardState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hard
}
