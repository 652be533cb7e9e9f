package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func tasks(s *session) error {
	req := &borgrpc.ListTasksRequest{Attempts: s.flag.Bool("attempts"), Machine: s.flag.String("machine"), Selector: s.flag.String("selector"), Used: s.out.wide() || s.out.machine()}
	if len(s.args) == 1 {
		n, err := s.job(s.args[0])
		if err != nil {
			return err
		}
		req.User, req.Name = n.user, n.name
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.ListAllTasks(s.ctx, req, 0)
	var missing *client.NotFoundError
	if errors.As(err, &missing) && req.Name != "" && req.Machine == "" {
		return s.noSuchJob(jobName{req.User, req.Name})
	}
	if errors.As(err, &missing) && req.Name == "" {
		return s.noSuchMachine(req.Machine)
	}
	if err != nil {
		return err
	}
	switch {
	case s.out.machine():
		return list(s.out, resp.Tasks)
	case s.out.format == "name":
		var names []string
		for _, t := range resp.Tasks {
			names = append(names, taskName(t.GetMeta().GetUser(), t.GetMeta().GetName(), t.GetIndex()))
		}
		return s.out.names(names)
	}
	if resp.GetOthers() > 0 {
		defer s.say("and %s of others on %s", plural(int(resp.Others), "task"), req.Machine)
	}
	if len(resp.Tasks) == 0 {
		s.progress("no tasks")
		return nil
	}
	return s.taskTable(resp.Tasks, req.Attempts)
}

// taskTable prints tasks, with earlier copies below each when they are asked
// for.
func (s *session) taskTable(tasks []*borgpb.Task, attempts bool) error {
	var t table
	head := []string{"TASK", "STATE", "COPY", "ATTEMPT", "RESTARTS", "MACHINE", "PORTS", "PID", "CHANGED", "LAST END", "REASON"}
	if s.out.wide() {
		head = append(head, "ALLOC", "FAILURES", "VERSION", "CPU USED", "CPU RESERVED", "CPU LIMIT", "MEM USED", "MEM RESERVED", "MEM LIMIT")
	}
	t.head(head...)
	for _, task := range tasks {
		st := task.GetStatus()
		row := []any{s.short(task.GetMeta().GetUser(), task.GetMeta().GetName()) + "/" + strconv.Itoa(int(task.GetIndex())),
			stateCell(st.GetState()), attemptCell(st.GetAttemptState()), number(st.GetAttempt()), st.GetRestarts(), st.GetMachine(),
			portsText(task), number(uint64(max(st.GetPid(), 0))), ago(s.now(), st.GetChangedWallNs()), endText(st.GetLastExit(), taskReason(st)), taskReason(st)}
		if s.out.wide() {
			row = append(row, st.GetAlloc(), st.GetFailures(), task.GetMeta().GetVersion())
			row = append(row, shareTexts(task)...)
		}
		t.add(row...)
		if !attempts {
			continue
		}
		for _, a := range st.GetAttempts() {
			if isLastOf(st, a) {
				continue // The row of the task tells of it.
			}
			row := []any{cell{"  earlier copy", dim}, "", attemptCell(a.GetState()), number(a.GetAttempt()), a.GetRestarts(), a.GetMachine(),
				"", "", ago(s.now(), a.GetEndedWallNs()), endText(a.GetExit(), a.GetReason()), attemptReason(a)}
			if s.out.wide() {
				row = append(row, a.GetAlloc(), "", "")
			}
			t.add(row...)
		}
	}
	return t.write(s.out, "")
}

// shareTexts is what a task uses, reserves and may use, of processor and memory. What
// it uses is "?" where the elected master has not heard of it lately.
func shareTexts(t *borgpb.Task) []any {
	limit, reserved, used := t.GetSpec().GetResources(), t.GetStatus().GetReservation().GetResources(), t.GetStatus().GetUsed()
	row := []any{"", "", cpuText(limit.GetCpuMilli()), "", "", bytesText(limit.GetMemBytes())}
	if t.GetStatus().GetState() == borgpb.State_STATE_RUNNING {
		row[0], row[1], row[3], row[4] = "?", cpuText(reserved.GetCpuMilli()), "?", bytesText(reserved.GetMemBytes())
	}
	if used != nil {
		row[0], row[3] = cpuText(used.CpuMilli), bytesText(used.MemBytes)
	}
	return row
}

// isLastOf tells whether a is the copy with which the task itself ended.
func isLastOf(st *borgpb.TaskStatus, a *borgpb.Attempt) bool {
	return st.GetState() == borgpb.State_STATE_DEAD && a.GetAttempt() == st.GetAttempt()
}

// taskReason is why a task is as it is, and what it says itself; that of a dead one may be told by its
// last copy only.
func taskReason(st *borgpb.TaskStatus) string {
	if st.GetNote() != "" {
		return strings.TrimPrefix(st.GetReason()+"; says: "+st.GetNote(), "; ")
	}
	for _, a := range st.GetAttempts() {
		if st.GetReason() == "" && isLastOf(st, a) {
			return attemptReason(a)
		}
	}
	if st.GetReason() != "" || st.GetState() != borgpb.State_STATE_DEAD {
		return st.GetReason()
	}
	if st.GetAttemptState() == borgpb.AttemptState_ATTEMPT_STATE_STOPPED {
		return "taken down"
	}
	// One that ends so and finished has no reason of its own.
	return st.GetLastExit().GetReason()
}

// endText is exitText without what the reason beside it tells at length.
func endText(e *borgpb.Exit, reason string) string {
	if e.GetError() != "" && strings.Contains(reason, e.GetError()) {
		return "did not start"
	}
	if why := e.GetReason(); why != "" && strings.Contains(reason, why) {
		e = proto.CloneOf(e)
		e.Reason = ""
	}
	return exitText(e)
}

func attemptReason(a *borgpb.Attempt) string {
	if a.GetQuarantine() != nil {
		return quarantineText(a.Quarantine)
	}
	cause := word(a.GetCause())
	switch {
	case cause == "":
		return a.GetReason()
	case a.GetReason() == "":
		return cause
	}
	return cause + ": " + a.GetReason()
}

func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// portsText is "http=20001,admin=20002".
func portsText(t *borgpb.Task) string {
	var out []string
	for i, p := range t.GetStatus().GetPorts() {
		name := strconv.Itoa(i)
		if names := t.GetSpec().GetPorts(); i < len(names) {
			name = names[i]
		}
		out = append(out, fmt.Sprintf("%s=%d", name, p))
	}
	return strings.Join(out, ",")
}
