package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/history"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	historyClients = 24
	// Each operation is tried for so long. What has no answer then may yet be
	// done at any later time.
	historyTimeout = 10 * time.Second
	// Bound on the search for an order of one job's records.
	historyLimit = time.Minute
)

// historian is one client that does one thing at a time and writes down what it
// was told.
type historian struct {
	number  int
	c       *Cell
	client  *client.Client
	random  *rand.Rand
	keys    int
	began   time.Time
	records []history.Record
	// Version that was seen last, by name.
	versions map[string]uint64
}

func newHistorian(t *testing.T, c *Cell, number, keys int, seed uint64, began time.Time) *historian {
	t.Helper()
	h := &historian{
		number: number, c: c, random: rand.New(rand.NewPCG(seed, uint64(number))), keys: keys, began: began,
		versions: make(map[string]uint64),
	}
	var err error
	h.client, err = client.New(client.Config{Masters: c.masterAddrs(), CellID: c.CellID, Identity: c.source, Timeout: historyTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	return h
}

func (h *historian) nowNs() int64 { return int64(time.Since(h.began)) }

// do asks for so many things, one after the other.
func (h *historian) do(ctx context.Context, operations int) {
	for range operations {
		if ctx.Err() != nil {
			return
		}
		name := fmt.Sprintf("history-%d", h.random.IntN(h.keys))
		if op := h.op(name); op != nil {
			h.mutate(ctx, name, op)
		} else {
			h.read(ctx, name)
		}
	}
}

// op is a random mutation of a job, or nil for a read.
func (h *historian) op(name string) *borgpb.Op {
	user, tasks := h.c.user, 1+h.random.Uint32N(5)
	expect := uint64(0)
	if h.random.IntN(3) == 0 {
		expect = h.versions[name]
	}
	spec := unplaceable()
	spec.Tasks, spec.Task.Resources.CpuMilli = tasks, int64(10+h.random.IntN(3))
	raw, err := proto.Marshal(spec)
	if err != nil {
		panic(err)
	}
	switch n := h.random.IntN(100); {
	case n < 25:
		return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Spec: raw}}}
	case n < 40:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name, ExpectVersion: expect}}}
	case n < 55:
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: name, Spec: raw, ExpectVersion: expect}}}
	case n < 70:
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, Tasks: tasks, ExpectVersion: expect}}}
	}
	return nil
}

func (h *historian) mutate(ctx context.Context, name string, op *borgpb.Op) {
	record, _ := history.Asked(h.number, h.nowNs(), op)
	result, err := h.client.Mutate(ctx, op)
	var refused *client.RefusedError
	switch {
	case err == nil:
		record.Answered(h.nowNs(), result)
		h.versions[name] = result.Version
	case errors.As(err, &refused):
		record.Answered(h.nowNs(), &borgpb.Result{Refusal: refused.Refusal})
	}
	h.records = append(h.records, record)
}

func (h *historian) read(ctx context.Context, name string) {
	callNs := h.nowNs()
	resp, err := h.client.GetJob(ctx, &borgrpc.GetJobRequest{User: h.c.user, Name: name})
	var none *client.NotFoundError
	if err != nil && !errors.As(err, &none) {
		return
	}
	h.records = append(h.records, history.Showed(h.number, h.c.user+"/"+name, callNs, h.nowNs(), resp.GetJob()))
	h.versions[name] = resp.GetJob().GetMeta().GetVersion()
}

// What clients were told, while masters die, hang and are cut off, can have come
// from one cell that does one thing at a time.
func TestHistoryIsLinearizable(t *testing.T) {
	alongside(t)
	c, w := wiredCell(t, 5, 1)
	// From format 2 on a refusal is the answer to all tries of its request, those
	// under way too.
	c.hasLatestFormat(t)
	random := chance(t)
	s := &storm{c: c, w: w, random: random, did: make(map[string]int)}
	operations, keys := size(1_500, 100_000), size(40, 300)
	seed, began := random.Uint64(), time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	var all []*historian
	for n := range historyClients {
		h := newHistorian(t, c, n, keys, seed, began)
		all = append(all, h)
		clients.Go(func() { h.do(ctx, (operations+historyClients-1)/historyClients) })
	}
	done := make(chan struct{})
	go func() {
		clients.Wait()
		close(done)
	}()
	for over := false; !over; {
		c.disturb(t, s)
		// As much time at peace: a cell that never elects anybody tells nothing.
		select {
		case <-done:
			over = true
		case <-time.After(time.Duration(200+random.IntN(size(200, 2000))) * time.Millisecond):
		}
	}
	took := time.Since(began)
	var records []history.Record
	answers := make(map[string]int)
	for _, h := range all {
		records = append(records, h.records...)
		for _, r := range h.records {
			answers[fmt.Sprintf("%v %v", r.Kind, r.Answer)]++
		}
	}
	t.Logf("%d records in %v; faults: %v; answers: %v", len(records), took.Round(time.Second), s.did, answers)
	began = time.Now()
	v := history.Check(records, historyLimit)
	t.Logf("checked in %v: %+v", time.Since(began).Round(time.Millisecond), v)
	if v.Illegal > 0 || v.Unknown > 0 {
		t.Errorf("of %d jobs %d have no order and %d no verdict: %s", v.Keys, v.Illegal, v.Unknown, v.Detail)
	}
	figure(t, "chaos.history.operations", float64(v.Ops))
	figure(t, "chaos.history.illegal", float64(v.Illegal))
	figure(t, "chaos.history.unknown", float64(v.Unknown))
	if err := until(shortly(t), "the cell works again", c.ready); err != nil {
		t.Error(err)
	}
}

// disturb does one thing to the masters and takes it back.
func (c *Cell) disturb(t *testing.T, s *storm) {
	t.Helper()
	i := 1 + s.random.IntN(c.Masters)
	if elected, err := c.Elected(t.Context()); err == nil && s.random.IntN(2) == 0 {
		i = elected
	}
	name := c.masterName(i)
	switch what := s.random.IntN(10); {
	case what < 5:
		s.blow()
		<-time.After(time.Duration(200+s.random.IntN(1000)) * time.Millisecond)
		s.w.heal()
	case what < 8:
		s.did["killed"]++
		if err := c.again(t.Context(), name, func(ctx context.Context) error { return c.StartMaster(ctx, i) }); err != nil {
			t.Fatal(err)
		}
	case what < 9:
		s.did["hung"]++
		c.hang(t, name, time.Second)
	default:
		s.did["all killed"]++
		for i := 1; i <= c.Masters; i++ {
			if err := c.Kill(c.masterName(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.StartMasters(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
