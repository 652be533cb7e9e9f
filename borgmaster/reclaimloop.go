package borgmaster

import (
	"context"
	"sync"

	"borg/borgmaster/cell"
	"borg/borgmaster/reclaim"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// reclaimLoop is the shell around what the elected master does about
// reservations: it brings in what link shards were told, looks at the cell, and
// proposes.
type reclaimLoop struct {
	m *Master

	// mu is taken inside View and never around it.
	mu sync.Mutex
	// Guarded by mu.
	core *reclaim.Core
}

// Run works while this replica is elected, until ctx ends.
func (r *reclaimLoop) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	defer r.follow(LogState{})
	rounds(ctx, dutyTick, reclaimBudget, func() {
		state := r.m.cfg.Log.State()
		r.follow(state)
		if !state.Ready {
			return
		}
		if op := r.look(); op != nil {
			running.Go(func() { r.propose(ctx, state.Term, op) })
		}
	})
}

// follow begins or ends the work with this replica's election.
func (r *reclaimLoop) follow(state LogState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !state.Ready && r.core.Term() != 0:
		r.core.Deposed()
	case state.Ready && r.core.Term() != state.Term:
		r.core.Elected(state.Term)
	}
}

// hear takes in what a link shard was told. What comes before this replica has
// begun is told again.
func (r *reclaimLoop) hear(usage []*borgrpc.MachineUsage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core.Hear(usage)
}

func (r *reclaimLoop) look() (op *borgpb.Op) {
	r.m.cfg.Log.View(func(c *cell.Cell) {
		r.mu.Lock()
		defer r.mu.Unlock()
		op = r.core.Look(c)
	})
	return op
}

// propose has an op logged. One that is not is found again.
func (r *reclaimLoop) propose(ctx context.Context, term uint64, op *borgpb.Op) {
	ctx, cancel := context.WithTimeout(ctx, dutyTimeout)
	defer cancel()
	op.Principal = ownOp
	result, err := r.m.cfg.Log.Propose(ctx, op)
	if err == nil && result.GetRefusal() != nil {
		err = refusalError(result.Refusal)
	}
	if err != nil && ctx.Err() == nil {
		r.m.cfg.Logger.Warn("reservations were not logged", "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.core.Term() == term {
		r.core.Proposed()
	}
}

// fillTasks says what tasks use, as far as it was heard lately.
func (r *reclaimLoop) fillTasks(c *cell.Cell, tasks []*borgpb.Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range tasks {
		uid, err := cell.ParseUID(t.GetMeta().GetUid())
		if t.GetStatus().GetState() == borgpb.State_STATE_RUNNING && err == nil {
			t.Status.Used = r.core.Used(c.TimeNs(), t.Status.Machine, cell.CopyID{Job: uid, Index: t.Index, Attempt: t.Status.Attempt})
		}
	}
}

// fillAllocs says what all in allocs uses, as far as it was heard lately. In one in which
// nothing is that is nothing.
func (r *reclaimLoop) fillAllocs(c *cell.Cell, allocs []*borgpb.Alloc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range allocs {
		switch st := a.Status; {
		case st.GetState() != borgpb.State_STATE_RUNNING:
		case len(st.Tasks) == 0:
			st.Measured = &borgpb.Used{}
		default:
			st.Measured = r.core.UsedIn(c.TimeNs(), st.Machine, cell.TaskID{Job: keyOf(a.Meta), Index: a.Index}.String())
		}
	}
}

// fillMachines says what the copies on machines use together.
func (r *reclaimLoop) fillMachines(c *cell.Cell, machines []*borgpb.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range machines {
		m.Status.Used = r.core.UsedOn(c.TimeNs(), m.GetMeta().GetName())
	}
}
