package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"borg/borgmaster/cell"
	"borg/scheduler"
)

// cutCell is a cell whose optimum is known: the machines that a trial takes away last are cut up into
// tasks, which come in any order, with any priority; what is left over of all of them is a
// part of one machine. So one machine fewer has too little CPU and memory.
func cutCell(t *testing.T, seed uint64, spare float64, mixed bool) (c *cell.Cell, optimum int) {
	r := rand.New(rand.NewPCG(seed, 0xc07))
	w := newWorld(t, scheduler.Config{})
	optimum = 5 + r.IntN(6)
	type size struct{ cpu, mem int64 }
	sizes := make(map[string]size)
	for i := range optimum * 2 {
		of := size{32_000, 128 << 10}
		if mixed {
			shape := shapes[r.IntN(len(shapes))]
			of = size{shape.cpuMilli, shape.memGiB << 10}
		}
		name := fmt.Sprintf("m%d", i)
		sizes[name] = of
		w.must(t, addMachine(name, machineSpec(of.cpu, of.mem<<20)))
	}
	cut := func(n int) (names []string) {
		keep := scheduler.TrialMachines(w.cell, seed, n)
		for m := range w.cell.Machines() {
			if keep(m) {
				names = append(names, m.Name())
			}
		}
		return names
	}
	last := sizes[cut(optimum)[0]]
	for _, name := range cut(optimum) {
		if !slices.Contains(cut(optimum-1), name) {
			last = sizes[name]
		}
	}
	left := size{int64(spare * float64(last.cpu)), int64(spare * float64(last.mem))}
	// less takes a part of what may be left over.
	less := func(left *int64, of int64, machines int) int64 {
		part := min(*left, int64(float64(*left)/float64(machines)*2*r.Float64()), of*2/5)
		*left -= part
		return of - part
	}
	var tasks []size
	for i, name := range cut(optimum) {
		free := sizes[name]
		free = size{less(&left.cpu, free.cpu, optimum-i), less(&left.mem, free.mem, optimum-i)}
		for n := 2 + r.IntN(5); n > 1; n-- {
			part := func(of int64) int64 { return of * int64(100+r.IntN(900)) / 1000 * 2 / int64(n+1) }
			piece := size{max(part(free.cpu)/10*10, 10), part(free.mem)}
			tasks = append(tasks, piece)
			free = size{free.cpu - piece.cpu, free.mem - piece.mem}
		}
		tasks = append(tasks, free)
	}
	r.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	for i, k := range tasks {
		w.must(t, submitJob(fmt.Sprintf("u%d", r.IntN(4)), fmt.Sprintf("j%d", i), service(1, []int32{0, 50, 110, 200, 240}[r.IntN(5)], k.cpu, k.mem<<20)))
	}
	return w.cell, optimum
}

// compacted is the fewest machines of a trial onto which a packing fits; one more than there are when
// it does not.
func compacted(t *testing.T, k scheduler.Packing, trial uint64, pack func(func(*cell.Machine) bool) (scheduler.Packed, error)) int {
	tr := k.Trial(trial)
	for n, more := tr.Next(); more; n, more = tr.Next() {
		p, err := pack(tr.Keep(n))
		if err != nil {
			t.Fatal(err)
		}
		tr.Note(p.Fits())
	}
	if n, ok := tr.Machines(); ok {
		return n
	}
	return k.Workload.NumMachines() + 1
}

// TestPackNearOptimum compacts cells whose optimum is known, with little to spare on all machines
// together: it needs 1.03 times as many machines at most, and never more than in the order
// of arrival.
func TestPackNearOptimum(t *testing.T) {
	for _, mixed := range []bool{false, true} {
		for _, spare := range []float64{0.5, 0.35} {
			for _, policy := range []scheduler.Policy{scheduler.Hybrid, scheduler.BestFit} {
				if spare < 0.5 && policy == scheduler.BestFit {
					// Too hard for it.
					continue
				}
				optimum, sum, inArrival := 0, 0, 0
				for seed := range uint64(20) {
					c, least := cutCell(t, seed, spare, mixed)
					k := scheduler.Packing{Config: scheduler.Config{Seed: 1, Policy: policy}, Workload: c}
					arrival := compacted(t, k, seed, func(keep func(*cell.Machine) bool) (scheduler.Packed, error) { return scheduler.PackInArrival(k, keep) })
					n := compacted(t, k, seed, k.Pack)
					if n > arrival || n < least {
						t.Errorf("cell %d, %v to spare, %v: %d machines; in order of arrival %d, and %d are needed", seed, spare, policy, n, arrival, least)
					}
					optimum, sum, inArrival = optimum+least, sum+n, inArrival+arrival
				}
				t.Logf("machines of several sizes %v, %v to spare, %v: %d machines for %d, in order of arrival %d", mixed, spare, policy, sum, optimum, inArrival)
				if 100*sum > 103*optimum {
					t.Errorf("%v to spare, %v: %d machines for %d, more than 1.03 times as many", spare, policy, sum, optimum)
				}
			}
		}
	}
}

// TestPackNeverWorse packs random cells, with gangs, allocs, constraints and limits, onto some of
// their machines: no less is placed than in the order of arrival, and all is accounted for.
func TestPackNeverWorse(t *testing.T) {
	better := 0
	rapid.Check(t, func(rt *rapid.T) {
		w := contested(rt, t, scheduler.Config{Seed: 1})
		keep := func(m *cell.Machine) bool { return m.Name() != "n0" && m.Name() != "m1" }
		k := scheduler.Packing{Config: scheduler.Config{Seed: 1, Enough: rapid.SampledFrom([]int{1, 50}).Draw(rt, "enough")}, Workload: w.cell}
		unplaced := 0
		k.Unplaced = func(*cell.Job, uint32) { unplaced++ }
		got, err := k.Pack(keep)
		if err != nil {
			rt.Fatal(err)
		}
		arrival, err := scheduler.PackInArrival(k, keep)
		if err != nil {
			rt.Fatal(err)
		}
		if got.Fits() != arrival.Fits() && arrival.Fits() || got.Placed+got.Pending != arrival.Placed+arrival.Pending || unplaced > got.Pending {
			rt.Fatalf("%+v, in order of arrival %+v; %d told", got, arrival, unplaced)
		}
		if !got.Fits() && (got.ProdPending > arrival.ProdPending || got.ProdPending == arrival.ProdPending && got.Pending-got.Picky > arrival.Pending-arrival.Picky) {
			rt.Fatalf("%+v, in order of arrival %+v", got, arrival)
		}
		if got.Pending < arrival.Pending {
			better++
		}
		again, err := k.Pack(keep)
		if err != nil || !reflect.DeepEqual(again, got) {
			rt.Fatalf("%+v, then %+v, %v", got, again, err)
		}
	})
	t.Logf("more is placed in %d cells", better)
}
