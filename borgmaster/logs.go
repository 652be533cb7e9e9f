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
	from, err := a.m.findCopy(req)
	if err != nil {
		return err
	}
	borglet, hangUp, err := a.m.dialBorglet(from.machine, from.addr)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer hangUp()
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
	log, err := borglet.ReadLog(ctx, &borgrpc.ReadLogRequest{
		Copy: from.copy, Stream: req.GetStream(), Follow: req.GetFollow(), TailBytes: req.GetTailBytes(),
	}, grpc.WaitForReady(false))
	for err == nil {
		var chunk *borgrpc.ReadLogResponse
		if chunk, err = log.Recv(); err == nil {
			err = stream.Send(&borgrpc.LogsResponse{Data: chunk.GetData(), Stream: chunk.GetStream()})
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
}

func (m *Master) findCopy(req *borgrpc.LogsRequest) (place copyPlace, err error) {
	key := cell.JobKey{User: req.GetUser(), Name: req.GetName()}
	place.task = cell.TaskID{Job: key, Index: req.GetIndex()}
	m.cfg.Log.View(func(c *cell.Cell) {
		j := c.Job(key)
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
