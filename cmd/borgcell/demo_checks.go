package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// copyState is which process a task is. While nothing but an update may
// restart tasks, it stays equal.
type copyState struct {
	machine  string
	attempt  uint64
	restarts uint32
	pid      int64
	// Of the process, so that a number used again is not taken for the same.
	startTicks uint64
}

// snapshot is the running copies of tasks, by "user/job/index".
type snapshot map[string]copyState

// snap takes the state of a job's tasks from the cell and of their processes
// from the machine itself.
func (c *Cell) snap(ctx context.Context, jobs ...string) (snapshot, error) {
	s := make(snapshot)
	for _, job := range jobs {
		tasks, err := c.tasks(ctx, job)
		if err != nil {
			return nil, err
		}
		for _, t := range tasks {
			if t.Status.GetAttemptState() != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
				continue
			}
			ticks, alive, err := readStat(int(t.Status.Pid))
			if err != nil || !alive {
				return nil, fmt.Errorf("task %s is said to run as process %d, which is not there", taskName(t), t.Status.Pid)
			}
			s[taskName(t)] = copyState{
				machine: t.Status.Machine, attempt: t.Status.Attempt, restarts: t.Status.Restarts, pid: t.Status.Pid, startTicks: ticks,
			}
		}
	}
	return s, nil
}

func taskName(t *borgpb.Task) string {
	return fmt.Sprintf("%s/%s/%d", t.Meta.GetUser(), t.Meta.GetName(), t.Index)
}

// submit submits a job of our own and returns its uid.
func (c *Cell) submit(ctx context.Context, name string, spec *borgpb.JobSpec) (*borgpb.Result, error) {
	return c.submitOp(ctx, &borgpb.SubmitJob{Name: name}, spec)
}

func (c *Cell) submitOp(ctx context.Context, submit *borgpb.SubmitJob, spec *borgpb.JobSpec) (result *borgpb.Result, err error) {
	submit.User = c.user
	if submit.Spec, err = proto.Marshal(spec); err != nil {
		return nil, err
	}
	return c.client.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: submit}})
}

// tasks lists the tasks of one of our own jobs.
func (c *Cell) tasks(ctx context.Context, job string) ([]*borgpb.Task, error) {
	resp, err := c.client.ListAllTasks(ctx, &borgrpc.ListTasksRequest{User: c.user, Name: job}, 0)
	if err != nil {
		return nil, err
	}
	return resp.Tasks, nil
}

// difference says what is not the same in two snapshots, or "".
func (s snapshot) difference(now snapshot) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		was := s[name]
		is, ok := now[name]
		switch {
		case !ok:
			lines = append(lines, fmt.Sprintf("%s ran as process %d on %s and does not run", name, was.pid, was.machine))
		case is != was:
			lines = append(lines, fmt.Sprintf("%s was process %d on %s (attempt %d, %d restarts) and is process %d on %s (attempt %d, %d restarts)",
				name, was.pid, was.machine, was.attempt, was.restarts, is.pid, is.machine, is.attempt, is.restarts))
		}
	}
	return strings.Join(lines, "; ")
}

func (s snapshot) pids() string {
	var pids []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		pids = append(pids, strconv.FormatInt(s[name].pid, 10))
	}
	return strings.Join(pids, ", ")
}

// unchanged checks that the same processes run as in the snapshot.
func (c *Cell) unchanged(ctx context.Context, before snapshot, jobs ...string) error {
	now, err := c.snap(ctx, jobs...)
	if err != nil {
		return err
	}
	if diff := before.difference(now); diff != "" {
		return expected(fmt.Sprintf("the same processes as before (%s)", before.pids()), "%s", diff)
	}
	return nil
}

// jobIs waits until a job of ours is as wanted, and returns it.
func (c *Cell) jobIs(ctx context.Context, name, what string, ok func(*borgpb.Job) bool) (*borgpb.Job, error) {
	var job *borgpb.Job
	err := until(ctx, what, func(ctx context.Context) error {
		resp, err := c.client.GetJob(ctx, &borgrpc.GetJobRequest{User: c.user, Name: name})
		if err != nil {
			return err
		}
		job = resp.Job
		if !ok(job) {
			s := job.Status
			return fmt.Errorf("job %s: %d pending, %d running (%d started), %d dead (%d finished)",
				name, s.GetPending(), s.GetRunning(), s.GetStarted(), s.GetDead(), s.GetFinished())
		}
		return nil
	})
	return job, err
}

// started is a service job whose tasks all run, none of an older copy.
func started(j *borgpb.Job) bool {
	return j.Status.GetStarted() == j.Spec.GetTasks() && j.Status.GetStopping() == 0
}

// finished is a batch job whose tasks all ended well.
func finished(j *borgpb.Job) bool { return j.Status.GetFinished() == j.Spec.GetTasks() }

// fetch gets the page of a task.
func fetch(ctx context.Context, t *borgpb.Task) (string, error) {
	if len(t.Status.GetPorts()) == 0 {
		return "", fmt.Errorf("task %s has no port", taskName(t))
	}
	// All machines of the cell are this one.
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(t.Status.Ports[0])))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return "", err
	}
	// A kept connection would hold a server that is told to stop.
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: %s", req.URL, resp.Status)
	}
	return strings.TrimSpace(string(body)), nil
}
