package borgmaster

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"borg/borgmaster/linkshard"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// How long a borglet that is to be added is tried.
	describeTimeout = 5 * time.Second
	// How long a second replica tries a machine before it calls it unreachable.
	probeTimeout = time.Second
)

// AddMachine asks the borglet at an address what machine it is and takes it
// into the cell.
func (a *masterAPI) AddMachine(ctx context.Context, req *borgrpc.AddMachineRequest) (*borgrpc.AddMachineResponse, error) {
	m := a.m
	op := &borgpb.Op{RequestId: req.GetRequestId(), RequestWallNs: req.GetRequestWallNs(), Command: req.GetCommand(), Reason: req.GetReason()}
	add := &borgpb.AddMachine{Name: req.GetName(), Labels: req.GetLabels()}
	op.Op = &borgpb.Op_AddMachine{AddMachine: add}
	// Before the borglet is asked: strangers make no master dial.
	var r *borgpb.Refusal
	if err := m.forAdmins(door.Caller(ctx)); err != nil {
		r = refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "%s", status.Convert(err).Message())
	} else {
		r = factsOf(req.GetName(), slices.Collect(maps.Keys(req.GetAttributes())))
	}
	if r != nil {
		m.noteRefusal(ctx, op, r)
		return &borgrpc.AddMachineResponse{Result: &borgpb.Result{Refusal: r}}, nil
	}
	is, err := m.introduce(ctx, req.GetName(), req.GetAddr())
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "no borglet answers at %s: %s; is it running there, and can this master reach it?",
			req.GetAddr(), door.Reason(err))
	}
	if add.Name == "" {
		add.Name = is.GetName()
	}
	if r := m.belongsElsewhere(add.Name, req.GetAddr(), is.GetCellId()); r != nil {
		return &borgrpc.AddMachineResponse{Result: &borgpb.Result{Refusal: r}, Name: add.Name}, nil
	}
	add.Spec = is.GetSpec()
	if add.Spec == nil {
		add.Spec = &borgpb.MachineSpec{}
	}
	add.Spec.Addr = req.GetAddr()
	if add.Spec.Attributes == nil {
		add.Spec.Attributes = map[string]string{}
	}
	maps.Copy(add.Spec.Attributes, req.GetAttributes())
	result, err := m.mutate(ctx, op)
	if err != nil {
		return nil, err
	}
	return &borgrpc.AddMachineResponse{Result: result, Name: add.Name}, nil
}

// factsOf refuses attributes on which only the machine's borglet has a say: its
// next poll would undo what is asked for.
func factsOf(machine string, keys ...[]string) *borgpb.Refusal {
	asked := slices.Sorted(slices.Values(slices.Concat(keys...)))
	for _, key := range asked {
		if linkshard.IsFact(key) {
			return refusal(borgpb.RefusalKind_REFUSAL_KIND_INVALID, machine,
				"the borglet of each machine says what its %s is, and would undo this at its next poll; choose another name for the attribute", key)
		}
	}
	return nil
}

func (m *Master) belongsElsewhere(name, addr, cellID string) *borgpb.Refusal {
	if cellID == "" || cellID == m.cellID {
		return nil
	}
	return refusal(borgpb.RefusalKind_REFUSAL_KIND_STATE, name,
		"the borglet at %s obeys another cell, %s; this one is %s", addr, cellID, m.cellID)
}

// introduce asks a borglet that is not in the cell yet what machine it is. Its
// certificate says which one; an empty name is any.
func (m *Master) introduce(ctx context.Context, name, addr string) (*borgrpc.DescribeResponse, error) {
	borglet, hangUp, err := m.dialBorglet(name, addr)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	var from peer.Peer
	is, err := borglet.Describe(ctx, &borgrpc.DescribeRequest{}, grpc.Peer(&from))
	if err != nil || m.cfg.Borglets != nil {
		// Who is found by name needs no proof of it.
		return is, err
	}
	if proven := door.Callee(&from).ID; is.GetName() != proven {
		return nil, status.Errorf(codes.FailedPrecondition, "it calls itself %q and its certificate is that of machine %s", is.GetName(), proven)
	}
	return is, nil
}

// probe tries a machine once and says what came of it.
func (m *Master) probe(ctx context.Context, machine, addr string) *borgrpc.ProbeResponse {
	borglet, err := m.borglet(machine, addr, m.conns.outOfTurn)
	if err != nil {
		return &borgrpc.ProbeResponse{Error: m.withoutPaths(err)}
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	// One that has failed before is being made anew.
	if _, err := borglet.Describe(ctx, &borgrpc.DescribeRequest{}, grpc.WaitForReady(true)); err != nil {
		return &borgrpc.ProbeResponse{Error: door.Reason(err)}
	}
	return &borgrpc.ProbeResponse{Reached: true}
}

// probeFrom has a replica try a machine. ok is false when that replica did not
// answer, so that nothing was learnt.
func (m *Master) probeFrom(ctx context.Context, replica uint64, machine, addr string, term uint64) (resp *borgrpc.ProbeResponse, ok bool) {
	if replica == m.cfg.Log.State().Replica {
		return m.probe(ctx, machine, addr), true
	}
	conn, err := m.replicaConn(replica)
	if err != nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*probeTimeout)
	defer cancel()
	resp, err = borgrpc.NewReplicaServiceClient(conn).Probe(ctx, &borgrpc.ProbeRequest{Machine: machine, Addr: addr, Term: term}, grpc.WaitForReady(false))
	return resp, err == nil
}
