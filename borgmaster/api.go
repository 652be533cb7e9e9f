package borgmaster

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/tell/hostpath"
)

// masterAPI serves MasterService on every replica.
type masterAPI struct {
	borgrpc.UnimplementedMasterServiceServer
	m *Master
}

// Mutate proposes one op in the caller's name.
func (a *masterAPI) Mutate(ctx context.Context, req *borgrpc.MutateRequest) (*borgrpc.MutateResponse, error) {
	result, err := a.m.mutate(ctx, req.GetOp())
	if err != nil {
		return nil, err
	}
	return &borgrpc.MutateResponse{Result: result, Elected: a.m.elected(), Replica: a.m.cfg.Replica}, nil
}

// mutate proposes an op that a user asked for, on the elected master. An op
// with a request id may be tried again when its fate is not known: the cell
// answers a repeated id from memory.
func (m *Master) mutate(ctx context.Context, asked *borgpb.Op) (*borgpb.Result, error) {
	done, err := m.opTurn(ctx, asked)
	if err != nil {
		return nil, err
	}
	r := m.malformed(asked)
	done()
	if r != nil {
		m.noteRefusal(ctx, asked, r)
		return &borgpb.Result{Refusal: r}, nil
	}
	leave, err := m.enterWrite(door.Caller(ctx), asked)
	if err != nil {
		if !isForwarded(ctx) {
			m.noteRefusal(ctx, asked, refusal(borgpb.RefusalKind_REFUSAL_KIND_LIMIT, "", "%s", status.Convert(err).Message()))
		}
		return nil, err
	}
	defer leave()
	result, err := m.mutateOnElected(ctx, asked)
	if status.Code(err) == codes.ResourceExhausted && !isForwarded(ctx) {
		m.noteRefusal(ctx, asked, refusal(borgpb.RefusalKind_REFUSAL_KIND_LIMIT, "", "%s", status.Convert(err).Message()))
	}
	return result, err
}

// mutateOnElected is mutate once the op was looked at.
func (m *Master) mutateOnElected(ctx context.Context, asked *borgpb.Op) (*borgpb.Result, error) {
	if isForwarded(ctx) || !admitted(ctx) {
		return m.proposeOnElected(ctx, asked)
	}
	return m.admit.write(door.Caller(ctx).User(), cell.Cost(asked), func() (*borgpb.Result, error) {
		return m.proposeOnElected(ctx, asked)
	})
}

func (m *Master) proposeOnElected(ctx context.Context, asked *borgpb.Op) (*borgpb.Result, error) {
	return onElected(ctx, m, true,
		func(ctx context.Context) (*borgpb.Result, error) { return m.propose(ctx, asked) },
		func(ctx context.Context, conn *grpc.ClientConn) (*borgpb.Result, error) {
			resp, err := borgrpc.NewMasterServiceClient(conn).Mutate(ctx, &borgrpc.MutateRequest{Op: asked})
			if status.Code(err) == codes.ResourceExhausted {
				m.admit.refusedElsewhere(door.Caller(ctx).User(), err, m.hasWork(asked))
			}
			return resp.GetResult(), err
		})
}

// admitted: the caller is one of those who are asked to come back later.
func admitted(ctx context.Context) bool {
	role := door.Caller(ctx).Role
	return role == identity.User || role == identity.Task
}

// place proposes a user's op, once it has its place in the log. It reports whether the op may be
// in the log.
func (m *Master) place(ctx context.Context, op *borgpb.Op) (result *borgpb.Result, logged bool, err error) {
	leave := func(bool) {}
	if admitted(ctx) {
		if leave, err = m.admit.place(ctx, door.Caller(ctx).User(), cell.Cost(op)); err != nil {
			return nil, false, err
		}
	}
	result, err = m.cfg.Log.Propose(ctx, op)
	leave(err == nil)
	return result, !errors.Is(err, ErrNotElected) && !errors.Is(err, ErrOverloaded), err
}

// malformed says what of an op can be refused without a look at the cell; nil:
// nothing.
func (m *Master) malformed(op *borgpb.Op) *borgpb.Refusal {
	if op.GetRequestId() == "" {
		r := refusal(borgpb.RefusalKind_REFUSAL_KIND_INVALID, "", "a mutation needs a request id, the same for all its retries")
		r.Field = "request_id"
		return r
	}
	if set := op.GetSetMachine(); set != nil {
		if r := factsOf(set.GetName(), slices.Collect(maps.Keys(set.GetSetAttributes())), set.GetRemoveAttributes()); r != nil {
			return r
		}
	}
	if r := cmp.Or(tooLarge(op), tooMany(op)); r != nil {
		return r
	}
	spec := specIn(op)
	job, _ := spec.(*borgpb.JobSpec)
	if r := checkCronTimes(job); r != nil {
		return r
	}
	if r := checkTexts(op, spec); r != nil {
		return r
	}
	return m.checkGateServer(job)
}

// maxOpBytes is what fits into a log entry of 1 MiB, with room for its head and
// for who asks.
const maxOpBytes = 1<<20 - 1<<10

// overloadedRetry is when another try is worth it after the log itself was full.
const overloadedRetry = 500 * time.Millisecond

// tooMany refuses an op of so many elements that decoding it on every replica takes longer
// than its bytes tell.
func tooMany(op *borgpb.Op) *borgpb.Refusal {
	if cell.Elements(op) > cell.MaxOpElements {
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_LIMIT, "", "the op has more than %d texts, entries and messages; give large lists of arguments or variables to the tasks in a file", cell.MaxOpElements)
	}
	return nil
}

func tooLarge(op *borgpb.Op) *borgpb.Refusal {
	if n := proto.Size(op); n > maxOpBytes {
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_LIMIT, "", "the op has %d bytes; %d fit into the log", n, maxOpBytes)
	}
	return nil
}

// GetCell says how this replica sees the cell; it works with nobody elected.
func (a *masterAPI) GetCell(ctx context.Context, _ *borgrpc.GetCellRequest) (*borgrpc.GetCellResponse, error) {
	m := a.m
	state := m.cfg.Log.State()
	resp := &borgrpc.GetCellResponse{
		CellName: m.cfg.CellName, Replica: state.Replica, Elected: state.Elected, Term: state.Term,
		AppliedIndex: state.Applied, CommitIndex: state.Commit,
		Members: m.cfg.Members.Members(), Learners: m.cfg.Members.Learners(),
		SchedulerConnected: m.schedulerConnected(), Build: m.cfg.Build,
	}
	if m.cfg.Simulated != nil {
		resp.Simulated = m.cfg.Simulated()
	}
	if resp.Reach = m.duty.reach(); resp.Reach == nil {
		resp.Reach = m.shard.Stats().Reach
	}
	m.cfg.Log.View(func(c *cell.Cell) {
		describeCell(resp, c, m.lens(ctx, c), door.Caller(ctx).User())
		// The figures are of this index, which may be later than the state above.
		resp.AppliedIndex = max(state.Applied, c.Index())
		resp.CommitIndex = max(state.Commit, resp.AppliedIndex)
	})
	return resp, nil
}

// grpcError is the function of that name, save that whatever goes wrong in a replica that
// stops is worth another try on another one.
func (m *Master) grpcError(err error) error {
	told := grpcError(err)
	if status.Code(told) == codes.Internal && m.isStopping() {
		return errStopping
	}
	if _, ok := status.FromError(err); !ok && status.Code(told) == codes.Internal {
		return m.internal(err)
	}
	return told
}

// grpcError puts what can go wrong below the API into codes: Unavailable means
// that another try, perhaps on another replica, may succeed.
func grpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, ErrNotElected), errors.Is(err, ErrUnknownOutcome), errors.Is(err, ErrStopped):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, ErrNotKept), errors.Is(err, ErrNoMember):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, ErrOverloaded):
		return door.TooMuch(err.Error(), overloadedRetry)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Internal, hostpath.Text(err))
}

// internal is an error of this machine's, told without its paths. The log has them.
func (m *Master) internal(err error) error {
	return status.Error(codes.Internal, m.withoutPaths(err))
}

// withoutPaths is an error as users are told it.
func (m *Master) withoutPaths(err error) string {
	text := m.cfg.HostPaths.Hide(hostpath.Text(err))
	if text != err.Error() {
		// By what is left of it: that has no path of a request's own.
		if others, ok := m.repeated.Allow(text, time.Now()); ok {
			m.cfg.Logger.Warn("users are told of an error without its paths", "err", err, "others", others)
		}
	}
	return text
}

// refusalError is a refusal as an error, where an answer has no place for it.
func refusalError(r *borgpb.Refusal) error {
	if r == nil {
		return nil
	}
	code := codes.Internal
	switch r.Kind {
	case borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, borgpb.RefusalKind_REFUSAL_KIND_INVALID:
		code = codes.InvalidArgument
	case borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND:
		code = codes.NotFound
	case borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS:
		code = codes.AlreadyExists
	case borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, borgpb.RefusalKind_REFUSAL_KIND_STALE:
		code = codes.Aborted
	case borgpb.RefusalKind_REFUSAL_KIND_NO_FIT, borgpb.RefusalKind_REFUSAL_KIND_CONSTRAINT,
		borgpb.RefusalKind_REFUSAL_KIND_STATE, borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD:
		code = codes.FailedPrecondition
	case borgpb.RefusalKind_REFUSAL_KIND_QUOTA, borgpb.RefusalKind_REFUSAL_KIND_LIMIT:
		code = codes.ResourceExhausted
	case borgpb.RefusalKind_REFUSAL_KIND_PERMISSION:
		code = codes.PermissionDenied
	}
	text := r.Message
	if r.Object != "" {
		text = r.Object + ": " + text
	}
	return status.Error(code, text)
}
