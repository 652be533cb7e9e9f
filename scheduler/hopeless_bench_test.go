package scheduler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/scheduler"
)

// BenchmarkHopeless is what a scheduler does while many users submit jobs of one task that
// no machine may hold: it takes in what came, entry by entry, and finds out that there is
// nothing to do. Many such jobs wait already.
func BenchmarkHopeless(b *testing.B) {
	const (
		machines, users = 1_000, 512
		before, more    = 64, 16
		// Ops of an entry.
		batch = 16
	)
	spec := service(1, 200, 100, 1<<20)
	spec.Task.Constraints = []*borgpb.Constraint{{Key: "there-is-no-such", Relation: borgpb.Relation_RELATION_PRESENT}}
	var took []time.Duration
	for range b.N {
		w := newWorld(b, scheduler.Config{Seed: 1})
		w.copy = w.cell
		for i := range machines {
			w.must(b, addMachine(fmt.Sprintf("m%05d", i), &borgpb.MachineSpec{
				Addr: "10.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: 64_000, MemBytes: 256 << 30}, PortFirst: 20_000, PortLast: 20_999,
			}))
		}
		take := func(job, from int) {
			e := &borgpb.Entry{}
			for i := from; i < from+batch; i++ {
				op, err := proto.Marshal(submitJob(fmt.Sprint("user-", i), fmt.Sprint("job-", job), spec))
				if err != nil {
					b.Fatal(err)
				}
				e.Ops = append(e.Ops, op)
			}
			w.wallNs, w.timeNs = w.wallNs+5e6, w.timeNs+5e6
			e.CellTimeNs, e.WallTimeNs = w.timeNs, w.wallNs
			data, err := proto.Marshal(e)
			if err != nil {
				b.Fatal(err)
			}
			_, events := w.cell.Apply(w.cell.Index()+1, 1, data)
			began := time.Now()
			w.s.Observe(w.cell, events)
			w.cell.Flush(nil)
			if out := w.s.Pass(w.cell); out.ID != 0 || out.More {
				b.Fatal("something was placed")
			}
			if w.s.Plan(w.cell) != nil {
				b.Fatal("something is to be moved")
			}
			took = append(took, time.Since(began))
		}
		for job := range before {
			for from := 0; from < users; from += batch {
				take(job, from)
			}
		}
		took = took[:0]
		for job := range more {
			for from := 0; from < users; from += batch {
				take(before+job, from)
			}
		}
	}
	var sum time.Duration
	for _, t := range took {
		sum += t
	}
	slices.Sort(took)
	// Now and then moves are looked for: that is in the mean alone.
	b.ReportMetric(float64(sum.Nanoseconds())/(more*users), "mean_ns/submit")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/batch, "median_ns/submit")
}
