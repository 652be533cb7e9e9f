package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"borg/borgmaster/client"
	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestQuotaUnderSubmitsAndFailOvers has many clients of one user submit, resize, update
// and kill at the same time while elected masters die. What is let in is never beyond
// the quota in the end, nor beyond twice the quota at any read, with what stops; what was acknowledged is there, and what was
// refused is not.
func TestQuotaUnderSubmitsAndFailOvers(t *testing.T) {
	alongside(t)
	const clients, limitGiB = 16, 100
	submits, kills := size(200, 1000), size(1, 4)
	seed := uint64(time.Now().UnixNano())
	defer func() {
		if t.Failed() {
			t.Logf("what was asked for follows from seed %d", seed)
		}
	}()
	c := fakeCell(t, 3, 8, fleet.Life{})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	mustQuota(t, c, limitGiB)

	q := &quotaRun{c: c, user: "ann", jobs: map[string]int{}}
	stop := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() { q.look(t, stop, limitGiB) })
	each := submits / clients
	var asking sync.WaitGroup
	for i := range clients {
		asking.Go(func() {
			cl := c.clientOf(t, q.user, &q.waited)
			q.ask(t, cl, i, each, rand.New(rand.NewPCG(seed, uint64(i))))
		})
	}
	for k := range kills {
		// In the middle of it.
		want := int64(each * clients * (k + 1) / (kills + 1))
		err := until(shortly(t), "the next master is to be killed", func(context.Context) error {
			if n := q.asked.Load(); n < want {
				return fmt.Errorf("%d of %d were asked for", n, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		elected, err := c.electedNow(shortly(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Crash(c.masterName(elected)); err != nil {
			t.Fatal(err)
		}
	}
	asking.Wait()
	close(stop)
	looking.Wait()
	q.holds(t, limitGiB)
	t.Logf("%d submits at once by %d clients, %d elected masters killed: %d let in, %d refused for want of quota, %d looks: at most %d of %d GiB charged",
		each*clients, clients, kills, q.admitted.Load(), q.refused.Load(), q.looks, q.most>>30, limitGiB)
	if q.admitted.Load() == 0 || q.refused.Load() == 0 || q.looks == 0 {
		t.Error("too little of something")
	}
}

func mustQuota(t *testing.T, c *Cell, limitGiB int64) {
	t.Helper()
	enforce := true
	for _, op := range []*borgpb.Op{
		{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{
			User: "ann", Band: borgpb.Band_BAND_BATCH, Limit: &borgpb.Resources{CpuMilli: 8_000, MemBytes: limitGiB << 30},
		}}},
		{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: &enforce}}},
	} {
		if _, err := c.client.Mutate(shortly(t), op); err != nil {
			t.Fatal(err)
		}
	}
}

// quotaRun is what many clients of one user ask for.
type quotaRun struct {
	c                        *Cell
	user                     string
	asked, admitted, refused atomic.Int64
	waited                   atomic.Int64
	// Jobs that were acknowledged, and how many tasks of a GiB they have.
	mu   sync.Mutex
	jobs map[string]int
	// By the one who looks.
	looks int
	most  int64
}

// ask submits jobs of one client, and now and then changes one of his before.
func (q *quotaRun) ask(t *testing.T, cl *client.Client, client, n int, r *rand.Rand) {
	do := func(op *borgpb.Op) (done bool) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := cl.Mutate(ctx, op)
		if refusal, ok := quotaRefusal(err); ok && refusal {
			q.refused.Add(1)
		} else if err != nil {
			t.Errorf("%v: %v", op, err)
		}
		return err == nil
	}
	for i := range n {
		name := fmt.Sprintf("j%d-%d", client, i)
		spec := sized(1+r.IntN(6), 1<<30)
		spec.Priority = 110
		if do(submitOf(t, q.user, name, spec)) {
			q.admitted.Add(1)
			q.has(name, int(spec.Tasks))
		}
		q.asked.Add(1)
		old := fmt.Sprintf("j%d-%d", client, r.IntN(i+1))
		if q.tasks(old) == 0 {
			continue
		}
		switch tasks := 1 + r.IntN(12); r.IntN(6) {
		case 0:
			if do(killOf(q.user, old)) {
				q.has(old, 0)
			}
		case 1:
			if do(&borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: q.user, Name: old, Tasks: uint32(tasks)}}}) {
				q.has(old, tasks)
			}
		}
	}
}

func (q *quotaRun) has(name string, tasks int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs[name] = tasks; tasks == 0 {
		delete(q.jobs, name)
	}
}

func (q *quotaRun) tasks(name string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.jobs[name]
}

// quotaRefusal tells whether an answer is a refusal, and one for want of quota. That a
// job is of the size that it is asked to have is none.
func quotaRefusal(err error) (quota, ok bool) {
	var refused *client.RefusedError
	if !errors.As(err, &refused) {
		return false, false
	}
	return refused.Refusal.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_QUOTA, true
}

// look asks again and again what is charged.
func (q *quotaRun) look(t *testing.T, stop chan struct{}, limitGiB int64) {
	for {
		select {
		case <-stop:
			return
		case <-t.Context().Done():
			return
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		resp, err := q.c.client.ListQuotas(ctx, q.user)
		cancel()
		if err != nil {
			t.Error(err)
			return
		}
		for _, u := range resp.Quotas {
			q.most = max(q.most, u.Used.GetMemBytes())
			// As much again may stop: what was killed is charged until it is gone.
			if u.Used.GetMemBytes() > 2*limitGiB<<30 {
				t.Errorf("at index %d %d GiB of %v are charged, and %d are granted, with as much that may stop", resp.Index, u.Used.GetMemBytes()>>30, u.Band, limitGiB)
			}
		}
		q.looks++
	}
}

// holds compares what the cell has with what clients were told.
func (q *quotaRun) holds(t *testing.T, limitGiB int64) {
	total := 0
	resp, err := q.c.client.ListJobs(shortly(t), &borgrpc.ListJobsRequest{User: q.user})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range resp.Jobs {
		total += int(j.Spec.Tasks)
		if told := q.tasks(j.Meta.Name); told != int(j.Spec.Tasks) {
			t.Errorf("job %s has %d tasks, and its user was told %d", j.Meta.Name, j.Spec.Tasks, told)
		}
		q.has(j.Meta.Name, 0)
	}
	for name, tasks := range q.jobs {
		t.Errorf("job %s with %d tasks was acknowledged, and is not there", name, tasks)
	}
	if int64(total) > limitGiB {
		t.Errorf("jobs of %d GiB are let in, and %d are granted", total, limitGiB)
	}
}
