package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// A cell that is short of processor has the size that is measured in minutes.
	scarceMachines = 2000
	// How often the elected master is killed at each quota.
	scarceKills = 2
	// Rest before each kill with two cores; with less it is as much longer.
	scarceRest = 15 * time.Second
	// Bound on each part with two cores.
	scarceWait = 3 * time.Minute
	// Period of a quota, microseconds.
	quotaPeriodUs = 100_000
)

// scarceQuotas are the quotas, in cores, and how figures call them. The first one is what
// others are compared with.
var scarceQuotas = []struct {
	cores float64
	name  string
}{{2, "2"}, {1, "1"}, {0.5, "05"}}

// reading is how many tasks had started on the machines some time after a fill began; a
// curve has them in order.
type reading struct {
	after time.Duration
	tasks int
}

type curve []reading

// until is the time at which so many tasks had started.
func (c curve) until(tasks int) time.Duration {
	i := slices.IndexFunc(c, func(r reading) bool { return r.tasks >= tasks })
	if i < 0 {
		return 0
	}
	return c[i].after
}

// BenchmarkScarce is a cell of five masters and two thousand pretended machines
// (BORG_BENCH_MACHINES: as many), all processes of which share a quota of 2, 1 and 0.5
// cores: how much longer it takes to fill, and until the machines of a killed elected master
// are polled by others. Nothing else may differ. BORG_BENCH_QUOTAS names those quotas that
// are measured, with commas between them.
func BenchmarkScarce(b *testing.B) {
	var all []scarceRun
	for _, q := range scarceQuotas {
		if only := os.Getenv("BORG_BENCH_QUOTAS"); only != "" && !slices.Contains(strings.Split(only, ","), q.name) {
			continue
		}
		// Each cell has ended before the next one starts.
		b.Run(fmt.Sprint("cores=", q.cores), func(b *testing.B) { all = append(all, measureScarce(b, q.cores, q.name)) })
	}
	if len(all) < len(scarceQuotas) {
		return
	}
	b.Run("ratios", func(b *testing.B) {
		for _, run := range all[1:] {
			b.ReportMetric(run.fill.Seconds()/all[0].fill.Seconds(), "scarce.fill.ratio_"+run.name)
			b.ReportMetric(run.coverage.Seconds()/all[0].coverage.Seconds(), "scarce.coverage.ratio_"+run.name)
		}
	})
}

// scarceRun is how long things took at a quota.
type scarceRun struct {
	name           string
	fill, coverage time.Duration
}

func measureScarce(b *testing.B, cores float64, name string) scarceRun {
	b.Setenv("BORG_BENCH_MACHINES", fmt.Sprint(benchMachines(scarceMachines)))
	group := newCPUGroup(b)
	m := newMasterBench(b)
	slower := 2 / cores
	m.prefix, m.wait = "scarce.q"+name+".", time.Duration(float64(scarceWait)*slower)
	alter := m.cell.alter
	m.cell.alter = func(spec *processSpec) {
		if alter != nil {
			alter(spec)
		}
		group.join(spec)
	}
	m.start()
	group.limit(b, cores)
	elections, shareSets := m.counting("borg_borgmaster_elections_total", nil), m.counting("borg_borgmaster_share_sets_total", nil)
	tasks := m.cell.Machines * benchTasksEach
	stop := m.follow()
	fill := m.fillAll()
	run := stop()
	last, p99 := run.until(tasks), run.until(tasks*99/100)
	m.Logf("99 of 100 tasks started within %v, the last one within %v, by %d readings", p99, last, len(run))
	m.named(last.Seconds()/p99.Seconds(), "scarce.fill.last_to_p99_"+name)
	m.named(together(elections()), "scarce.fill.elections_"+name)
	m.named(together(shareSets()), "scarce.fill.shares_moved_"+name)
	m.named(float64(int(m.status().Begun)-tasks), "scarce.fill.started_twice_"+name)
	var coverage time.Duration
	for i := range scarceKills {
		time.Sleep(time.Duration(float64(scarceRest) * slower))
		coverage += m.loseScarce(i, name)
	}
	m.named(float64(int(m.status().Begun)-tasks), "scarce.coverage.started_twice_"+name)
	return scarceRun{name, fill, coverage / scarceKills}
}

// follow asks the pretended machines now and then how many tasks have started, until the
// returned function is called.
func (m *masterBench) follow() (stop func() curve) {
	ctx, cancel := context.WithCancel(m.Context())
	began, all := time.Now(), make(chan curve, 1)
	// Ends with stop, or with the benchmark.
	go func() {
		var c curve
		ticker := time.NewTicker(benchLook)
		defer ticker.Stop()
		for ended := false; !ended; {
			select {
			case <-ctx.Done():
				ended = true
			case <-ticker.C:
			}
			if s, err := m.cell.FakeStatus(m.Context()); err == nil {
				c = append(c, reading{time.Since(began), int(s.Begun)})
			}
		}
		all <- c
	}()
	return func() curve {
		cancel()
		return <-all
	}
}

// loseScarce kills the elected master, and returns how long its machines are polled by
// nobody. Meanwhile one master is elected, who says once who shares the machines.
func (m *masterBench) loseScarce(i int, name string) time.Duration {
	elected := m.elected()
	others := func(counter string) (since func() float64) {
		read := func() (sum float64) {
			for k := 1; k <= m.cell.Masters; k++ {
				if k == elected {
					continue
				}
				m.every("a master shows its metrics", func(ctx context.Context) error {
					n, err := m.cell.countedBy(ctx, k, counter, nil)
					if err == nil {
						sum += n
					}
					return err
				})
			}
			return sum
		}
		before := read()
		return func() float64 { return read() - before }
	}
	elections, shareSets := others("borg_borgmaster_elections_total"), others("borg_borgmaster_share_sets_total")
	took := m.covered(elected, m.kill(elected), fmt.Sprintf("coverage%d-", i+1), "seconds")
	time.Sleep(scarceRest)
	m.named(elections()-1, "scarce.coverage.elections_too_many_"+name)
	m.named(shareSets()-1, "scarce.coverage.shares_moved_"+name)
	m.bring(elected)
	return took
}

// cpuGroup is a control group whose processes share a limit of processor time.
type cpuGroup struct {
	dir string
	// Whether the group is one of version 2.
	unified bool
}

// newCPUGroup makes a group without a limit and removes it when the benchmark ends.
func newCPUGroup(b *testing.B) *cpuGroup {
	b.Helper()
	name := fmt.Sprint("borg-scarce-", os.Getpid())
	g := &cpuGroup{dir: filepath.Join(cgroupRoot, "cpu", name)}
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		g = &cpuGroup{dir: filepath.Join(cgroupRoot, name), unified: true}
		if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte("+cpu"), 0); err != nil {
			b.Skipf("control groups cannot limit the processor here: %v", err)
		}
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		b.Skipf("a control group is needed, which takes root: %v", err)
	}
	b.Cleanup(func() {
		// The cell has ended by now; the kernel may take a moment to notice.
		for range 50 {
			if err := os.Remove(g.dir); err == nil || errors.Is(err, os.ErrNotExist) {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		b.Errorf("the control group %s is left", g.dir)
	})
	return g
}

// join makes a process start in the group.
func (g *cpuGroup) join(spec *processSpec) {
	const script = `echo $$ > "$1" && shift && exec "$@"`
	spec.Args = append([]string{"-c", script, "sh", filepath.Join(g.dir, "cgroup.procs"), spec.Path}, spec.Args...)
	spec.Path = "/bin/sh"
}

// limit sets how many cores the processes of the group may use together.
func (g *cpuGroup) limit(b *testing.B, cores float64) {
	b.Helper()
	us := int(cores * quotaPeriodUs)
	file, text := "cpu.cfs_quota_us", fmt.Sprint(us)
	if g.unified {
		file, text = "cpu.max", fmt.Sprintf("%d %d", us, quotaPeriodUs)
	}
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0); err != nil {
		b.Fatal(err)
	}
}
