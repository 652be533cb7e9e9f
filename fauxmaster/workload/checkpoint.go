package workload

import (
	"io"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
)

// Stream writes a cell as a checkpoint file.
func Stream(to io.Writer, name string, c *cell.Cell) error {
	d := c.Digest()
	w, err := checkpoint.NewWriter(to, &borgpb.CheckpointHeader{
		CellFormat: c.Format(), CellName: name, CellId: c.ID(), Epoch: c.Epoch(), Index: c.Index(), Term: c.Term(),
		CellTimeNs: c.TimeNs(), WallTimeNs: c.WallNs(), Digest: d[:], Voters: []uint64{1},
	})
	if err != nil {
		return err
	}
	for k, v := range c.Records() {
		if err := w.Add(k, v); err != nil {
			return err
		}
	}
	return w.Close()
}
