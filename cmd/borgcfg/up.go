package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	borgcell "borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// action is what is to be done with one object.
type action uint8

const (
	nothing action = iota
	create
	change
)

// step is one object of a plan.
type step struct {
	declared
	action action
	// What the cell holds; nil: nothing of that name.
	job    *borgpb.Job
	allocs *borgpb.AllocSet
	// What it was last given; nil: the cell does not know it, and changes no alloc set.
	given *borgrpc.Given
	// What the cell is to hold: what the file says, and what was changed in the cell
	// since and stays. Nil: just what the file says.
	merged *cfg.Object
	// What the cell is to hold that the file does not say, and why, for people.
	kept []string
	// Why nothing is to be done.
	note string
}

// plan compares what the files say with what the cell holds. It changes
// nothing.
func (s *session) plan(objects []declared) ([]*step, error) {
	m, err := s.master()
	if err != nil {
		return nil, err
	}
	if err := s.fillLabels(m, objects); err != nil {
		return nil, err
	}
	filled, err := s.fillResources(m, objects)
	if err != nil {
		return nil, err
	}
	var steps []*step
	for _, d := range objects {
		st := &step{declared: d}
		if what := filled[d.Key()]; what != "" {
			st.kept = append(st.kept, "asks for "+what+" by default, as "+d.User+"'s bounds say (borgcfg quota show "+d.User+")")
		}
		if d.Kind == cfg.KindAllocSet {
			err = s.planAllocSet(m, st)
		} else {
			err = s.planJob(m, st)
		}
		if err != nil {
			return nil, err
		}
		steps = append(steps, st)
	}
	return steps, s.checkLinks(steps)
}

func (s *session) planJob(m *client.Client, st *step) error {
	resp, err := m.GetJob(s.ctx, &borgrpc.GetJobRequest{User: st.User, Name: st.Name})
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		st.action = create
		return nil
	}
	if err != nil {
		return err
	}
	st.job, st.given = resp.Job, resp.Given
	if err := st.checkKnown(resp.Job.GetSpec()); err != nil {
		return err
	}
	dead := resp.Job.GetStatus().GetState() == borgpb.State_STATE_DEAD
	if !dead && st.given != nil && !s.flag.Bool("exactly") {
		st.merge(resp.Job.GetMeta(), resp.Job.GetSpec().GetTasks())
	}
	same := same(st.wanted(), resp.Job.GetMeta(), resp.Job.GetSpec()) && st.repeats()
	ended := ""
	if dead && same && !s.flag.Bool("again") {
		if ended, err = s.endedByItself(m, resp.Job); err != nil {
			return err
		}
	}
	switch {
	case ended != "":
		st.note = "unchanged and " + ended + " (to run it again: --again)"
	case dead:
		st.action = create
	case same && underWay(resp.Update):
		st.note = "unchanged, and its update is under way"
	case same && resp.Update.GetStatus().GetOld() > 0:
		// The update to it did not reach all.
		st.action = change
	case same:
		st.note = "unchanged"
	case st.Job.Kind != resp.Job.GetSpec().GetKind():
		name := s.short(st.User, st.Name)
		return cli.Errorf(cli.Refused, "job %s is a %s job, and the file makes it a %s job; the kind of a job cannot change", st.Key(), word(resp.Job.Spec.Kind), word(st.Job.Kind)).
			Hint("end it, then create it anew:\nborgcfg down --wait %s && borgcfg up %s", name, s.sameFlags()+cli.Quote(st.file.Path))
	default:
		st.action = change
	}
	return nil
}

func (s *session) planAllocSet(m *client.Client, st *step) error {
	resp, err := m.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{User: st.User, Name: st.Name})
	var missing *client.NotFoundError
	if errors.As(err, &missing) || (err == nil && len(resp.AllocSets) == 0) {
		st.action = create
		return nil
	}
	if err != nil {
		return err
	}
	st.allocs, st.given = resp.AllocSets[0], resp.Given
	if err := st.checkKnown(st.allocs.GetSpec()); err != nil {
		return err
	}
	dead := st.allocs.GetStatus().GetState() == borgpb.State_STATE_DEAD
	if !dead && st.given != nil && !s.flag.Bool("exactly") {
		st.merge(st.allocs.GetMeta(), st.allocs.GetSpec().GetAllocs())
	}
	switch {
	case dead:
		st.action = create
	case same(st.wanted(), st.allocs.GetMeta(), st.allocs.GetSpec()) && st.repeats():
		st.note = "unchanged"
	case st.given != nil:
		st.action = change
	case proto.Equal(st.Spec(), st.allocs.GetSpec()):
		// Its labels can be.
		st.action = change
	default:
		return cli.Errorf(cli.Refused, "alloc set %s differs from the file, and a cell of a format before 10 does not change alloc sets", st.Key()).
			Hint("end it and what runs in it, then create it anew:\nborgcfg down %s && borgcfg up %s", s.short(st.User, st.Name), s.sameFlags()+cli.Quote(st.file.Path))
	}
	return nil
}

// show prints one line for each object, and what would change in it.
func (s *session) show(steps []*step) {
	for _, st := range steps {
		name := fmt.Sprintf("%s %s", st.Kind, s.short(st.User, st.Name))
		switch st.action {
		case nothing:
			s.say("= %s: %s", name, st.note)
			s.sayKept(st)
		case create:
			s.say("+ %s: new, %s", name, st.size())
			s.sayKept(st)
		case change:
			s.say("~ %s:", name)
			s.sayChanges(st)
		}
	}
}

func (s *session) sayChanges(st *step) {
	for _, c := range st.diff() {
		s.say("    %s", c)
	}
	s.sayKept(st)
}

// diff is what a change changes.
func (st *step) diff() []cfg.Change {
	switch {
	case st.Kind == cfg.KindJob:
		return cfg.DiffJob(st.job, st.wanted())
	case st.given != nil:
		return cfg.DiffAllocSet(st.allocs, st.wanted())
	}
	return cfg.DiffLabels(st.allocs.GetMeta(), st.Object)
}

func (s *session) sayKept(st *step) {
	if st.action != nothing {
		s.tellShare(st.wanted().Labels)
	}
	for _, what := range st.kept {
		s.say("    %s", what)
	}
}

func (st *step) size() string {
	if st.Kind == cfg.KindAllocSet {
		return plural(st.AllocSet.Allocs, "alloc")
	}
	if st.Job.Kind == borgpb.JobKind_JOB_KIND_DAEMON {
		// Their number is that of the machines, which the cell knows.
		return "a task on each machine that matches"
	}
	return plural(st.Job.Tasks, "task")
}

func diffFiles(s *session) error {
	objects, err := s.evaluateAll(s.args)
	if err != nil {
		return err
	}
	steps, err := s.plan(objects)
	if err != nil {
		return err
	}
	ends, err := s.pruned(objects)
	if err != nil {
		return err
	}
	if err := s.showPlan(steps, ends); err != nil {
		return err
	}
	if err := s.validate(steps, ends); err != nil {
		return err
	}
	if _, misfit := s.misfits(steps, true); misfit != nil {
		s.progress("%v", misfit)
	}
	for _, st := range steps {
		if st.action != nothing || len(ends) > 0 {
			return &cli.Error{Code: cli.Changes, What: "there are changes", Next: "make it so: borgcfg up " + s.sameFiles()}
		}
	}
	return nil
}

func upFiles(s *session) error {
	if s.flag.IsSet("output") && !s.flag.Bool("dry-run") {
		return cli.Errorf(cli.Usage, "-o is of the plan: it goes with --dry-run alone").Hint("what there is then: borgcfg status -o json")
	}
	objects, err := s.evaluateAll(s.args)
	if err != nil {
		return err
	}
	steps, err := s.plan(objects)
	if err != nil {
		return err
	}
	ends, err := s.pruned(objects)
	if err != nil {
		return err
	}
	if s.flag.Bool("dry-run") {
		if err := s.showPlan(steps, ends); err != nil {
			return err
		}
		s.progress("nothing was done (--dry-run)")
		if err := s.validate(steps, ends); err != nil {
			return err
		}
		_, misfit := s.misfits(steps, true)
		return misfit
	}
	if err := s.checkAll(steps); err != nil {
		return err
	}
	strangers := s.strangers(steps)
	for _, st := range steps {
		if err := s.apply(st); err != nil {
			return err
		}
	}
	for _, h := range strangers {
		s.stranger(h)
	}
	if err := s.tellTenants(ends); err != nil {
		return err
	}
	// What takes their place is there.
	for _, v := range ends {
		if err := s.kill(v); err != nil {
			return err
		}
	}
	misfits, misfit := s.misfits(steps, false)
	if s.flag.Bool("wait") {
		for _, st := range steps {
			if st.Kind == cfg.KindJob && !misfits[st.Key()] {
				if err := s.follow(jobName{st.User, st.Name}, "borgcfg up --wait "+s.sameFiles()); err != nil {
					return err
				}
			}
		}
	}
	return misfit
}

// apply does one step and says what it did.
func (s *session) apply(st *step) error {
	name := s.short(st.User, st.Name)
	if st.action == nothing {
		s.say("%s %s: %s", st.Kind, name, st.note)
		s.sayKept(st)
		return nil
	}
	op, err := st.op()
	if err != nil {
		return err
	}
	result, err := s.client.Mutate(s.ctx, s.op(op))
	if err != nil {
		return err
	}
	if st.action == create {
		s.say("%s %s: created, %s", st.Kind, name, st.size())
		s.sayKept(st)
		return nil
	}
	s.say("%s %s: updated to version %d", st.Kind, name, result.GetVersion())
	s.sayChanges(st)
	if st.Kind == cfg.KindAllocSet {
		s.sayBehind(st.User, st.Name)
	}
	return nil
}

// misfits says which of the jobs no machine of the cell could ever hold. They
// are accepted all the same: a machine may come. With ask nothing was done.
func (s *session) misfits(steps []*step, ask bool) (map[string]bool, error) {
	var machines []*borgpb.Machine
	var lines []string
	var first string
	accepted := "is accepted"
	if ask {
		accepted = "would be accepted"
	}
	misfits := make(map[string]bool)
	for _, st := range steps {
		what := st.asks()
		if st.action == nothing || what == nil {
			continue
		}
		if machines == nil {
			resp, err := s.client.ListMachines(s.ctx, &borgrpc.ListMachinesRequest{})
			if err != nil || len(resp.Machines) == 0 {
				return nil, nil // The job is accepted; that is what counts.
			}
			machines = resp.Machines
		}
		why := tooLarge(what, st.one(), machines)
		if why != "" {
			why = "no machine of the cell can hold it: " + why
		} else {
			why = st.tooWide(what, machines)
		}
		if why != "" {
			misfits[st.Key()] = true
			lines = append(lines, fmt.Sprintf("%s %s, but %s", st.Key(), accepted, why))
			if first == "" {
				first = s.short(st.User, st.Name)
			}
		}
	}
	if lines == nil {
		return nil, nil
	}
	next := fmt.Sprintf("it waits for a machine that can; see: borgcfg why %s/0", first)
	if ask {
		next = "what the machines have: borgcfg machine list"
	}
	return misfits, &cli.Error{Code: cli.CannotFit, What: strings.Join(lines, "\n"), Next: next}
}

// asks is what a machine must have for a task or alloc; nil: an alloc must.
func (st *step) asks() *borgpb.TaskSpec {
	if a := st.AllocSet; st.Kind == cfg.KindAllocSet {
		return borgcell.Networked(&borgpb.TaskSpec{Resources: a.Resources, Constraints: a.Constraints, Network: a.Network})
	}
	if st.Job.AllocSet != "" {
		return nil
	}
	return borgcell.Networked(st.Job.Task)
}

// one is what the machines are asked to hold.
func (st *step) one() string {
	if st.Kind == cfg.KindAllocSet {
		return "an alloc"
	}
	return "a task"
}

// updateFile gives the jobs of a file, which must be there, their new specs.
func updateFile(s *session) error {
	objects, err := s.evaluateAll(s.args)
	if err != nil {
		return err
	}
	steps, err := s.plan(objects)
	if err != nil {
		return err
	}
	for _, st := range steps {
		if st.action != create {
			continue
		}
		what := "there is no " + st.Kind.String() + " " + st.Key()
		if st.job != nil || st.allocs != nil {
			what = fmt.Sprintf("%s %s is dead", st.Kind, st.Key())
		}
		return cli.Errorf(cli.NotFound, "%s", what).Hint("create it: borgcfg up %s", s.sameFiles())
	}
	if err := s.checkAll(steps); err != nil {
		return err
	}
	for _, st := range steps {
		if err := s.apply(st); err != nil {
			return err
		}
	}
	misfits, misfit := s.misfits(steps, false)
	wait := s.flag.Bool("wait")
	if !s.flag.IsSet("wait") {
		wait = s.terminal && s.errTerminal
	}
	if !wait {
		return misfit
	}
	for _, st := range steps {
		if st.Kind == cfg.KindJob && !misfits[st.Key()] {
			if err := s.follow(jobName{st.User, st.Name}, "borgcfg update --wait "+s.sameFiles()); err != nil {
				return err
			}
		}
	}
	return misfit
}

// isFile tells a job file from the name of a job.
func isFile(arg string) bool {
	switch filepath.Ext(arg) {
	case ".borg", ".yaml", ".yml", ".json":
		return true
	}
	return false
}
