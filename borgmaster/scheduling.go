package borgmaster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Records and entries are sent in messages of about this size.
	followChunkBytes = 512 << 10
	// Entries taken from the log at once.
	followEntries = 256
	// Schedulers that follow one master at most.
	maxFollowers = 16
	// A follower is told so often which machines are silent, if others are.
	silentEvery = time.Second
)

// schedulingAPI serves SchedulingService; it answers only while this replica
// is elected.
type schedulingAPI struct {
	borgrpc.UnimplementedSchedulingServiceServer
	m *Master
}

// Follow sends the whole cell once and then every entry as it is applied. It
// ends with Unavailable when this replica is no longer elected, and with
// OutOfRange when the follower has fallen behind what is held; in both cases
// the follower begins again.
func (a *schedulingAPI) Follow(req *borgrpc.FollowRequest, stream borgrpc.SchedulingService_FollowServer) error {
	m := a.m
	state := m.cfg.Log.State()
	if !state.Ready {
		return notElected(state)
	}
	defer m.loading.Add(-1)
	if m.loading.Add(1) > maxFollowers {
		return door.TooMuch(fmt.Sprintf("%d schedulers follow this master already", maxFollowers), time.Second)
	}
	after, err := sendRecords(m.cfg.Log, stream)
	if err != nil {
		return err
	}
	m.followers.Add(1)
	defer m.followers.Add(-1)
	m.cfg.Logger.Info("scheduler follows", "index", after, "scheduler", req.GetScheduler(), "build", req.GetBuild())
	defer m.cfg.Logger.Info("scheduler no longer follows")
	var silent []string
	looks := true
	look := time.NewTicker(silentEvery)
	defer look.Stop()
	for {
		applied, changed := m.applied.Wait(), m.stateChanged.Wait()
		if now := m.cfg.Log.State(); !now.Ready || now.Term != state.Term {
			return notElected(now)
		}
		select {
		case <-look.C:
			looks = true
		default:
		}
		if looks {
			looks = false
			if now := m.duty.silent(); !slices.Equal(now, silent) {
				silent = now
				if err := stream.Send(&borgrpc.FollowResponse{Silent: &borgrpc.SilentMachines{Names: now}}); err != nil {
					return err
				}
			}
		}
		entries, ok := m.cfg.Log.Entries(after, followEntries)
		if !ok {
			return status.Errorf(codes.OutOfRange, "entry %d is no longer held; load the cell anew", after+1)
		}
		if len(entries) > 0 {
			if after, err = sendEntries(entries, stream); err != nil {
				return err
			}
			continue
		}
		select {
		case <-applied:
		case <-changed:
		case <-look.C:
			looks = true
		case <-m.stopping:
			return errStopping
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// pile is records in a row, as many as go into one message. Copies of their own would be
// three allocations for each, while nothing is applied.
type pile struct {
	bytes []byte
	// Where each key ends, and each value.
	ends []int
}

func (p *pile) add(key, value []byte) {
	p.bytes = append(p.bytes, key...)
	p.ends = append(p.ends, len(p.bytes))
	p.bytes = append(p.bytes, value...)
	p.ends = append(p.ends, len(p.bytes))
}

func (p *pile) response() *borgrpc.FollowResponse {
	resp, from := &borgrpc.FollowResponse{}, 0
	for i := 0; i < len(p.ends); i += 2 {
		key, value := p.ends[i], p.ends[i+1]
		resp.Records = append(resp.Records, &borgrpc.Record{Key: p.bytes[from:key:key], Value: p.bytes[key:value:value]})
		from = value
	}
	return resp
}

// takeRecords copies all records. Nothing is applied meanwhile.
func takeRecords(c *cell.Cell) (piles []*pile) {
	var p *pile
	for key, value := range c.Records() {
		if p == nil || len(p.bytes)+len(key)+len(value) > followChunkBytes {
			p = &pile{bytes: make([]byte, 0, followChunkBytes)}
			piles = append(piles, p)
		}
		p.add(key, value)
	}
	return piles
}

// sendRecords sends the cell as it is and returns the index it stands for. The
// records are copied in one View, because they must be of one moment.
func sendRecords(log Log, stream borgrpc.SchedulingService_FollowServer) (uint64, error) {
	var piles []*pile
	last := &borgrpc.FollowResponse{RecordsEnd: true}
	log.View(func(c *cell.Cell) {
		piles = takeRecords(c)
		last.Index, last.CellId, last.Epoch = c.Index(), c.ID(), c.Epoch()
	})
	for i, p := range piles {
		if err := stream.Send(p.response()); err != nil {
			return 0, err
		}
		piles[i] = nil
	}
	if err := stream.Send(last); err != nil {
		return 0, err
	}
	return last.Index, nil
}

// sendEntries sends entries in messages of bounded size.
func sendEntries(entries []CommittedEntry, stream borgrpc.SchedulingService_FollowServer) (after uint64, err error) {
	resp, size := &borgrpc.FollowResponse{}, 0
	for i, e := range entries {
		resp.Entries = append(resp.Entries, &borgrpc.CommittedEntry{Index: e.Index, Term: e.Term, Data: e.Data})
		size += len(e.Data)
		after = e.Index
		if size >= followChunkBytes || i == len(entries)-1 {
			if err := stream.Send(resp); err != nil {
				return 0, err
			}
			resp, size = &borgrpc.FollowResponse{}, 0
		}
	}
	return after, nil
}

// Assign proposes a batch. It forwards nothing: a scheduler belongs to one
// elected master.
func (a *schedulingAPI) Assign(ctx context.Context, req *borgrpc.AssignRequest) (*borgrpc.AssignResponse, error) {
	result, err := a.propose(ctx, &borgpb.Op{Op: &borgpb.Op_Assign{Assign: req.GetAssign()}})
	if err != nil {
		return nil, err
	}
	return &borgrpc.AssignResponse{Result: result}, nil
}

// MoveTasks proposes a plan, as Assign does a batch.
func (a *schedulingAPI) MoveTasks(ctx context.Context, req *borgrpc.MoveTasksRequest) (*borgrpc.MoveTasksResponse, error) {
	result, err := a.propose(ctx, &borgpb.Op{Op: &borgpb.Op_MoveTasks{MoveTasks: req.GetMove()}})
	if err != nil {
		return nil, err
	}
	return &borgrpc.MoveTasksResponse{Result: result}, nil
}

// propose puts an op of a scheduler into the log, here or nowhere.
func (a *schedulingAPI) propose(ctx context.Context, op *borgpb.Op) (*borgpb.Result, error) {
	m := a.m
	if state := m.cfg.Log.State(); !state.Ready {
		return nil, notElected(state)
	}
	op.Principal = door.Principal(door.Caller(ctx))
	if r := tooLarge(op); r != nil {
		return &borgpb.Result{Refusal: r}, nil
	}
	result, err := m.cfg.Log.Propose(ctx, op)
	if err != nil {
		return nil, m.grpcError(err)
	}
	return result, nil
}

func notElected(state LogState) error {
	if state.Elected != 0 && state.Elected != state.Replica {
		return status.Errorf(codes.Unavailable, "replica %d is not elected; replica %d is", state.Replica, state.Elected)
	}
	return status.Errorf(codes.Unavailable, "replica %d is not elected", state.Replica)
}
