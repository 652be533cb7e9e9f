package borgmaster

import (
	"context"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// GetPreemptionPolicy tells within which bands nobody takes the place of others.
func (a *masterAPI) GetPreemptionPolicy(ctx context.Context, _ *borgrpc.GetPreemptionPolicyRequest) (*borgrpc.GetPreemptionPolicyResponse, error) {
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &borgrpc.GetPreemptionPolicyResponse{}
	a.m.cfg.Log.View(func(c *cell.Cell) { resp.Collapse, resp.Index = c.Collapsed(), c.Index() })
	return resp, nil
}

// preemptionBegan refuses a policy of preemption in a cell that does not know it yet.
func preemptionBegan(c *cell.Cell, op *borgpb.Op) *borgpb.Refusal {
	if format := c.Format(); format < cell.FormatPreemption && op.GetSetPreemptionPolicy() != nil {
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_STATE, "", "the cell is of format %d, and lets bands collapse from format %d on: it is raised when all replicas run a build that knows that", format, cell.FormatPreemption)
	}
	return nil
}
