package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// victim is an object that is to end.
type victim struct {
	jobName
	job *borgpb.Job
	set *borgpb.AllocSet
}

// down ends jobs and alloc sets, jobs first. All are looked up before any is
// ended.
func down(s *session) error {
	names, err := s.downNames()
	if err != nil {
		return err
	}
	var victims []victim
	seen := make(map[jobName]bool)
	for _, n := range names {
		if seen[n.jobName] {
			continue
		}
		seen[n.jobName] = true
		v, err := s.find(n.jobName)
		// What a file declares may never have been made, or be long forgotten.
		var e *cli.Error
		if n.fromFile && errors.As(err, &e) && e.Code == cli.NotFound {
			s.say("%s: not there", s.short(n.user, n.name))
			continue
		}
		if err != nil {
			return err
		}
		victims = append(victims, v)
	}
	if err := s.keepsTenants(victims); err != nil {
		return err
	}
	// Tasks in an alloc would only be evicted when it goes, and wait for it.
	slices.SortStableFunc(victims, func(a, b victim) int {
		return boolRank(a.set != nil) - boolRank(b.set != nil)
	})
	for _, v := range victims {
		if err := s.kill(v); err != nil {
			return err
		}
	}
	if !s.flag.Bool("wait") {
		return nil
	}
	return s.waitAllGone(victims)
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// named is an object that the command line names, or a file on it.
type named struct {
	jobName
	fromFile bool
}

func (s *session) downNames() ([]named, error) {
	var names []named
	for _, arg := range s.args {
		if !isFile(arg) {
			n, err := s.job(arg)
			if err != nil {
				return nil, err
			}
			names = append(names, named{n, false})
			continue
		}
		f, err := s.evaluate(arg)
		if err != nil {
			return nil, err
		}
		for _, o := range f.Objects {
			names = append(names, named{jobName{o.User, o.Name}, true})
		}
	}
	return names, nil
}

// find looks up a job or, jobs and alloc sets sharing their names, an alloc
// set.
func (s *session) find(n jobName) (victim, error) {
	m, err := s.master()
	if err != nil {
		return victim{}, err
	}
	resp, err := m.GetJob(s.ctx, &borgrpc.GetJobRequest{User: n.user, Name: n.name})
	if err == nil {
		return victim{jobName: n, job: resp.Job}, nil
	}
	var missing *client.NotFoundError
	if !errors.As(err, &missing) {
		return victim{}, err
	}
	sets, err := m.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{User: n.user, Name: n.name})
	if err == nil && len(sets.AllocSets) > 0 {
		return victim{jobName: n, set: sets.AllocSets[0]}, nil
	}
	if err != nil && !errors.As(err, &missing) {
		return victim{}, err
	}
	return victim{}, s.noSuchJob(n)
}

// noSuchTask is an error about a task that a master does not know, or of which
// it does not know that copy.
func (s *session) noSuchTask(n jobName, missing *client.NotFoundError) error {
	v, err := s.find(n)
	if err != nil {
		return err
	}
	e := &cli.Error{Code: cli.NotFound, What: missing.Error(), Err: missing}
	if v.set != nil {
		if e.What == "there is no job "+n.String() {
			e.What = fmt.Sprintf("%s is an alloc set: tasks of jobs run in it, and it has none of its own", n)
		}
		return e.Hint("see what there is: borgcfg alloc list %s", s.short(n.user, n.name))
	}
	if v.job.GetSpec().GetKind() == borgpb.JobKind_JOB_KIND_CRON {
		return e.Hint("a cron job has no tasks of its own; those of its runs: borgcfg status %s", s.short(n.user, n.name))
	}
	return e.Hint("see what there is: borgcfg tasks %s --attempts", s.short(n.user, n.name))
}

// noSuchJob is an error that offers a name like the one that is not there.
func (s *session) noSuchJob(n jobName) error {
	e := cli.Errorf(cli.NotFound, "there is no job %s", n)
	resp, err := s.client.ListJobs(s.ctx, &borgrpc.ListJobsRequest{Dead: true})
	if err != nil {
		return e.Hint("see what there is: borgcfg status")
	}
	var own, alive, dead []string
	add := func(meta *borgpb.Meta, state borgpb.State) {
		key := meta.GetUser() + "/" + meta.GetName()
		if state == borgpb.State_STATE_DEAD {
			dead = append(dead, key)
			return
		}
		alive = append(alive, key)
		if meta.GetName() == n.name {
			own = append(own, key)
		}
	}
	for _, j := range resp.Jobs {
		add(j.GetMeta(), j.GetStatus().GetState())
	}
	// Jobs and alloc sets share their names; without the sets, one that is not there is
	// only told with fewer names like it.
	if sets, err := s.client.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{}); err == nil {
		for _, a := range sets.AllocSets {
			add(a.GetMeta(), a.GetStatus().GetState())
		}
	}
	if _, err := strconv.ParseUint(n.name, 10, 32); err == nil {
		if me, err := s.user(); err == nil && slices.Contains(slices.Concat(alive, dead), me+"/"+n.user) {
			return e.Hint("%s is one task of job %s; this command takes the job", n, n.user)
		}
	}
	if len(own) > 0 {
		return e.Hint("did you mean %s?", own[0])
	}
	if near := nearOf(n.String(), alive, dead); near != "" {
		return e.Hint("did you mean %s?", near)
	}
	return e.Hint("see what there is: borgcfg status")
}

func (s *session) kill(v victim) error {
	name := s.short(v.user, v.name)
	op := v.op()
	kind := cfg.KindJob.String()
	dead := v.job.GetStatus().GetState() == borgpb.State_STATE_DEAD
	if v.set != nil {
		kind = cfg.KindAllocSet.String()
		dead = v.set.GetStatus().GetState() == borgpb.State_STATE_DEAD
	}
	if dead {
		s.say("%s %s: already dead", kind, name)
		return nil
	}
	if _, err := s.client.Mutate(s.ctx, s.op(op)); err != nil {
		return err
	}
	s.say("%s %s: down", kind, name)
	return nil
}

// op is the mutation that ends it.
func (v *victim) op() *borgpb.Op {
	if v.set != nil {
		return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: v.user, Name: v.name}}}
	}
	return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: v.user, Name: v.name}}}
}

// waitAllGone waits until no copy of any of the jobs is left.
func (s *session) waitAllGone(victims []victim) error {
	var jobs []jobName
	var again strings.Builder
	again.WriteString("borgcfg down --wait")
	for _, v := range victims {
		if v.job != nil {
			jobs = append(jobs, v.jobName)
			again.WriteString(" " + s.short(v.user, v.name))
		}
	}
	for _, n := range jobs {
		if err := s.waitGone(n, again.String()); err != nil {
			return err
		}
	}
	return nil
}

// waitGone waits until no copy of a job is left.
func (s *session) waitGone(n jobName, again string) error {
	var last string
	name := s.short(n.user, n.name)
	return s.poll(name, again, func() (bool, error) {
		resp, err := s.client.GetJob(s.ctx, &borgrpc.GetJobRequest{User: n.user, Name: n.name})
		var missing *client.NotFoundError
		if errors.As(err, &missing) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		st := resp.Job.GetStatus()
		if st.GetStopping() == 0 {
			return true, nil
		}
		if line := fmt.Sprintf("%s stopping", copies(st.GetStopping())); line != last {
			s.progress("%s: %s", name, line)
			last = line
		}
		return false, nil
	})
}

// resizeJob changes the number of tasks of a job, or of allocs of an alloc set.
func resizeJob(s *session) error {
	n, err := s.job(s.args[0])
	if err != nil {
		return err
	}
	tasks, err := strconv.ParseUint(s.args[1], 10, 32)
	if err != nil || tasks == 0 {
		return cli.Errorf(cli.Usage, "%q is not a number of tasks", s.args[1]).Hint("a job or alloc set has 1 to 100,000; to end it: borgcfg down %s", s.args[0])
	}
	v, err := s.find(n)
	if err != nil {
		return err
	}
	if v.job == nil {
		return s.resizeSet(n, v.set, uint32(tasks))
	}
	name := s.short(n.user, n.name)
	before := numTasks(v.job)
	switch {
	case v.job.GetStatus().GetState() == borgpb.State_STATE_DEAD:
		return cli.Errorf(cli.Refused, "job %s is dead", n).Hint("run it again: borgcfg up FILE")
	case before == uint32(tasks):
		s.say("job %s: unchanged, %s", name, plural(before, "task"))
	default:
		if _, err := s.client.Mutate(s.ctx, s.op(&borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{
			User: n.user, Name: n.name, ExpectVersion: v.job.GetMeta().GetVersion(), Tasks: uint32(tasks)}}})); err != nil {
			return err
		}
		s.say("job %s: %d -> %d tasks", name, before, tasks)
	}
	if s.flag.Bool("wait") {
		return s.follow(n, fmt.Sprintf("borgcfg resize --wait %s %d", name, tasks))
	}
	return nil
}
