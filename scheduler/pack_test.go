package scheduler_test

import (
	"bytes"
	"testing"

	"borg/borgmaster/cell"
	"borg/scheduler"
)

// recordsOf is the whole cell as it is written down.
func recordsOf(c *cell.Cell) []byte {
	var b bytes.Buffer
	for k, v := range c.Records() {
		b.Write(k)
		b.Write(v)
	}
	return b.Bytes()
}

// TestPack packs the same workload into a cell in which it has no places yet,
// into one in which it runs, and by way of the log.
func TestPack(t *testing.T) {
	wl := workload{seed: 2, machines: 100, tasks: 1500, fillPercent: 50}
	cfg := scheduler.Config{Seed: 1, Enough: 1 << 20}
	every := func(*cell.Machine) bool { return true }
	c := loaded(t, wl)
	before := recordsOf(c)
	empty, err := scheduler.Pack(c, cfg, every)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, recordsOf(c)) {
		t.Error("packing changed the cell")
	}
	all := 0
	for j := range c.Jobs() {
		all += int(j.NumTasks())
	}
	for s := range c.AllocSets() {
		all += int(s.NumAllocs())
	}
	if empty.Placed+empty.Pending != all || !empty.Fits() {
		t.Errorf("%+v of %d, want all placed", empty, all)
	}
	sp, _ := pack(t, c, cfg)
	if sp.placed != all {
		t.Errorf("by way of the log %d were placed, want %d", sp.placed, all)
	}
	full, err := scheduler.Pack(c, cfg, every)
	if err != nil {
		t.Fatal(err)
	}
	if full.Placed != empty.Placed || full.StrandedCPUPercent != empty.StrandedCPUPercent || full.StrandedMemPercent != empty.StrandedMemPercent {
		t.Errorf("packed where it runs: %+v, where it waits: %+v", full, empty)
	}
	few, err := scheduler.Pack(c, cfg, func(m *cell.Machine) bool { return m.Name() < "m000030" })
	if err != nil {
		t.Fatal(err)
	}
	if few.Machines != 30 || few.Fits() || few.Pending == 0 {
		t.Errorf("on 30 machines: %+v, want some that wait", few)
	}
}

// TestCompact wants the policies in the order that their purpose gives them, where tasks come
// as they do in a live cell, summed over a few cells; and fewer machines by each of them
// where the order is ours.
func TestCompact(t *testing.T) {
	arrival, ours := make(map[scheduler.Policy]int), make(map[scheduler.Policy]int)
	for seed := range uint64(3) {
		c := loaded(t, workload{seed: seed, machines: 150, tasks: 2000, uniform: true, plain: true})
		for _, policy := range []scheduler.Policy{scheduler.Hybrid, scheduler.BestFit, scheduler.WorstFit} {
			cfg := scheduler.Config{Seed: 1, Enough: 1 << 20, Policy: policy}
			k := scheduler.Packing{Config: cfg, Workload: c}
			arrival[policy] += compacted(t, k, seed, func(keep func(*cell.Machine) bool) (scheduler.Packed, error) { return scheduler.PackInArrival(k, keep) })
			n, ok, err := scheduler.Compact(c, cfg, seed)
			if err != nil || !ok {
				t.Fatalf("seed %d, %v: %d machines, %v, %v", seed, policy, n, ok, err)
			}
			ours[policy] += n
		}
	}
	if arrival[scheduler.Hybrid] >= arrival[scheduler.BestFit] || arrival[scheduler.Hybrid] >= arrival[scheduler.WorstFit] {
		t.Errorf("machines by policy: %v, want hybrid to need the fewest", arrival)
	}
	for policy, n := range ours {
		if n >= arrival[policy] {
			t.Errorf("%v: %d machines, in order of arrival %d, want fewer", policy, n, arrival[policy])
		}
	}
	t.Logf("machines in order of arrival %v, in ours %v", arrival, ours)
}

// TestPackLive packs a cell in which batch runs on what production reserves and
// does not use: it fits where it runs, by the reservations that the cell has.
func TestPackLive(t *testing.T) {
	w := newWorld(t, scheduler.Config{})
	w.must(t, addMachine("m", machineSpec(10_000, 100<<30)))
	w.must(t, submitJob("ann", "prod", service(2, 200, 5000, 50<<30)))
	if n := w.settleAll(t); n != 2 {
		t.Fatalf("%d of production have a place, want 2", n)
	}
	for _, task := range w.cell.Job(cell.JobKey{User: "ann", Name: "prod"}).Tasks() {
		w.must(t, reserved(task.Current(), 1000, 10<<30))
	}
	w.must(t, submitJob("ann", "batch", service(8, 110, 1000, 10<<30)))
	if n := w.settleAll(t); n != 8 {
		t.Fatalf("%d of batch have a place, want 8", n)
	}
	p, err := scheduler.Pack(w.cell, scheduler.Config{Seed: 1}, func(*cell.Machine) bool { return true })
	if err != nil || p.Placed != 10 || p.Pending != 0 || p.Limits.CPUMilli != 18_000 || p.Reclaimed.CPUMilli != 8_000 {
		t.Errorf("%+v, %v; want all 10 placed, 8 of 18 cores in reclaimed resources", p, err)
	}
}
