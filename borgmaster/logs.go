package borgmaster

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// Logs passes on what a copy of a task wrote, from the borglet that has it.
func (a *masterAPI) Logs(req *borgrpc.LogsRequest, stream borgrpc.MasterService_LogsServer) error {
	leave, err := a.m.enterStream(door.Caller(stream.Context()))
	if err != nil {
		return err
	}
	defer leave()
	if err := a.m.readIndex(stream.Context()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	// A log that is followed must not hold up a replica that stops. Ends with
	// this call.
	go func() {
		select {
		case <-a.m.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	if req.GetPrevious() {
		return a.m.previousLog(ctx, req, stream.Send)
	}
	from, err := a.m.findCopy(ctx, req)
	if err != nil {
		return err
	}
	return a.m.passLog(ctx, from, req, 0, stream.Send)
}

// previousLog passes on what the run before the last one wrote: one of the same
// copy, or else the last of the copy before it.
func (m *Master) previousLog(ctx context.Context, req *borgrpc.LogsRequest, send func(*borgrpc.LogsResponse) error) error {
	if req.GetFollow() {
		return status.Error(codes.InvalidArgument, "the run before has ended; there is nothing to follow")
	}
	from, err := m.findCopy(ctx, req)
	if err != nil {
		return err
	}
	// Of the current copy, the run before; it may not have begun yet.
	err = m.passLog(ctx, from, req, 2, send)
	if code := status.Code(err); code != codes.OutOfRange && code != codes.NotFound {
		return err
	}
	before, ok := m.copyBefore(from)
	if !ok {
		return status.Errorf(codes.NotFound, "task %s has no run before attempt %d: %s", from.task, from.copy.GetAttempt(), status.Convert(err).Message())
	}
	if before.addr == "" {
		return status.Errorf(codes.FailedPrecondition, "the log of attempt %d of task %s was on machine %s, which is no longer in the cell",
			before.copy.GetAttempt(), before.task, before.machine)
	}
	return m.passLog(ctx, before, req, 1, send)
}

// copyBefore is the newest copy of a task that is older than one of it.
func (m *Master) copyBefore(one copyPlace) (before copyPlace, ok bool) {
	m.cfg.Log.View(func(c *cell.Cell) {
		j := c.Job(one.task.Job)
		if j == nil {
			return
		}
		t := j.Task(one.task.Index)
		if t == nil {
			return
		}
		// Newest first.
		for p := range t.Past() {
			if p.Attempt() < one.copy.GetAttempt() {
				before.task, before.machine, ok = one.task, p.Machine().Name(), true
				before.copy = &borgrpc.CopyID{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt()}
				break
			}
		}
		if machine := c.Machine(before.machine); ok && machine != nil {
			before.addr = machine.Addr()
		}
	})
	return before, ok
}

// passLog passes on what one copy wrote. run is as in ReadLogRequest.
func (m *Master) passLog(ctx context.Context, from copyPlace, req *borgrpc.LogsRequest, run uint32, send func(*borgrpc.LogsResponse) error) error {
	borglet, leave, err := m.streamTo(door.Caller(ctx), from.machine, from.addr)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer leave()
	// The stream ends with this call; the connection may go on.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log, err := borglet.ReadLog(ctx, &borgrpc.ReadLogRequest{
		Copy: from.copy, Stream: req.GetStream(), Follow: req.GetFollow(), TailBytes: req.GetTailBytes(),
		SinceWallNs: req.GetSinceWallNs(), Times: req.GetTimes() || run > 0, FromOffset: req.GetFromOffset(), Run: run,
	}, grpc.WaitForReady(false))
	for err == nil {
		var chunk *borgrpc.ReadLogResponse
		chunk, err = log.Recv()
		if err == nil && run > 0 && len(chunk.GetData()) > 0 && chunk.GetWallNs() == 0 {
			// It has sent all runs.
			return status.Errorf(codes.FailedPrecondition, "the borglet of machine %s is older and does not tell the runs of %s apart; its whole log is there without --previous",
				from.machine, from.task)
		}
		if err == nil {
			// Meanwhile it may have been hidden from him.
			err = m.stillSees(ctx, from.task.Job)
		}
		if err == nil {
			err = send(&borgrpc.LogsResponse{
				Data: chunk.GetData(), Stream: chunk.GetStream(),
				WallNs: chunk.GetWallNs(), AtEnd: chunk.GetAtEnd(), LostBytes: chunk.GetLostBytes(), Offset: chunk.GetOffset(),
			})
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if status.Code(err) == codes.Unavailable {
		return status.Errorf(codes.FailedPrecondition, "machine %s at %s, which has the log of %s, does not answer: %s",
			from.machine, from.addr, from.task, door.Reason(err))
	}
	return err
}

// copyPlace is where a copy of a task is or was.
type copyPlace struct {
	task          cell.TaskID
	copy          *borgrpc.CopyID
	machine, addr string
	// The task has no copy that runs.
	idle bool
}

func (m *Master) findCopy(ctx context.Context, req *borgrpc.LogsRequest) (place copyPlace, err error) {
	key := cell.JobKey{User: req.GetUser(), Name: req.GetName()}
	place.task = cell.TaskID{Job: key, Index: req.GetIndex()}
	m.cfg.Log.View(func(c *cell.Cell) {
		j := m.job(ctx, c, key)
		if j == nil {
			err = noJob(key)
			return
		}
		t := j.Task(req.GetIndex())
		if t == nil {
			err = status.Errorf(codes.NotFound, "job %s has %d tasks; there is no task %d", key, j.NumTasks(), req.GetIndex())
			return
		}
		p := pickCopy(t, req.GetAttempt())
		switch {
		case p == nil && req.GetAttempt() == 0:
			err = status.Errorf(codes.NotFound, "task %s has never been placed, so it has no log", place.task)
		case p == nil:
			err = status.Errorf(codes.NotFound, "attempt %d of task %s is not known; see the attempts that are with tasks --attempts", req.GetAttempt(), place.task)
		default:
			place.machine = p.Machine().Name()
			place.copy = &borgrpc.CopyID{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt()}
			if machine := c.Machine(place.machine); machine == nil {
				err = status.Errorf(codes.FailedPrecondition, "the log of task %s was on machine %s, which is no longer in the cell", place.task, place.machine)
			} else {
				place.addr = machine.Addr()
			}
		}
	})
	return place, err
}

// pickCopy returns a copy by attempt; 0: the current or else the last one.
func pickCopy(t *cell.Task, attempt uint64) *cell.Copy {
	if p := t.Current(); p != nil && (attempt == 0 || p.Attempt() == attempt) {
		return p
	}
	for p := range t.Past() {
		if attempt == 0 || p.Attempt() == attempt {
			return p
		}
	}
	return nil
}
