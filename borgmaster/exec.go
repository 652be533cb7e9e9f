package borgmaster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// maxExecToldBytes bounds what a record of the audit tells of a program's arguments.
const maxExecToldBytes = 2 << 10

// execAPI serves ExecService on every replica.
type execAPI struct {
	borgrpc.UnimplementedExecServiceServer
	m *Master
}

// Exec passes on between whoever runs a program in a task and the borglet that has
// the task.
func (a *execAPI) Exec(stream borgrpc.ExecService_ExecServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	caller := door.Caller(ctx)
	leave, err := a.m.enterStream(caller)
	if err != nil {
		return err
	}
	defer leave()
	if err := a.m.readIndex(ctx); err != nil {
		return err
	}
	at, err := a.m.mayExec(caller, req)
	switch {
	case at.idle && status.Code(err) == codes.FailedPrecondition:
		return a.m.doesNotRun(ctx, at)
	case err != nil:
		return err
	}
	agent, done, err := a.m.streamTo(caller, at.machine, at.addr)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer done()
	// The program does not go on without a replica that stops. Ends with this call.
	go func() {
		select {
		case <-a.m.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	program, err := agent.ExecCopy(ctx, grpc.WaitForReady(false))
	if err == nil {
		err = program.Send(&borgrpc.ExecCopyRequest{Copy: at.copy, Program: req.GetProgram(), By: caller.ID})
	}
	if err == nil {
		// Ends with this call.
		go passInput(stream, program)
	}
	begun := false
	for err == nil || errors.Is(err, io.EOF) {
		// What the borglet said counts for more than that sending to it failed.
		var resp *borgrpc.ExecResponse
		if resp, err = program.Recv(); err != nil {
			break
		}
		begun = true
		if err = stream.Send(resp); err != nil {
			return err
		}
	}
	return a.m.execError(stream.Context(), ctx, at, req.GetAttempt(), begun, err)
}

// execRefusedHold is how long a caller waits for hearing that it starts programs too fast, or too
// many: it has its place for streams meanwhile.
const execRefusedHold = 500 * time.Millisecond

// execError says how a program's stream ended. call is the caller's context; ctx ends with it,
// or when this replica stops.
func (m *Master) execError(call, ctx context.Context, at copyPlace, attempt uint64, begun bool, err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case call.Err() == nil && ctx.Err() != nil:
		return status.Errorf(codes.Aborted, "replica %d, through which the program was run, stops; the program was ended, task %s goes on", m.cfg.Replica, at.task)
	case status.Code(err) == codes.Unavailable && begun:
		return status.Errorf(codes.Aborted, "the connection to machine %s broke; its borglet ends the program, and task %s goes on: %s", at.machine, at.task, door.Reason(err))
	case status.Code(err) == codes.Unavailable:
		return status.Errorf(codes.FailedPrecondition, "machine %s at %s, on which task %s runs, does not answer: %s", at.machine, at.addr, at.task, door.Reason(err))
	case status.Code(err) == codes.FailedPrecondition && !begun && attempt != 0:
		return status.Errorf(codes.FailedPrecondition, "attempt %d of task %s has no process on machine %s; next: borgcfg tasks --attempts %s", attempt, at.task, at.machine, at.task.Job)
	case status.Code(err) == codes.FailedPrecondition && !begun:
		// The borglet names the copy by the uid of its job.
		return m.doesNotRun(ctx, at)
	case status.Code(err) == codes.ResourceExhausted:
		// Whoever tries again at once is slowed down, not the machine.
		select {
		case <-ctx.Done():
		case <-time.After(execRefusedHold):
		}
		return status.Error(codes.FailedPrecondition, door.Reason(err))
	case status.Code(err) == codes.Unimplemented:
		// Another replica would hear the same.
		return status.Error(codes.FailedPrecondition, door.Reason(err))
	}
	return err
}

// passInput passes on what a caller sends.
func passInput(from borgrpc.ExecService_ExecServer, to borgrpc.BorgletService_ExecCopyClient) {
	for {
		req, err := from.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				_ = to.CloseSend()
			}
			return
		}
		if to.Send(&borgrpc.ExecCopyRequest{Input: req.GetInput()}) != nil {
			return
		}
	}
}

// errNoExec refuses an exec into a task of a simulated cell.
var errNoExec = status.Error(codes.FailedPrecondition, "the cell is simulated: its tasks have no processes beside which a program could run")

// mayExec finds the copy of a task that runs, and says whether somebody may go into
// it: into what is his own, and admins into everything. Both are in the audit.
func (m *Master) mayExec(caller identity.Name, req *borgrpc.ExecRequest) (place copyPlace, err error) {
	key := cell.JobKey{User: req.GetUser(), Name: req.GetName()}
	place.task = cell.TaskID{Job: key, Index: req.GetIndex()}
	m.cfg.Log.View(func(c *cell.Cell) { err = runningCopy(c, &place, req.GetAttempt()) })
	if key.User != caller.ID && !m.isAdmin(caller) {
		// Whether it is there is nobody else's to learn.
		err = status.Errorf(codes.PermissionDenied, "it belongs to user %q and you are %q; to go into what is another's, %s", key.User, caller.ID, m.needsAdmin(caller))
	}
	if err == nil && m.cfg.Simulated != nil {
		err = errNoExec
	}
	if m.cfg.Audit != nil {
		record := &borgpb.AuditRecord{Verb: "exec", Object: place.task.String(), Command: execTold(req.GetProgram().GetArgs())}
		var r *borgpb.Refusal
		if err != nil {
			kind := borgpb.RefusalKind_REFUSAL_KIND_STATE
			if status.Code(err) == codes.PermissionDenied {
				kind = borgpb.RefusalKind_REFUSAL_KIND_PERMISSION
			}
			r = refusal(kind, "", "%s", status.Convert(err).Message())
		}
		m.note(record, caller, r)
		if err != nil {
			err = door.Told(err)
		}
	}
	return place, err
}

// runningCopy fills in where a task runs, or that copy of it in quarantine.
func runningCopy(c *cell.Cell, place *copyPlace, attempt uint64) error {
	j := c.Job(place.task.Job)
	if j == nil {
		return noJob(place.task.Job)
	}
	t := j.Task(place.task.Index)
	if t == nil {
		return status.Errorf(codes.NotFound, "job %s has %d tasks; there is no task %d", place.task.Job, j.NumTasks(), place.task.Index)
	}
	p := t.Current()
	if attempt != 0 {
		p = pickCopy(t, attempt)
	}
	switch {
	case p == nil && attempt == 0:
		place.idle = true
		return status.Errorf(codes.FailedPrecondition, "task %s does not run: it is %s", place.task, stateWord(t.State()))
	case p == nil:
		return status.Errorf(codes.NotFound, "attempt %d of task %s is not known; see the attempts that are with tasks --attempts", attempt, place.task)
	case !p.Current() && !p.Quarantined() && p.Live():
		return status.Errorf(codes.FailedPrecondition, "attempt %d of task %s is stopping, or on a machine that cannot be reached", attempt, place.task)
	case !p.Current() && !p.Quarantined():
		return status.Errorf(codes.FailedPrecondition, "attempt %d of task %s has ended; its log may still be there: borgcfg logs --attempt %d", attempt, place.task, attempt)
	}
	place.machine = p.Machine().Name()
	place.copy = &borgrpc.CopyID{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt()}
	place.addr = p.Machine().Addr()
	// What the log has may be behind what runs, so it is the borglet that decides; but
	// what has not been heard of for long is not asked.
	if p.State() == borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE {
		return status.Errorf(codes.FailedPrecondition, "machine %s, on which task %s was, cannot be reached", place.machine, place.task)
	}
	return nil
}

// doesNotRun is the refusal to run a program in a task that has no process: how the task is,
// why, and what to type next.
func (m *Master) doesNotRun(ctx context.Context, at copyPlace) error {
	key := at.task.Job
	var st *borgpb.TaskStatus
	m.cfg.Log.View(func(c *cell.Cell) {
		if j := c.Job(key); j != nil {
			st = c.TaskProto(j, at.task.Index, false).GetStatus()
		}
	})
	how, why, next := "gone", "", "borgcfg tasks "+key.String()
	switch st.GetState() {
	case borgpb.State_STATE_PENDING:
		how, next = "pending", "borgcfg why "+at.task.String()
		resp, err := (&masterAPI{m: m}).Why(ctx, &borgrpc.WhyRequest{User: key.User, Name: key.Name, Index: at.task.Index})
		if why = resp.GetSummary(); err != nil {
			why = "the elected master does not say why: " + door.Reason(err)
		}
	case borgpb.State_STATE_DEAD:
		how, why, next = "dead", st.GetReason(), "borgcfg logs "+at.task.String()
		switch exit := st.GetLastExit(); {
		case why != "" || exit == nil || exit.Unknown:
		case exit.Signal != 0:
			why = fmt.Sprintf("its last process ended by signal %d", exit.Signal)
		default:
			why = fmt.Sprintf("its last process ended with exit code %d", exit.Code)
		}
	case borgpb.State_STATE_RUNNING:
		how = strings.ToLower(strings.TrimPrefix(st.GetAttemptState().String(), "ATTEMPT_STATE_")) + " on machine " + st.GetMachine()
		why, next = st.GetReason(), "borgcfg logs "+at.task.String()
		if st.GetAttemptState() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
			how, why = "between two processes on machine "+st.GetMachine(), ""
		}
	}
	if why != "" {
		how += ": " + why
	}
	return status.Errorf(codes.FailedPrecondition, "task %s does not run: it is %s; next: %s", at.task, how, next)
}

func stateWord(s borgpb.State) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_"))
}

// execTold is a command line for people, each argument quoted that needs it.
func execTold(args []string) string {
	told := make([]string, len(args))
	for i, arg := range args {
		if told[i] = arg; arg == "" || strings.ContainsFunc(arg, func(r rune) bool { return r <= ' ' || r == '"' || r == '\'' || r > '~' }) {
			told[i] = fmt.Sprintf("%q", arg)
		}
	}
	text := strings.Join(told, " ")
	if len(text) > maxExecToldBytes {
		text = strings.ToValidUTF8(text[:maxExecToldBytes], "") + "..."
	}
	return text
}
