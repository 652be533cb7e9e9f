package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// backlog is a full cell in which tasks wait for which no machine has room.
type backlog struct {
	*world
	rand *rand.Rand
	// jobs counts those that were submitted beyond the workload that fills the cell.
	jobs int
	// large are those that wait, small those that have room, in order of submission.
	large, small []cell.JobKey
}

// newBacklog fills a cell, then submits jobs until at least so many tasks wait.
func newBacklog(tb testing.TB, wl workload, tasks int) *backlog {
	b := &backlog{world: full(tb, wl), rand: rand.New(rand.NewPCG(wl.seed, 0xbac4))}
	for waits := b.waiting(); waits < tasks; waits = b.waiting() {
		for range max(min(tasks-waits, 2000)/10, 1) {
			b.submit(tb, &spent{}, false)
		}
		for range 100 {
			sp := &spent{}
			if b.online(tb, sp); sp.placed == 0 {
				break
			}
		}
	}
	return b
}

// waiting counts the tasks that wait.
func (b *backlog) waiting() (n int) {
	for j := range b.cell.Jobs() {
		pending, _, _ := j.Counts()
		n += int(pending)
	}
	return n
}

// submit sends a job of ten tasks: small ones that have room, or large ones that have none even
// if all below them give way. One in twenty limits its tasks per rack, two have a constraint.
func (b *backlog) submit(tb testing.TB, sp *spent, small bool) {
	r := b.rand
	priority := []int32{0, 25, 50, 50, 101, 105, 105, 200, 200, 210, 240}[r.IntN(11)]
	cpuMilli, memBytes := int64(48_000+50*r.IntN(400)), int64(r.IntN(1<<10)+1)<<26
	switch {
	case small:
		cpuMilli, memBytes = int64(100+50*r.IntN(20)), int64(1+r.IntN(20))<<28
	case priority >= 120:
		// Most work gives way to production: more than the largest machine has.
		cpuMilli += 49_000
	}
	spec := service(10, priority, cpuMilli, memBytes)
	if priority < 120 {
		spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
	}
	switch r.IntN(20) {
	case 0:
		spec.MaxPerRack = 1
	case 1, 2:
		spec.Task.Constraints = constraints([]string{picky[r.IntN(len(picky))].text}, false)
	}
	key := cell.JobKey{User: fmt.Sprintf("late%d", r.IntN(40)), Name: fmt.Sprintf("late%d", b.jobs)}
	b.jobs++
	if small {
		b.small = append(b.small, key)
	} else {
		b.large = append(b.large, key)
	}
	b.take(tb, sp, submitJob(key.User, key.Name, spec))
}

// fail ends a task that runs somewhere; it waits again.
func (b *backlog) fail(tb testing.TB, sp *spent) {
	for {
		m := b.cell.Machine(fmt.Sprintf("m%06d", b.rand.IntN(b.cell.NumMachines())))
		for p := range m.Copies() {
			j := b.cell.JobByUID(p.JobUID())
			if p.Current() && p.Alloc() == nil && j != nil && b.rand.IntN(4) == 0 {
				b.take(tb, sp, reported(j, p.Index(), m.Name(), p.Attempt(), borgpb.AttemptState_ATTEMPT_STATE_FAILED))
				return
			}
		}
	}
}

// kill kills a job. What ran of it has stopped at once.
func (b *backlog) kill(tb testing.TB, sp *spent, key cell.JobKey) {
	j := b.cell.Job(key)
	var stops []*borgpb.Op
	for i, task := range j.Tasks() {
		if p := task.Current(); p != nil {
			stops = append(stops, reported(j, i, p.Machine().Name(), p.Attempt(), borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
		}
	}
	b.take(tb, sp, asUser(key.User, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: key.User, Name: key.Name}}}))
	for _, op := range stops {
		b.take(tb, sp, op)
	}
}

// round is what happens between two passes of a busy cell, and the pass: twenty tasks fail, ten small
// jobs come and ten large ones, and as many are killed. It returns the milliseconds of
// the scheduler's part.
func (b *backlog) round(tb testing.TB) (ms, cpuMS float64) {
	sp := &spent{}
	for range 10 {
		b.fail(tb, sp)
		b.fail(tb, sp)
		b.submit(tb, sp, true)
		b.submit(tb, sp, false)
		n, last := b.rand.IntN(len(b.large)), len(b.large)-1
		b.kill(tb, sp, b.large[n])
		b.large[n], b.large = b.large[last], b.large[:last]
		if len(b.small) > 50 {
			b.kill(tb, sp, b.small[0])
			b.small = b.small[1:]
		}
	}
	b.online(tb, sp)
	return 1000 * sp.time.Seconds(), 1000 * sp.cpu.Seconds()
}

// BenchmarkBacklog is a pass on a full cell of 10,000 machines while 20,000 tasks wait for which
// there is no room, and the same with 200.
func BenchmarkBacklog(b *testing.B) {
	for range b.N {
		var p95 []float64
		for _, tasks := range []int{200, 20_000} {
			bl := newBacklog(b, workload10k, tasks)
			runtime.GC()
			var passes, cpu []float64
			for range 5 {
				bl.round(b)
			}
			for range 100 {
				ms, cpuMS := bl.round(b)
				passes, cpu = append(passes, ms), append(cpu, cpuMS)
			}
			p95 = append(p95, percentile(passes, 95))
			b.Logf("%d tasks wait, in the end %d, in %d classes: p50 %.2f ms, p95 %.2f ms, most %.2f ms; of CPU p50 %.2f, p95 %.2f", tasks, bl.waiting(), scheduler.NumClasses(bl.s),
				percentile(passes, 50), percentile(passes, 95), percentile(passes, 100), percentile(cpu, 50), percentile(cpu, 95))
		}
		b.ReportMetric(p95[1], "sched.backlog20k.pass_p95_ms")
		b.ReportMetric(p95[1]/p95[0], "sched.backlog20k.pass_p95_ratio")
	}
}
