package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// deadShown is how many dead jobs a table shows unless all are asked for.
const deadShown = 10

func status(s *session) error {
	if len(s.args) == 1 {
		return s.statusJob(s.args[0])
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	c, err := s.cell(m)
	if err != nil {
		return err
	}
	req := &borgrpc.ListJobsRequest{Dead: true, Selector: s.flag.String("selector")}
	var unelected error
	if c.Elected == 0 {
		// A fresh answer would have to wait for an election.
		req.Mode = borgrpc.ReadMode_READ_MODE_STALE
		unelected = cli.Errorf(cli.Unreachable, "no master is elected; this is what one of them last knew").
			Hint("tasks go on running, and nothing can be changed until one is; the masters: borgcfg status -o wide")
	}
	resp, err := m.ListJobs(s.ctx, req)
	if err != nil {
		return err
	}
	if err := s.printStatus(m, c, resp); err != nil {
		return err
	}
	return unelected
}

// cell asks one master how the cell is, and all of them when that one knows of
// nobody elected, since it may be the one that is cut off, or of no scheduler,
// since the others learn of that a little later than the elected one.
func (s *session) cell(m *client.Client) (*borgrpc.GetCellResponse, error) {
	c, err := m.GetCell(s.ctx)
	if err != nil || c.Elected != 0 && (c.SchedulerConnected || c.Elected == c.Replica) {
		return c, err
	}
	for _, v := range m.Survey(s.ctx) {
		if v.Cell.GetElected() != 0 && v.Cell.GetTerm() >= c.Term && (c.Elected == 0 || v.Cell.Elected == v.Cell.Replica) {
			c = v.Cell
		}
	}
	return c, nil
}

func (s *session) printStatus(m *client.Client, c *borgrpc.GetCellResponse, resp *borgrpc.ListJobsResponse) error {
	switch {
	case s.out.machine():
		return s.out.parts(part{"cell", []proto.Message{c}, false}, part{"jobs", messages(resp.Jobs), true})
	case s.out.format == "name":
		var names []string
		for _, j := range resp.Jobs {
			names = append(names, j.GetMeta().GetUser()+"/"+j.GetMeta().GetName())
		}
		return s.out.names(names)
	}
	for _, line := range cellLines(c, s.now()) {
		s.say("%s", line)
	}
	s.tellHold(m, c)
	if s.out.wide() {
		if err := s.masterTable(m.Survey(s.ctx)); err != nil {
			return err
		}
	}
	if len(resp.Jobs) == 0 {
		if selector := s.flag.String("selector"); selector != "" {
			s.progress("no job has the labels %s; all jobs: borgcfg status", selector)
			return nil
		}
		s.progress("no jobs yet; try: borgcfg up FILE")
		return nil
	}
	s.say("")
	return s.jobTable(resp.Jobs)
}

// masterTable prints how each master sees the cell.
func (s *session) masterTable(views []client.View) error {
	var t table
	t.head("MASTER", "ADDRESS", "ROLE", "TERM", "APPLIED", "COMMITTED", "BUILD")
	for _, v := range views {
		if v.Err != nil {
			t.add("", v.Addr, cell{v.Err.Error(), bad}, "", "", "", "")
			continue
		}
		role := cell{"follows " + fmt.Sprint(v.Cell.Elected), plainStyle}
		switch {
		case v.Cell.Elected == v.Cell.Replica:
			role = cell{"elected", good}
		case v.Cell.Elected == 0:
			role = cell{"knows of nobody elected", waiting}
		}
		t.add(v.Cell.Replica, v.Addr, role, v.Cell.Term, v.Cell.AppliedIndex, v.Cell.CommitIndex, v.Cell.Build)
	}
	s.say("")
	return t.write(s.out, "")
}

// cellLines says how the cell is.
func cellLines(c *borgrpc.GetCellResponse, now time.Time) []string {
	elected := fmt.Sprintf("master %d elected, term %d", c.Elected, c.Term)
	if c.Elected == 0 {
		elected = "no master is elected"
	}
	draining := ""
	if c.MachinesDraining > 0 {
		draining = fmt.Sprintf(" (%d draining)", c.MachinesDraining)
	}
	lines := []string{
		fmt.Sprintf("cell %s: %s; %s known; index %d, format %d", orWord(c.CellName, "?"), elected, plural(len(c.Members), "master"), c.AppliedIndex, c.Format),
		fmt.Sprintf("machines: %d up%s, %d down; tasks: %d running, %d pending, %d dead", c.MachinesUp, draining, c.MachinesDown, c.TasksRunning, c.TasksPending, c.TasksDead),
	}
	if c.Simulated != nil {
		lines = append(lines, fmt.Sprintf("simulated, as of %s (index %d); its clock now: %s, %s", wallText(c.Simulated.AsOfWallNs), c.Simulated.AsOfIndex, wallText(c.WallTimeNs), c.Simulated.Speed))
	}
	if len(c.Learners) > 0 {
		lines = append(lines, fmt.Sprintf("masters that only learn: %v", c.Learners))
	}
	if c.Elected != 0 && !c.SchedulerConnected {
		lines = append(lines, "no scheduler follows the elected master: nothing is placed until one does")
	}
	if c.Reach.GetStopped() || c.LostDeclaredForNs > 0 && c.Reach != nil {
		lines = append(lines, reachLines(c)...)
	}
	if c.WallSuspect {
		lines = append(lines, fmt.Sprintf("the wall clock has stepped to %s and waits for an operator's word", wallText(c.WallTimeNs)))
	}
	return lines
}

func wallText(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) }

// jobTable prints jobs that live, then the last of those that are dead.
func (s *session) jobTable(jobs []*borgpb.Job) error {
	var live, dead []*borgpb.Job
	for _, j := range jobs {
		if j.GetStatus().GetState() == borgpb.State_STATE_DEAD {
			dead = append(dead, j)
		} else {
			live = append(live, j)
		}
	}
	slices.SortStableFunc(dead, func(a, b *borgpb.Job) int {
		return int(min(1, max(-1, b.GetStatus().GetChangedWallNs()-a.GetStatus().GetChangedWallNs())))
	})
	hidden := 0
	if !s.flag.Bool("all") && len(dead) > deadShown {
		hidden = len(dead) - deadShown
		dead = dead[:deadShown]
	}
	var t table
	head := []string{"JOB", "KIND", "BAND", "STATE", "TASKS", "STARTED", "PENDING", "DEAD", "FINISHED", "CHANGED"}
	if s.out.wide() {
		head = append(head, "PRIORITY", "VERSION", "UID", "REASON")
	}
	t.head(head...)
	for _, j := range append(live, dead...) {
		st := j.GetStatus()
		row := []any{s.short(j.GetMeta().GetUser(), j.GetMeta().GetName()), word(j.GetSpec().GetKind()), cfg.BandOf(j.GetSpec().GetPriority())}
		if st.GetCron() != nil {
			row = append(row, cronState(st), "-", "-", "-", "-", "-", ago(s.now(), st.GetChangedWallNs()))
		} else {
			row = append(row, stateCell(st.GetState()), numTasks(j), st.GetStarted(), st.GetPending(), st.GetDead(), st.GetFinished(), ago(s.now(), st.GetChangedWallNs()))
		}
		if s.out.wide() {
			row = append(row, j.GetSpec().GetPriority(), j.GetMeta().GetVersion(), j.GetMeta().GetUid(), st.GetReason())
		}
		t.add(row...)
	}
	if err := t.write(s.out, ""); err != nil {
		return err
	}
	if hidden > 0 {
		s.progress("and %d more that are dead; all of them: borgcfg status --all", hidden)
	}
	return nil
}

// numTasks is the number of tasks; a resize changes it without a new spec.
func numTasks(j *borgpb.Job) uint32 {
	st := j.GetStatus()
	if n := st.GetPending() + st.GetRunning() + st.GetDead(); n > 0 {
		return n
	}
	return j.GetSpec().GetTasks()
}

// getJob asks for the job that an argument names.
func (s *session) getJob(arg string) (n jobName, resp *borgrpc.GetJobResponse, err error) {
	if n, err = s.job(arg); err != nil {
		return n, nil, err
	}
	m, err := s.master()
	if err != nil {
		return n, nil, err
	}
	resp, err = m.GetJob(s.ctx, &borgrpc.GetJobRequest{User: n.user, Name: n.name})
	return n, resp, err
}

func (s *session) statusJob(arg string) error {
	n, resp, err := s.getJob(arg)
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		return s.noSuchJob(n)
	}
	if err != nil {
		return err
	}
	list, err := s.client.ListAllTasks(s.ctx, &borgrpc.ListTasksRequest{User: n.user, Name: n.name}, 0)
	if err != nil {
		return err
	}
	switch {
	case s.out.machine():
		return s.out.parts(part{"job", []proto.Message{resp.Job}, false}, part{"update", present(resp.Update), false}, part{"tasks", messages(list.Tasks), true})
	case s.out.format == "name":
		return s.out.names([]string{n.String()})
	}
	s.say("%s", s.verdict(resp, list.Tasks))
	for _, line := range s.jobLines(resp) {
		s.say("%s", line)
	}
	s.say("")
	if resp.Job.GetStatus().GetCron() != nil {
		return s.cronTable(resp.Job)
	}
	return s.taskTable(list.Tasks, false)
}

func present(u *borgpb.Update) []proto.Message {
	if u == nil {
		return nil
	}
	return []proto.Message{u}
}

func firstPending(tasks []*borgpb.Task) uint32 {
	for _, t := range tasks {
		if t.GetStatus().GetState() == borgpb.State_STATE_PENDING {
			return t.GetIndex()
		}
	}
	return 0
}

func (s *session) jobLines(resp *borgrpc.GetJobResponse) []string {
	j := resp.Job
	st := j.GetStatus()
	lines := []string{
		fmt.Sprintf("  %s, priority %d (%s), version %d, uid %s", word(j.GetSpec().GetKind()), j.GetSpec().GetPriority(),
			cfg.BandOf(j.GetSpec().GetPriority()), j.GetMeta().GetVersion(), j.GetMeta().GetUid()),
	}
	if st.GetCron() == nil {
		lines = append(lines, fmt.Sprintf("  tasks: %d started, %d running, %d pending, %d dead (%d finished); %d stopping",
			st.GetStarted(), st.GetRunning(), st.GetPending(), st.GetDead(), st.GetFinished(), st.GetStopping()))
	}
	if n := st.GetUnseated(); n > 0 {
		lines = append(lines, fmt.Sprintf("  %d machines that match have no task: the user has no quota for more: borgcfg quota show %s", n, j.GetMeta().GetUser()))
	}
	if ns := j.GetSpec().GetTask().GetMaxRuntimeNs(); ns > 0 {
		ends := "then it has failed"
		if j.GetSpec().GetTask().GetMaxRuntimeFinishes() {
			ends = "then it has finished"
		}
		lines = append(lines, fmt.Sprintf("  each run may take %s; %s", time.Duration(ns), ends))
	}
	if b := j.GetSpec().GetDisruptionBudget(); b != nil {
		lines = append(lines, "  "+budgetLine(b, st.GetDown()))
	}
	if u := resp.Update; u != nil {
		if underWay(u) {
			lines = append(lines, "  "+updateLine(u))
		} else {
			lines = append(lines, fmt.Sprintf("  last %s: %s %s ago", updateLine(u), updateState(u), ago(s.now(), u.GetStatus().GetEndedWallNs())))
		}
	}
	if len(j.GetMeta().GetLabels()) > 0 {
		var labels []string
		for k, v := range j.Meta.Labels {
			labels = append(labels, k+"="+v)
		}
		slices.Sort(labels)
		lines = append(lines, "  labels: "+strings.Join(labels, ", "))
	}
	return lines
}

// part is one named part of an answer that is made of several messages.
type part struct {
	name     string
	messages []proto.Message
	isList   bool
}

// parts prints several messages as one object.
func (o output) parts(parts ...part) error {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:", p.name)
		var raw []json.RawMessage
		for _, m := range p.messages {
			text, err := messageJSON(m)
			if err != nil {
				return err
			}
			raw = append(raw, text)
		}
		switch {
		case p.isList && raw == nil:
			b.WriteString("[]")
		case p.isList:
			text, err := json.Marshal(raw)
			if err != nil {
				return fmt.Errorf("print as JSON: %w", err)
			}
			b.Write(text)
		case raw == nil:
			b.WriteString("null")
		default:
			b.Write(raw[0])
		}
	}
	return o.raw([]byte("{" + b.String() + "}"))
}

func messages[M proto.Message](items []M) []proto.Message {
	out := make([]proto.Message, len(items))
	for i, m := range items {
		out[i] = m
	}
	return out
}
