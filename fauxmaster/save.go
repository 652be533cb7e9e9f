package fauxmaster

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
)

// savedCell hands out checkpoints of a simulated cell, as a replica does of a real one.
type savedCell struct{ *Server }

// Checkpoint implements borgmaster.Checkpoints. The file stands for one moment: the
// cell is copied between two entries, and sent after that.
func (s savedCell) Checkpoint(ctx context.Context, w io.Writer) (index uint64, err error) {
	var file bytes.Buffer
	s.log.View(func(c *cell.Cell) {
		index = c.Index()
		err = s.write(&file, c)
	})
	if err != nil {
		return 0, fmt.Errorf("write a checkpoint of the simulated cell: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	_, err = file.WriteTo(w)
	return index, err
}

// write writes a cell as a checkpoint file with the name of the one that was opened.
func (s savedCell) write(w io.Writer, c *cell.Cell) error {
	digest := c.Digest()
	file, err := checkpoint.NewWriter(w, &borgpb.CheckpointHeader{
		CellFormat: c.Format(), CellName: s.cfg.Picture.Header.GetCellName(), CellId: c.ID(), Epoch: c.Epoch(), Index: c.Index(), Term: c.Term(),
		CellTimeNs: c.TimeNs(), WallTimeNs: c.WallNs(), Digest: digest[:], Voters: []uint64{replicaID},
	})
	if err != nil {
		return err
	}
	for key, value := range c.Records() {
		if err := file.Add(key, value); err != nil {
			return err
		}
	}
	return file.Close()
}
