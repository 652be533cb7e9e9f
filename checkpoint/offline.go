package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"

	"borg/proto/borgpb"
)

// Info is what Inspect tells of a checkpoint file.
type Info struct {
	Header *borgpb.CheckpointHeader
	// Records in it, and the bytes of their keys and values.
	Records, RecordBytes uint64
	Chunks               int
	// FileBytes is the length of the file.
	FileBytes int64
}

// Inspect reads a whole checkpoint file, checks every byte of it, and says what
// is in it. It knows nothing of cells: whether the records make one with the
// header's digest is for `fauxmaster show` to say.
func Inspect(r io.Reader) (*Info, error) {
	cr, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	for range cr.Records() {
	}
	if err := cr.Err(); err != nil {
		return nil, err
	}
	return &Info{Header: cr.header, Records: cr.records, RecordBytes: cr.bytes, Chunks: cr.chunks, FileBytes: cr.offset}, nil
}

// Verify says whether a checkpoint file is exactly as it was written.
func Verify(r io.Reader) error {
	_, err := Inspect(r)
	return err
}

// Save writes a checkpoint file from the directory of a replica that does not
// run. It stands for the last flushed position, which a replica that was
// stopped in order has brought up to the last applied one. Later is how many
// entries the log holds beyond it, of a replica that was killed.
func Save(ctx context.Context, dir string, w io.Writer) (header *borgpb.CheckpointHeader, later uint64, err error) {
	return save(ctx, Config{Dir: dir}, w)
}

func save(ctx context.Context, cfg Config, w io.Writer) (_ *borgpb.CheckpointHeader, later uint64, err error) {
	cfg.setDefaults()
	id, err := ReadIdentity(cfg.FS, cfg.Dir)
	if err != nil {
		return nil, 0, err
	}
	s, err := open(cfg, id, true)
	if err != nil {
		return nil, 0, fmt.Errorf("%w; a replica that is running must be asked itself, or stopped first", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p, err := s.Picture()
	if err != nil {
		return nil, 0, err
	}
	last, err := s.LastIndex()
	return p.Header(), last - p.Header().GetIndex(), errors.Join(err, p.WriteTo(ctx, w), p.Close())
}
