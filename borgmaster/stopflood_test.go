package borgmaster_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// stopFlood is a user whose tasks ignore SIGTERM and have a day to end, and who replaces
// them by raw calls, in turns.
type stopFlood struct {
	tc     *testCell
	name   string
	user   borgrpc.MasterServiceClient
	rounds int
	// Ops that were accepted, and those that were refused for lack of quota.
	accepted, short int
}

func (f *stopFlood) mutate(op *borgpb.Op) {
	f.tc.t.Helper()
	resp, err := f.user.Mutate(f.tc.t.Context(), &borgrpc.MutateRequest{Op: f.tc.op(op)})
	if err != nil {
		f.tc.t.Fatalf("Mutate(%v): %v", op, err)
	}
	switch resp.Result.GetRefusal().GetKind() {
	case borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED:
		f.accepted++
	case borgpb.RefusalKind_REFUSAL_KIND_QUOTA:
		f.short++
	}
}

func (f *stopFlood) encode(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		f.tc.t.Fatal(err)
	}
	return data
}

// job is a job that takes all of the quota: 10 tasks, or as a daemon one on each machine.
func (f *stopFlood) job(kind borgpb.JobKind, set string) []byte {
	f.rounds++
	s := &borgpb.JobSpec{Kind: kind, Tasks: 10, Priority: 200, AllocSet: set, Update: &borgpb.UpdatePolicy{BatchSize: 10}, Task: &borgpb.TaskSpec{
		Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}, Args: []string{"/bin/sleep", "1000"}, GraceNs: 24 * 3600e9,
		Env: map[string]string{"ROUND": fmt.Sprint(f.rounds)}}}
	switch kind {
	case borgpb.JobKind_JOB_KIND_DAEMON:
		s.Tasks, s.Task.Resources.CpuMilli = 0, 500
		if f.rounds%3 == 0 {
			s.Task.Constraints = []*borgpb.Constraint{{Key: "nowhere", Relation: borgpb.Relation_RELATION_PRESENT}}
		}
	case borgpb.JobKind_JOB_KIND_CRON:
		s.Cron = &borgpb.CronSpec{Schedule: "@hourly", Overlap: borgpb.CronOverlap_CRON_OVERLAP_REPLACE}
	}
	return f.encode(s)
}

// act does one thing that replaces what runs.
func (f *stopFlood) act(way int) {
	user := f.name
	set := f.encode(&borgpb.AllocSetSpec{Allocs: 10, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}})
	submit := func(name string, spec []byte) {
		f.mutate(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Spec: spec}}})
	}
	update := func(name string, spec []byte) {
		f.mutate(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: name, Spec: spec}}})
	}
	switch way {
	case 0:
		submit("web", f.job(borgpb.JobKind_JOB_KIND_SERVICE, ""))
	case 1:
		f.mutate(kill(user, "web"))
	case 2:
		update("web", f.job(borgpb.JobKind_JOB_KIND_SERVICE, ""))
	case 3:
		submit("agent", f.job(borgpb.JobKind_JOB_KIND_DAEMON, ""))
	case 4:
		update("agent", f.job(borgpb.JobKind_JOB_KIND_DAEMON, ""))
	case 5:
		f.mutate(kill(user, "agent"))
	case 6:
		f.mutate(&borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: "pool", Spec: set}}})
		submit("inside", f.job(borgpb.JobKind_JOB_KIND_SERVICE, user+"/pool"))
	case 7:
		f.mutate(&borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: user, Name: "pool"}}})
	case 8:
		f.mutate(&borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{User: user, Name: "pool", Allocs: uint32(1 + 9*(f.rounds%2))}}})
	case 9:
		f.mutate(&borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: "web", Tasks: uint32(1 + 9*(f.rounds%2))}}})
	case 10:
		submit("often", f.job(borgpb.JobKind_JOB_KIND_CRON, ""))
	case 11:
		fire := &borgpb.FireCron{User: user, Name: "often", Manual: true}
		f.tc.group.Replica(1).View(func(c *cell.Cell) {
			if j := c.Job(cell.JobKey{User: user, Name: "often"}); j != nil {
				fire.Spec, fire.Uid, fire.Version = f.encode(j.RunSpec()), j.UID().String(), j.Version()
			}
		})
		f.mutate(&borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: fire}})
	case 12:
		spec := new(borgpb.JobSpec)
		if err := proto.Unmarshal(f.job(borgpb.JobKind_JOB_KIND_SERVICE, ""), spec); err != nil {
			f.tc.t.Fatal(err)
		}
		spec.Tasks, spec.Update.Surge = 5, 5
		update("web", f.encode(spec))
	case 13:
		f.mutate(&borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: user, Name: "web", Verb: borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK}}})
	}
	f.rounds++
}

// held is what the user's copies outside allocs, and the user's allocs, hold.
func (f *stopFlood) held() (cpuMilli int64) {
	f.tc.group.Replica(1).View(func(c *cell.Cell) {
		for m := range c.Machines() {
			for p := range m.Copies() {
				if p.Alloc() == nil && p.Live() && p.Key().User == f.name {
					cpuMilli += p.Resources().CPUMilli
				}
			}
			for a := range m.Allocs() {
				if a.Set().Key().User != f.name {
					continue
				}
				cpuMilli += a.Capacity().CPUMilli
			}
		}
	})
	return cpuMilli
}

// settle gives the scheduler a while to place what waits. Some of it may have no place.
func (f *stopFlood) settle() {
	for range 30 {
		waits := false
		f.tc.group.Replica(1).View(func(c *cell.Cell) {
			for j := range c.JobsAfter(cell.JobKey{User: f.name}) {
				if j.Key().User != f.name {
					break
				}
				for _, t := range j.Tasks() {
					waits = waits || t.State() == borgpb.State_STATE_PENDING
				}
			}
		})
		if !waits {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestTasksThatIgnoreStops: whatever a user replaces by raw calls, in whatever order, all
// that it holds at any time is within what docs/quota.md states: twice the quota.
func TestTasksThatIgnoreStops(t *testing.T) {
	const quota, most, steps = 1_000, 2, 20
	seed := uint64(1)
	tc := newCell(t, 1, nil)
	for i := range 2 {
		b := startBorglet(t, fmt.Sprint("m", i+1))
		b.change(func() {
			b.stubborn = true
			b.spec.Capacity = &borgpb.Resources{CpuMilli: 100_000, MemBytes: 1 << 36, DiskBytes: 1 << 36}
		})
		tc.addMachine(b)
	}
	tc.runScheduler()
	tc.hasUsers()
	root := tc.client(1, "root")
	tc.must(root, &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: new(true)}}})
	// Each script begins with its first act; the others follow in turns. None: all, at random.
	for i, script := range [][]int{{0, 1, 0}, {0, 2}, {3, 4}, {3, 5, 3}, {6, 7, 6}, {6, 8}, {0, 9}, {10, 11}, {0, 2, 13}, {0, 12, 13, 2}, nil} {
		f := &stopFlood{tc: tc, name: fmt.Sprintf("user-%d", i)}
		f.user = tc.client(1, f.name)
		tc.must(root, &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{User: f.name, Band: borgpb.Band_BAND_PRODUCTION,
			Limit: &borgpb.Resources{CpuMilli: quota, MemBytes: 1 << 30}}}})
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		highest := int64(0)
		for step := range steps {
			way := random.IntN(14)
			switch {
			case step == 0 && script != nil:
				way = script[0]
			case script != nil:
				way = script[1+(step-1)%(len(script)-1)]
			}
			f.act(way)
			f.settle()
			got := f.held()
			if highest = max(highest, got); got > most*quota {
				t.Fatalf("seed %d, script %v, step %d: %d of cpu are held, with a quota of %d", seed, script, step, got, quota)
			}
		}
		t.Logf("script %v: at most %d of cpu were held with a quota of %d; %d ops were accepted, %d refused for lack of quota", script, highest, quota, f.accepted, f.short)
		if script != nil && highest <= quota {
			t.Errorf("seed %d, script %v: the user never came to hold more than the quota", seed, script)
		}
	}
}
