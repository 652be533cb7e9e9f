package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// scenarios are questions to one cell of pretended machines, one after the other; each
// cleans up what it asked for.
type scenarios struct {
	*Cell
	// Users without any power.
	ann, bob *client.Client
}

// TestScenarios walks through scenarios of the specification that want several machines
// and no processes. They share a cell.
func TestScenarios(t *testing.T) {
	alongside(t)
	c := fakeCell(t, 3, 12, fleet.Life{RunTime: 300 * time.Millisecond})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	waited := new(atomic.Int64)
	s := &scenarios{Cell: c, ann: c.clientOf(t, "ann", waited), bob: c.clientOf(t, "bob", waited)}
	for _, q := range []struct {
		name string
		do   func(*testing.T, *scenarios)
	}{
		{"10 quota is refused at submit", quotaAtSubmit},
		{"11 priority 0 is free", priorityZeroIsFree},
		{"12 production is sold within the cell", soldWithinTheCell},
		{"13 a quota expires", quotaExpires},
		{"14 capabilities", capabilities},
		{"15 production stays", productionStays},
		{"16 the cheapest go first", cheapestGoFirst},
		{"21 constraints", constraints},
		{"22 failure domains", failureDomains},
		{"23 ports", portsOfAMachine},
		{"34 a rolling update and its cap", rollingUpdate},
		{"36 an alloc keeps its room", allocKeepsRoom},
		{"37 an alloc moves whole", allocMovesWhole},
		{"41 dependencies", dependencies},
		{"D1 tasks of one alloc move as one", sunitsMove},
		{"D7 daemon jobs", daemonsFollow},
		{"D22 limit per rack", limitPerRack},
		{"D23 forgiveness", forgiveness},
		{"D30 disruption budget", budgetOfTwoDrains},
		{"D35 batch queue", batchQueueFills},
	} {
		t.Run(q.name, func(t *testing.T) { q.do(t, s) })
	}
}

// refusalOf is why the cell would not; nil: it did. Another error ends the test.
func refusalOf(t *testing.T, err error) *borgpb.Refusal {
	t.Helper()
	var refused *client.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return refused.Refusal
	}
	t.Fatal(err)
	return nil
}

// must asks as the operator.
func (s *scenarios) must(t *testing.T, op *borgpb.Op) {
	t.Helper()
	if _, err := s.client.Mutate(shortly(t), op); err != nil {
		t.Fatal(err)
	}
}

func submitOf(t *testing.T, user, name string, spec *borgpb.JobSpec) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Spec: encodeSpec(t, spec)}}}
}

func killOf(user, name string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}
}

// asks submits a job as a user, and ends it with the subtest if it was let in.
func (s *scenarios) asks(t *testing.T, who *client.Client, user, name string, spec *borgpb.JobSpec) *borgpb.Refusal {
	t.Helper()
	_, err := who.Mutate(shortly(t), submitOf(t, user, name, spec))
	r := refusalOf(t, err)
	if r == nil {
		t.Cleanup(func() { s.end(t, user, name) })
	}
	return r
}

// end kills a job, unless it has ended.
func (s *scenarios) end(t *testing.T, user, name string) {
	// The subtest's own context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var refused *client.RefusedError
	if _, err := s.client.Mutate(ctx, killOf(user, name)); err != nil && !errors.As(err, &refused) {
		t.Error(err)
	}
}

func (s *scenarios) job(ctx context.Context, user, name string) (*borgpb.Job, error) {
	resp, err := s.client.GetJob(ctx, &borgrpc.GetJobRequest{User: user, Name: name})
	return resp.GetJob(), err
}

// until waits for a job to be as wanted.
func (s *scenarios) until(t *testing.T, user, name, what string, ok func(*borgpb.Job) bool) *borgpb.Job {
	t.Helper()
	var job *borgpb.Job
	err := until(shortly(t), what, func(ctx context.Context) (err error) {
		if job, err = s.job(ctx, user, name); err == nil && !ok(job) {
			err = fmt.Errorf("job %s/%s is %v", user, name, job.Status)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func (s *scenarios) tasksOf(t *testing.T, user, name string) []*borgpb.Task {
	t.Helper()
	resp, err := s.client.ListAllTasks(shortly(t), &borgrpc.ListTasksRequest{User: user, Name: name}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Tasks
}

// machines are what the machines are, by name.
func (s *scenarios) machines(t *testing.T) map[string]*borgpb.Machine {
	t.Helper()
	resp, err := s.client.ListMachines(shortly(t), &borgrpc.ListMachinesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*borgpb.Machine{}
	for _, m := range resp.Machines {
		all[m.Meta.Name] = m
	}
	return all
}

func (s *scenarios) names(t *testing.T) []string { return slices.Sorted(maps.Keys(s.machines(t))) }

// set changes attributes of a machine; an empty value takes one away.
func (s *scenarios) set(t *testing.T, machine string, attributes map[string]string) {
	t.Helper()
	o := &borgpb.SetMachine{Name: machine, SetAttributes: map[string]string{}}
	for key, value := range attributes {
		if value == "" {
			o.RemoveAttributes = append(o.RemoveAttributes, key)
		} else {
			o.SetAttributes[key] = value
		}
	}
	s.must(t, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: o}})
}

// why is what stands in the way of a task, once a scheduler has looked at it.
func (s *scenarios) why(t *testing.T, user, name string, index uint32, want string) *borgrpc.WhyResponse {
	t.Helper()
	var resp *borgrpc.WhyResponse
	err := until(shortly(t), "why it waits is "+want, func(ctx context.Context) (err error) {
		if resp, err = s.client.Why(ctx, &borgrpc.WhyRequest{User: user, Name: name, Index: index}); err == nil && !strings.Contains(fmt.Sprint(resp.Summary, resp.Reasons), want) {
			err = fmt.Errorf("%s %v", resp.Summary, resp.Reasons)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func allStarted(j *borgpb.Job) bool { return started(j) }

// sized is a service of production whose tasks ask for so much memory.
func sized(tasks int, memBytes int64) *borgpb.JobSpec {
	spec := sleepers(tasks)
	spec.Task.Resources = &borgpb.Resources{CpuMilli: 1, MemBytes: memBytes}
	return spec
}

func (s *scenarios) grant(t *testing.T, user string, band borgpb.Band, memBytes, expiresWallNs int64) *borgpb.Refusal {
	t.Helper()
	_, err := s.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{
		User: user, Band: band, Limit: &borgpb.Resources{CpuMilli: 1000, MemBytes: memBytes}, ExpiresWallNs: expiresWallNs,
	}}})
	return refusalOf(t, err)
}

// enforce has quotas enforced while a subtest runs.
func (s *scenarios) enforce(t *testing.T) {
	t.Helper()
	rule := func(on bool) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: new(on)}}}
	}
	s.must(t, rule(true))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := s.client.Mutate(ctx, rule(false)); err != nil {
			t.Error(err)
		}
	})
}

// Of 20 GiB, jobs of 15 are let in, 6 more are refused at once with what is missing, and
// 5 are let in. Nothing of what was refused is there.
func quotaAtSubmit(t *testing.T, s *scenarios) {
	s.enforce(t)
	if r := s.grant(t, "ann", borgpb.Band_BAND_PRODUCTION, 20<<30, 0); r != nil {
		t.Fatal(r)
	}
	if r := s.asks(t, s.ann, "ann", "first", sized(15, 1<<30)); r != nil {
		t.Fatal(r)
	}
	r := s.asks(t, s.ann, "ann", "beyond", sized(6, 1<<30))
	if r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_QUOTA || !strings.Contains(r.GetMessage(), "1GiB of memory is missing") {
		t.Errorf("6 of the 5 GiB that are left: %v; want a refusal that says that 1 GiB is missing", r)
	}
	if r := s.asks(t, s.ann, "ann", "rest", sized(5, 1<<30)); r != nil {
		t.Errorf("5 of the 5 GiB that are left: %v", r)
	}
	if j, err := s.job(shortly(t), "ann", "beyond"); err == nil {
		t.Errorf("the refused job is there: %v", j)
	}
	s.until(t, "ann", "rest", "what was let in runs", allStarted)
}

// Who has no quota submits ten times the cell at priority 0: it is let in, and what has
// no place waits with the reason.
func priorityZeroIsFree(t *testing.T, s *scenarios) {
	s.enforce(t)
	memBytes := int64(0)
	for _, m := range s.machines(t) {
		memBytes += m.Spec.Capacity.MemBytes
	}
	const each = 8 << 30
	spec := sized(int(10*memBytes/each), each)
	spec.Priority = 0
	if r := s.asks(t, s.bob, "bob", "free", spec); r != nil {
		t.Fatalf("ten times the cell at priority 0: %v", r)
	}
	s.until(t, "bob", "free", "the cell is full of it, and the rest waits", func(j *borgpb.Job) bool {
		return j.Status.GetRunning() > 0 && j.Status.GetPending() > uint32(8*memBytes/each)
	})
	// The last one: those before it may be given a place while they are asked about.
	s.why(t, "bob", "free", uint32(len(s.tasksOf(t, "bob", "free"))-1), "memory")
	spec.Priority = 1
	if r := s.asks(t, s.bob, "bob", "priced", spec); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_QUOTA {
		t.Errorf("the same at priority 1: %v, want a refusal for want of quota", r)
	}
}

// Quota of production beyond the cell is not sold; of the bands below, up to three cells
// are.
func soldWithinTheCell(t *testing.T, s *scenarios) {
	memBytes := int64(0)
	for _, m := range s.machines(t) {
		memBytes += m.Spec.Capacity.MemBytes
	}
	for _, q := range []struct {
		band     borgpb.Band
		memBytes int64
		sold     bool
	}{
		{borgpb.Band_BAND_PRODUCTION, memBytes + 1<<30, false},
		{borgpb.Band_BAND_PRODUCTION, memBytes / 2, true},
		{borgpb.Band_BAND_MONITORING, memBytes, false},
		{borgpb.Band_BAND_BATCH, 3*memBytes - 1<<30, true},
		{borgpb.Band_BAND_BATCH, 3*memBytes + 1<<30, false},
	} {
		if r := s.grant(t, "carol", q.band, q.memBytes, 0); (r == nil) != q.sold {
			t.Errorf("%d MiB of %v in a cell of %d MiB: %v; want it sold: %v", q.memBytes>>20, q.band, memBytes>>20, r, q.sold)
		}
	}
	for _, band := range []borgpb.Band{borgpb.Band_BAND_PRODUCTION, borgpb.Band_BAND_BATCH} {
		s.must(t, &borgpb.Op{Op: &borgpb.Op_DeleteQuota{DeleteQuota: &borgpb.DeleteQuota{User: "carol", Band: band}}})
	}
}

// When a quota has ended new work is refused, and what runs goes on.
func quotaExpires(t *testing.T, s *scenarios) {
	s.enforce(t)
	if r := s.grant(t, "bob", borgpb.Band_BAND_PRODUCTION, 4<<30, 0); r != nil {
		t.Fatal(r)
	}
	if r := s.asks(t, s.bob, "bob", "before", sized(1, 1<<30)); r != nil {
		t.Fatal(r)
	}
	s.until(t, "bob", "before", "it runs", allStarted)
	before := s.tasksOf(t, "bob", "before")[0].Status
	if r := s.grant(t, "bob", borgpb.Band_BAND_PRODUCTION, 4<<30, time.Now().Add(time.Second).UnixNano()); r != nil {
		t.Fatal(r)
	}
	n := 0
	err := until(shortly(t), "new work is refused", func(context.Context) error {
		n++
		if r := s.asks(t, s.bob, "bob", fmt.Sprint("after", n), sized(1, 1<<20)); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_QUOTA {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if after := s.tasksOf(t, "bob", "before")[0].Status; after.Attempt != before.Attempt || after.GetAttemptState() != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
		t.Errorf("the task that ran was %v and is %v", before, after)
	}
}

// A user may not kill another's job, an admin may; who was not granted it may not turn
// estimation off.
func capabilities(t *testing.T, s *scenarios) {
	if r := s.asks(t, s.ann, "ann", "hers", sized(1, 1<<20)); r != nil {
		t.Fatal(r)
	}
	if _, err := s.bob.Mutate(shortly(t), killOf("ann", "hers")); refusalOf(t, err).GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("bob kills ann's job: %v", err)
	}
	exact := sized(1, 1<<30)
	exact.Task.NoEstimation = true
	if r := s.asks(t, s.bob, "bob", "exact", exact); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("bob turns estimation off: %v, want a refusal", r)
	}
	s.must(t, killOf("ann", "hers"))
	s.must(t, &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "bob", Capability: "no-estimation"}}})
	if r := s.asks(t, s.bob, "bob", "exact", exact); r != nil {
		t.Fatalf("bob turns estimation off when he may: %v", r)
	}
	s.until(t, "bob", "exact", "it runs", allStarted)
	if is := s.tasksOf(t, "bob", "exact")[0].Status.Reservation; is != nil && !proto.Equal(is.Resources, exact.Task.Resources) {
		t.Errorf("it reserves %v, want its limit", is)
	}
}
