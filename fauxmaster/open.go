package fauxmaster

import (
	"fmt"
	"io"
	"os"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
)

// Picture is a checkpoint that was found to be a whole and sound cell. The cell
// is the caller's own.
type Picture struct {
	Header *borgpb.CheckpointHeader
	Cell   *cell.Cell
}

// DamagedError is a file that is no picture of a cell, and why.
type DamagedError struct {
	Path string
	Err  error
}

func (e *DamagedError) Error() string { return e.Path + ": " + e.Err.Error() }

func (e *DamagedError) Unwrap() error { return e.Err }

// Open loads a checkpoint file. What is not there is fs.ErrNotExist, what is not
// whole a DamagedError.
func Open(path string) (*Picture, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open a checkpoint: %w", err)
	}
	defer f.Close()
	p, err := Load(f)
	if err != nil {
		return nil, &DamagedError{path, err}
	}
	return p, nil
}

// Load reads a checkpoint and makes it prove itself three times over: every
// byte by the file's checksums, every record by the digest in the header, and
// the whole by the cell's own invariants.
func Load(r io.Reader) (*Picture, error) {
	file, err := checkpoint.NewReader(r)
	if err != nil {
		return nil, err
	}
	h := file.Header()
	c, err := cell.Load(file.Records())
	// What is wrong with the file explains what the cell missed.
	if ferr := file.Err(); ferr != nil {
		return nil, ferr
	}
	if err != nil {
		return nil, fmt.Errorf("the records make no cell: %w", err)
	}
	if c.ID() != h.GetCellId() || c.Index() != h.GetIndex() || c.Epoch() != h.GetEpoch() {
		return nil, fmt.Errorf("the header speaks of cell id %s at (%d, %d), the records of %s at (%d, %d)",
			h.GetCellId(), h.GetEpoch(), h.GetIndex(), c.ID(), c.Epoch(), c.Index())
	}
	if d := c.Digest(); string(d[:]) != string(h.GetDigest()) {
		return nil, fmt.Errorf("the cell has digest %x and the header says %x", d, h.GetDigest())
	}
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("the cell breaks one of its rules: %w", err)
	}
	return &Picture{h, c}, nil
}
