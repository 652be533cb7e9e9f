package borgmaster

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// quarantineBegan refuses what is about quarantines in a cell that has none yet.
func quarantineBegan(c *cell.Cell, op *borgpb.Op) *borgpb.Refusal {
	if format := c.Format(); format < cell.FormatQuarantine && (op.GetQuarantineTask() != nil || op.GetReleaseTask() != nil) {
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_STATE, "", "the cell is of format %d, and puts tasks in quarantine from format %d on: it is raised when all replicas run a build that knows that", format, cell.FormatQuarantine)
	}
	return nil
}
