package borgmaster

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/borgmaster/duty"
	"borg/borgmaster/linkshard"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// ownOp is how a master names itself in the log, where an op without a user is
// the cell's own doing.
var ownOp = &borgpb.Principal{Role: borgpb.Role_ROLE_MASTER}

// replicaAPI serves ReplicaService.
type replicaAPI struct {
	borgrpc.UnimplementedReplicaServiceServer
	m *Master
}

// Report takes in what a replica's link shard found.
func (a *replicaAPI) Report(ctx context.Context, req *borgrpc.ReportRequest) (*borgrpc.ReportResponse, error) {
	if who := door.Caller(ctx); who.Replica() != req.GetReplica() {
		return nil, status.Errorf(codes.PermissionDenied, "%s reports for replica %d", who.Words(), req.GetReplica())
	}
	return a.m.report(ctx, req)
}

// Probe tries a machine once, for an elected master that wants a second
// opinion.
func (a *replicaAPI) Probe(ctx context.Context, req *borgrpc.ProbeRequest) (*borgrpc.ProbeResponse, error) {
	return a.m.probe(ctx, req.GetMachine(), req.GetAddr()), nil
}

// report is the elected master's side of Report.
func (m *Master) report(ctx context.Context, req *borgrpc.ReportRequest) (*borgrpc.ReportResponse, error) {
	if req.GetCellId() != m.cellID {
		return nil, status.Errorf(codes.FailedPrecondition, "replica %d is of cell %s, this is cell %s", req.GetReplica(), req.GetCellId(), m.cellID)
	}
	state := m.cfg.Log.State()
	if !state.Ready {
		return nil, notElected(state)
	}
	resp, err := m.duty.hear(req)
	if err != nil {
		return nil, err
	}
	m.reclaim.hear(req.GetUsage())
	m.volumeUse.hear(time.Now(), req.GetUsage())
	m.papers.hear(time.Now(), req.GetCertificates())
	resp.SchedulerConnected = m.schedulerConnected()
	if len(req.GetHeard().GetMachines()) > 0 {
		_, err = m.cfg.Log.Propose(ctx, &borgpb.Op{
			Principal: ownOp, Op: &borgpb.Op_HearMachines{HearMachines: req.Heard},
		})
		if err != nil {
			return nil, m.grpcError(err)
		}
	}
	if len(req.GetReports().GetMachines()) > 0 {
		if resp.Result, err = m.logReports(ctx, req); err != nil {
			return nil, m.grpcError(err)
		}
	}
	return resp, nil
}

// logReports puts a report into the log. That may take longer than a replica may
// be silent, and its shard says one thing at a time: while the call lasts, which
// ends with the caller's process, the caller is there.
func (m *Master) logReports(ctx context.Context, req *borgrpc.ReportRequest) (*borgpb.Result, error) {
	ticker := time.NewTicker(dutyTick)
	defer ticker.Stop()
	// It counts as it said; what it found is heard once.
	again := duty.ReportOf(req)
	again.Contacts, again.Unknown, again.SilentNs, again.Again = nil, nil, 0, true
	done := make(chan struct{})
	var hearing sync.WaitGroup
	defer hearing.Wait()
	defer close(done)
	hearing.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				m.duty.step(again)
			}
		}
	})
	return m.cfg.Log.Propose(ctx, &borgpb.Op{Principal: ownOp, Op: &borgpb.Op_Reports{Reports: req.Reports}})
}

// shardView is the master as its own link shard sees it.
type shardView struct{ m *Master }

func (v shardView) View(f func(c *cell.Cell)) { v.m.cfg.Log.View(f) }

func (v shardView) State() linkshard.State {
	s := v.m.cfg.Log.State()
	return linkshard.State{Replica: s.Replica, Elected: s.Elected, Term: s.Term, Applied: s.Applied, Commit: s.Commit}
}

// Report goes to the elected master, which may be this one.
func (v shardView) Report(ctx context.Context, req *borgrpc.ReportRequest) (*borgrpc.ReportResponse, error) {
	state := v.m.cfg.Log.State()
	if state.Ready || state.Elected != 0 && state.Elected != state.Replica {
		v.m.papers.tell(time.Now(), v.m.conns.certificates, req)
	}
	if state.Ready {
		return v.m.report(ctx, req)
	}
	if state.Elected == 0 || state.Elected == state.Replica {
		return nil, notElected(state)
	}
	conn, err := v.m.replicaConn(state.Elected)
	if err != nil {
		return nil, err
	}
	return borgrpc.NewReplicaServiceClient(conn).Report(ctx, req)
}

func (v shardView) Borglet(machine, addr string) (borgrpc.BorgletServiceClient, error) {
	return v.m.borglet(machine, addr, v.m.conns.inTurn)
}

func (v shardView) StandBy(machine, addr string) bool {
	return v.m.cfg.Borglets == nil && v.m.conns.standBy(v.m.conns.named(identity.Borglet, machine), addr)
}

func (v shardView) Connected(machine, addr string) bool {
	return v.m.cfg.Borglets != nil || v.m.conns.ready(v.m.conns.named(identity.Borglet, machine), addr)
}

// borglet finds one that is called again and again, over a connection of conns.
func (m *Master) borglet(machine, addr string, connect func(identity.Name, string) (*grpc.ClientConn, error)) (borgrpc.BorgletServiceClient, error) {
	if m.cfg.Borglets != nil {
		return m.cfg.Borglets.Borglet(machine, addr)
	}
	conn, err := connect(m.conns.named(identity.Borglet, machine), addr)
	if err != nil {
		return nil, err
	}
	return borgrpc.NewBorgletServiceClient(conn), nil
}

// dialBorglet connects to a borglet that is not in the cell yet; an empty name is any. The caller
// hangs up.
func (m *Master) dialBorglet(machine, addr string) (borglet borgrpc.BorgletServiceClient, hangUp func(), err error) {
	if m.cfg.Borglets != nil {
		borglet, err = m.cfg.Borglets.Borglet(machine, addr)
		return borglet, func() {}, err
	}
	conn, err := m.conns.dial(m.conns.named(identity.Borglet, machine), addr)
	if err != nil {
		return nil, nil, err
	}
	return borgrpc.NewBorgletServiceClient(conn), func() { conn.Close() }, nil
}

// streamTo finds the borglet of a machine for a stream of a caller, who calls leave after it.
func (m *Master) streamTo(caller identity.Name, machine, addr string) (borglet borgrpc.BorgletServiceClient, leave func(), err error) {
	if m.cfg.Borglets != nil {
		return m.dialBorglet(machine, addr)
	}
	conn, leave, err := m.streamConns.to(streamConnKey{caller, machine, addr}, func() (*grpc.ClientConn, error) {
		return m.conns.dial(m.conns.named(identity.Borglet, machine), addr)
	})
	if err != nil {
		return nil, nil, err
	}
	return borgrpc.NewBorgletServiceClient(conn), leave, nil
}
