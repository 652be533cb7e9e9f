package checkpoint

import (
	"context"
	"fmt"
	"io"
	"iter"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

// Flush is a batch of changed records on its way to the disk.
type Flush struct {
	s     *Store
	gen   *generation
	batch *pebble.Batch
	buf   []byte
	count int
	err   error
}

// NewFlush begins a batch of changed records. It must be ended by Commit or
// Discard.
func (s *Store) NewFlush() *Flush {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Flush{s: s, gen: s.gen, batch: s.gen.db.NewBatch()}
}

// Put sets a record; a nil value removes it. It keeps neither key nor value.
func (f *Flush) Put(key, value []byte) {
	if f.err != nil {
		return
	}
	f.buf = recordKey(f.buf, key)
	f.count++
	if value == nil {
		f.err = f.batch.Delete(f.buf, nil)
	} else {
		f.err = f.batch.Set(f.buf, value, nil)
	}
}

// Count is the number of records put.
func (f *Flush) Count() int { return f.count }

// Commit writes the records together with what they stand for. It does not
// wait for the disk: after a crash either all of the batch is there or none.
func (f *Flush) Commit(header *borgpb.CheckpointHeader) error {
	early := mutant.Planted(mutant.HeaderBeforeRecords)
	return f.s.guard("flush records", func(gen *generation) error {
		if f.err != nil {
			return f.err
		}
		if gen != f.gen {
			return fmt.Errorf("records of database %s are no longer wanted", f.gen.name)
		}
		data, err := proto.Marshal(header)
		if err != nil {
			return err
		}
		if early {
			if err := gen.db.Set(keyHeader, data, pebble.NoSync); err != nil {
				return err
			}
		}
		if err := f.batch.Set(keyHeader, data, nil); err != nil {
			return err
		}
		if err := gen.commit(f.batch, pebble.NoSync); err != nil {
			return err
		}
		f.s.mu.Lock()
		defer f.s.mu.Unlock()
		f.s.header = header
		return nil
	})
}

// Discard gives the batch up.
func (f *Flush) Discard() error { return f.batch.Close() }

// Picture is the records as they were at one flush, whatever is written
// meanwhile.
type Picture struct {
	gen    *generation
	snap   *pebble.Snapshot
	header *borgpb.CheckpointHeader
	share  float64
	err    error
}

// Picture takes one. It must be closed.
func (s *Store) Picture() (*Picture, error) {
	s.mu.Lock()
	gen := s.gen
	gen.ref()
	s.mu.Unlock()
	p := &Picture{gen: gen, snap: gen.db.NewSnapshot(), header: new(borgpb.CheckpointHeader), share: s.cfg.WriteShare}
	data, err := get(p.snap, keyHeader)
	if err == nil {
		err = proto.Unmarshal(data, p.header)
	}
	if err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("read what the records of %s stand for: %w", gen.dir, err)
	}
	return p, nil
}

// Header says what the picture stands for. It must not be changed.
func (p *Picture) Header() *borgpb.CheckpointHeader { return p.header }

// Records yields the records in the order of their keys. Key and value are
// only good until the next one. Err says after the loop whether all were read.
func (p *Picture) Records() iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) { p.err = p.each(yield) }
}

// Err returns the error that ended Records, if any did.
func (p *Picture) Err() error { return p.err }

// each calls f with each record; the slices are good until it returns.
func (p *Picture) each(f func(k, v []byte) bool) error {
	it, err := p.snap.NewIter(&pebble.IterOptions{LowerBound: []byte{recordSpace}, UpperBound: recordSpaceEnd})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return closeWith(it, err)
		}
		if !f(it.Key()[1:], v) {
			break
		}
	}
	return closeWith(it, it.Error())
}

// WriteTo writes the picture as a checkpoint file.
func (p *Picture) WriteTo(ctx context.Context, w io.Writer) error {
	cw, err := NewWriter(w, p.header)
	if err != nil {
		return err
	}
	var werr error
	rest := newPacer(p.share)
	rerr := p.each(func(k, v []byte) bool {
		if werr = rest.after(ctx, len(k)+len(v)); werr == nil {
			werr = cw.Add(k, v)
		}
		return werr == nil
	})
	switch {
	case werr != nil:
		return werr
	case rerr != nil:
		return fmt.Errorf("read the records of %s: %w", p.gen.dir, rerr)
	}
	return cw.Close()
}

// Close lets go of the picture.
func (p *Picture) Close() error {
	err := p.snap.Close()
	if err2 := p.gen.unref(); err == nil {
		err = err2
	}
	return err
}
