package borgmaster

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/admission"
	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// maxValidated is how many ops one request may ask about.
const maxValidated = 256

// Validate predicts what Mutate would answer, by the same checks on the cell as it is now, and
// puts nothing into the log.
func (a *masterAPI) Validate(ctx context.Context, req *borgrpc.ValidateRequest) (*borgrpc.ValidateResponse, error) {
	if n := len(req.GetOps()); n < 1 || n > maxValidated {
		return nil, status.Errorf(codes.InvalidArgument, "%d ops; want 1 to %d", n, maxValidated)
	}
	w := a.m.walks(ctx)
	defer w.rest()
	work := 0
	for _, op := range req.Ops {
		if err := w.step(); err != nil {
			return nil, err
		}
		work += cell.ReadWork(op)
	}
	w.rest()
	if work > admission.MaxWork {
		return nil, status.Errorf(codes.InvalidArgument, "to read and merge the specs of the %d ops counts as %d tasks, at most %d may be asked about at once; ask about fewer", len(req.Ops), work, admission.MaxWork)
	}
	if err := a.m.chargeWork(ctx, work); err != nil {
		return nil, err
	}
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp, err := a.m.validate(ctx, req)
	if err != nil || resp.Refusal == nil || isForwarded(ctx) && !a.m.cfg.Log.State().Ready || !a.m.behind() {
		return resp, err
	}
	// The elected master knows whether this refusal is good for a moment only.
	return onElected(ctx, a.m, true,
		func(ctx context.Context) (*borgrpc.ValidateResponse, error) {
			var soon error
			a.m.cfg.Log.View(func(c *cell.Cell) {
				if a.m.rises(c) {
					soon = aboutToRaise(c.Format())
				}
			})
			resp, err := a.m.validate(ctx, req)
			if err == nil && resp.Refusal != nil {
				err = soon
			}
			return resp, err
		},
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.ValidateResponse, error) {
			return borgrpc.NewMasterServiceClient(conn).Validate(ctx, req)
		})
}

// behind reports whether the cell's format is older than this build's.
func (m *Master) behind() (behind bool) {
	m.cfg.Log.View(func(c *cell.Cell) { behind = c.Format() < c.BuildFormat() })
	return behind
}

// validate asks this replica's cell about each op, piece by piece: a request may take much time, and
// what the log waits for must find a processor meanwhile.
func (m *Master) validate(ctx context.Context, req *borgrpc.ValidateRequest) (*borgrpc.ValidateResponse, error) {
	var trial cell.Trial
	w := m.walks(ctx)
	defer w.rest()
	for i, op := range req.Ops {
		r, err := m.try(ctx, w, &trial, op)
		if err != nil {
			return nil, err
		}
		if r != nil {
			return &borgrpc.ValidateResponse{Refusal: r, Refused: uint32(i)}, nil
		}
	}
	return &borgrpc.ValidateResponse{}, nil
}

// try returns the refusal that the caller would get for an op; nil if it would be done.
func (m *Master) try(ctx context.Context, w *walk, trial *cell.Trial, asked *borgpb.Op) (r *borgpb.Refusal, err error) {
	if err := w.step(); err != nil {
		return nil, err
	}
	if r := m.malformed(asked); r != nil {
		return r, nil
	}
	m.cfg.Log.View(func(c *cell.Cell) {
		if err = m.stillBelieves(ctx, c); err == nil {
			r = m.gate.try(c, trial, door.Caller(ctx), asked)
		}
	})
	return r, err
}

// try asks the gate and the cell, as a mutation would.
func (g *Gate) try(c *cell.Cell, trial *cell.Trial, caller identity.Name, asked *borgpb.Op) *borgpb.Refusal {
	op, r := g.Admit(c, caller, asked, time.Now().UnixNano())
	if r != nil {
		return r
	}
	return trial.Check(c, op)
}
