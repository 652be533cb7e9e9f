package borgmaster

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// maxSafeToDrain is how many machines are judged, or found, at most.
	maxSafeToDrain = 1_000
	// defaultSafeToDrain is how many are found unless more are asked for.
	defaultSafeToDrain = 20
)

// SafeToDrain tells which machines could be emptied now. The elected master's
// scheduler knows who would have a place elsewhere; while there is none, only what
// budgets say of machines that are named.
func (a *masterAPI) SafeToDrain(ctx context.Context, req *borgrpc.SafeToDrainRequest) (*borgrpc.SafeToDrainResponse, error) {
	if n := len(req.GetMachines()); n > maxSafeToDrain || req.GetCount() > maxSafeToDrain {
		return nil, status.Errorf(codes.InvalidArgument, "%d machines; at most %d at once", max(n, int(req.GetCount())), maxSafeToDrain)
	}
	pick, err := selector.Parse(req.GetSelector())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return onElected(ctx, a.m, true,
		func(ctx context.Context) (*borgrpc.SafeToDrainResponse, error) {
			return a.m.safeToDrain(ctx, req, pick)
		},
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.SafeToDrainResponse, error) {
			return borgrpc.NewMasterServiceClient(conn).SafeToDrain(ctx, req)
		})
}

func (m *Master) safeToDrain(ctx context.Context, req *borgrpc.SafeToDrainRequest, pick selector.Selector) (*borgrpc.SafeToDrainResponse, error) {
	if err := m.readIndex(ctx); err != nil {
		return nil, err
	}
	ask := &borgrpc.CheckDrainRequest{Machines: distinct(req.GetMachines())}
	var own *borgrpc.SafeToDrainResponse
	err := m.viewMuch(ctx, func(c *cell.Cell) error {
		if m.lens(ctx, c) != nil {
			// Counts, and that something blocks, are about the work of others.
			return status.Error(codes.PermissionDenied, "what could be drained tells of the work of all users, and in this cell you may see your own; ask an admin")
		}
		ask.MinIndex = c.Index()
		for _, name := range ask.Machines {
			if c.Machine(name) == nil {
				return status.Errorf(codes.NotFound, "there is no machine %s", name)
			}
		}
		own = drainByCell(c, ask.Machines)
		if len(ask.Machines) > 0 || req.GetSelector() == "" {
			return nil
		}
		for machine := range c.Machines() {
			if pick.Matches(machine.SelectorLabels()) {
				ask.Machines = append(ask.Machines, machine.Name())
			}
		}
		if len(ask.Machines) == 0 {
			return status.Errorf(codes.NotFound, "no machine has the labels or attributes %s", req.GetSelector())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(req.GetMachines()) == 0 {
		ask.Count = max(req.GetCount(), 1)
		if req.GetCount() == 0 {
			ask.Count = defaultSafeToDrain
		}
	}
	resp, err := m.checkDrain(ctx, ask)
	switch {
	case err == nil:
		return resp, nil
	case len(req.GetMachines()) == 0:
		return nil, status.Errorf(codes.Unavailable, "the scheduler does not answer (%s); name the machines to hear what budgets say of them", door.Reason(err))
	}
	own.Note = fmt.Sprintf("only budgets were looked at: the scheduler, which knows the places elsewhere, does not answer (%s)", door.Reason(err))
	return own, nil
}

// distinct returns the names in their order, each once.
func distinct(names []string) []string {
	seen := make(map[string]bool, len(names))
	var once []string
	for _, name := range names {
		if !seen[name] {
			seen[name] = true
			once = append(once, name)
		}
	}
	return once
}

// checkDrain asks the scheduler process.
func (m *Master) checkDrain(ctx context.Context, ask *borgrpc.CheckDrainRequest) (*borgrpc.SafeToDrainResponse, error) {
	scheduler, err := m.schedulerService()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	resp, err := scheduler.CheckDrain(ctx, ask)
	if err != nil {
		return nil, err
	}
	if resp.GetAnswer() == nil {
		return nil, status.Error(codes.Internal, "its answer is empty")
	}
	return resp.Answer, nil
}

// drainByCell says what budgets say of each machine by itself.
func drainByCell(c *cell.Cell, names []string) *borgrpc.SafeToDrainResponse {
	r := &borgrpc.SafeToDrainResponse{Index: c.Index()}
	for _, name := range names {
		machine := c.Machine(name)
		if machine == nil {
			continue
		}
		v := &borgrpc.DrainVerdict{Machine: name}
		for range machine.Allocs() {
			v.Allocs++
		}
		for p := range machine.Copies() {
			if p.Current() {
				v.Tasks++
			}
		}
		for _, h := range c.Blockers(machine, maxBlockersTold) {
			v.Blockers = append(v.Blockers, h.Proto(c))
		}
		r.Verdicts = append(r.Verdicts, v)
	}
	return r
}

// maxBlockersTold is how many tasks of a machine an answer names.
const maxBlockersTold = 64
