package borgmaster

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// maxBreaches is how many objects are listed that break a label policy.
const maxBreaches = 1_000

// GetLabelPolicy tells which rules hold for labels, and who breaks them or others.
func (a *masterAPI) GetLabelPolicy(ctx context.Context, req *borgrpc.GetLabelPolicyRequest) (*borgrpc.GetLabelPolicyResponse, error) {
	judge := req.GetPolicy()
	// The check lists objects of all users.
	if caller := door.Caller(ctx); caller.Role == identity.Task && (req.GetCheck() || judge != nil) {
		return nil, status.Errorf(codes.PermissionDenied, "you are %s: a task may read the label policy; only a user may check all objects against it", caller.Words())
	}
	if r := cell.CheckLabelPolicy(judge); r != nil {
		return nil, refusalError(r)
	}
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &borgrpc.GetLabelPolicyResponse{}
	a.m.cfg.Log.View(func(c *cell.Cell) {
		resp.Index = c.Index()
		resp.Policy, resp.Version = c.LabelPolicy()
	})
	if !req.GetCheck() {
		return resp, nil
	}
	if judge == nil {
		judge = resp.Policy
	}
	if err := a.m.checkLabels(ctx, judge, resp); err != nil {
		return nil, err
	}
	return whole(resp, "objects that break the policy of labels")
}

// checkLabels lists who breaks a policy. Objects that change while it looks may be listed as they
// were or as they are.
func (m *Master) checkLabels(ctx context.Context, judge *borgpb.LabelPolicy, resp *borgrpc.GetLabelPolicyResponse) error {
	w := m.walks(ctx)
	defer w.rest()
	check := cell.NewLabelCheck(judge)
	for more := true; more; {
		if err := w.step(); err != nil {
			return err
		}
		m.cfg.Log.View(func(c *cell.Cell) {
			lens := m.lens(ctx, c)
			more = check.Next(c, func(b cell.LabelBreach) {
				if b.Kind != borgpb.Labelled_LABELLED_MACHINE && !lens.Name(b.Object) {
					return
				}
				if resp.Breaking++; len(resp.Breaches) < maxBreaches {
					resp.Breaches = append(resp.Breaches, &borgrpc.LabelBreach{Kind: b.Kind, Object: b.Object, Message: b.Message})
				}
			})
		})
	}
	return nil
}

// permitLabels says whose the object is whose labels an op changes; mine tells that
// it is a user's, not the cell's.
func permitLabels(o *borgpb.SetLabels) (owner, object string, mine bool) {
	if o.GetKind() == borgpb.Labelled_LABELLED_MACHINE {
		return "", "", false
	}
	return o.GetUser(), o.GetName(), true
}

// labelsBegan refuses what is about labels alone in a cell that does not know it yet.
func labelsBegan(c *cell.Cell, op *borgpb.Op) *borgpb.Refusal {
	if format := c.Format(); format < cell.FormatLabels && (op.GetSetLabels() != nil || op.GetSetLabelPolicy() != nil) {
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_STATE, "", "the cell is of format %d, and changes labels alone from format %d on: it is raised when all replicas run a build that knows that", format, cell.FormatLabels)
	}
	return nil
}
