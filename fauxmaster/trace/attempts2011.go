package trace

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// Google's trace of 2011 is also read in another layout: machine_events.csv with
// words for events, and tasks.csv with a row for each attempt of a task, with its
// times. Both name their columns; times are in milliseconds of the trace. They may
// be compressed.

type taskEvent2011 struct {
	atUs, attempt int64
	what, machine int64
	id            task2011ID
	said          *task2011
}

// table finds a table by its name; empty: there is none.
func table(dir, name string) (string, error) {
	for _, suffix := range []string{".csv.zst", ".csv.gz", ".csv"} {
		path := filepath.Join(dir, name+suffix)
		switch _, err := os.Stat(path); {
		case err == nil:
			return path, nil
		case !os.IsNotExist(err):
			return "", fmt.Errorf("look for a table of a trace: %w", err)
		}
	}
	return "", nil
}

// loadAttempts reads a folder of that layout, of which tasks is the file.
func (g *Google2011) loadAttempts(dir, tasks string) (*Cell, error) {
	machines, err := table(dir, "machine_events")
	if err == nil && machines == "" {
		err = fmt.Errorf("%s has tasks.csv and no machine_events.csv", dir)
	}
	if err != nil {
		return nil, err
	}
	if err := readFile(machines, g.ReadMachineTable); err != nil {
		return nil, err
	}
	if err := readFile(tasks, g.ReadAttempts); err != nil {
		return nil, err
	}
	return g.Cell()
}

// ReadMachineTable reads machine_events.csv.
func (g *Google2011) ReadMachineTable(file string, in io.Reader) error {
	g.kept.from(in)
	r := newHeadedRows(file, in)
	timeMs, id, event := r.column("time_ms"), r.column("machine_id"), r.column("event")
	platform, cpu, mem := r.column("platform"), r.column("cpu"), r.column("mem")
	if r.err != nil {
		return r.err
	}
	for g.lenient(r).next() {
		e := machineEvent2011{atUs: r.integer(timeMs, 0, math.MaxInt64/1000) * 1000, id: r.integer(id, 1, maxID2011), platform: g.kept.text(r.text(platform)), cpu: -1, mem: -1}
		e.what = int64(slices.Index([]string{"ADD", "REMOVE", "UPDATE"}, r.text(event)))
		if e.what < 0 {
			r.fail(event, "%s is none of ADD, REMOVE, UPDATE", brief(r.text(event)))
		}
		if len(e.platform) > maxValueBytes {
			r.fail(platform, "%s has %d bytes, want at most %d", brief(e.platform), len(e.platform), maxValueBytes)
		}
		if share, ok := r.maybeShare(cpu, 1); ok {
			e.cpu = share
		}
		if share, ok := r.maybeShare(mem, 1); ok {
			e.mem = share
		}
		r.keep(&g.kept, keptItemBytes)
		if r.err != nil {
			continue
		}
		if e.atUs <= g.readUntilUs() {
			g.machineEvent(&e)
		}
	}
	return r.err
}

var attemptEnds2011 = map[string]int64{"EVICT": evict2011, "FAIL": fail2011, "FINISH": finish2011, "KILL": kill2011, "LOST": lost2011}

// ReadAttempts reads tasks.csv, which is in no order of time.
func (g *Google2011) ReadAttempts(file string, in io.Reader) error {
	g.kept.from(in)
	r := newHeadedRows(file, in)
	c := attemptColumns(r)
	if r.err != nil {
		return r.err
	}
	var all []taskEvent2011
	for g.lenient(r).next() {
		id := g.id(r, c.job, c.index)
		attempt := r.integer(c.attempt, 0, math.MaxInt32)
		said := &task2011{user: g.kept.text(r.text(c.user)), cpu: -1, mem: -1}
		v, _ := r.maybeInteger(c.class, 0, 3)
		said.class = int8(v)
		said.priority = r.priority2011(c.priority)
		v, _ = r.maybeInteger(c.different, 0, 1)
		said.different = v == 1
		if share, ok := r.maybeShare(c.cpu, maxShare2011); ok {
			said.cpu = share
		}
		if share, ok := r.maybeShare(c.mem, maxShare2011); ok {
			said.mem = share
		}
		machine, _ := r.maybeInteger(c.machine, 0, maxID2011)
		var times [3]int64
		kinds := [3]int64{submit2011, schedule2011, -1}
		const most = math.MaxInt64 / 1000
		times[0] = r.integer(c.submit, 0, most)
		scheduled, hasSchedule := r.maybeInteger(c.schedule, 0, most)
		ended, hasEnd := r.maybeInteger(c.end, 0, most)
		times[1], times[2] = scheduled, ended
		if how := r.text(c.how); hasEnd || how != "" {
			what, known := attemptEnds2011[how]
			if !known || !hasEnd {
				r.fail(c.how, "%s at %s is no end: want EVICT, FAIL, FINISH, KILL or LOST, and when", brief(how), brief(r.text(c.end)))
			}
			kinds[2] = what
		}
		r.keep(&g.kept, 4*keptItemBytes)
		if r.err != nil {
			continue
		}
		for i, at := range times {
			if i == 1 && !hasSchedule || i == 2 && !hasEnd || at > g.readUntilUs()/1000 {
				continue
			}
			all = append(all, taskEvent2011{at * 1000, 3*attempt + int64(i), kinds[i], machine, id, said})
		}
	}
	if r.err != nil {
		return r.err
	}
	slices.SortStableFunc(all, func(a, b taskEvent2011) int {
		return cmp.Or(cmp.Compare(a.atUs, b.atUs), cmp.Compare(a.id.job, b.id.job), cmp.Compare(a.id.index, b.id.index), cmp.Compare(a.attempt, b.attempt))
	})
	for _, e := range all {
		machine := int64(0)
		if e.what == schedule2011 {
			machine = e.machine
		}
		g.take(e.atUs, e.id, e.what, machine, e.said)
	}
	return nil
}

// attempts2011Columns are those of tasks.csv.
type attempts2011Columns struct {
	job, index, attempt, submit, schedule, end, how, machine, priority, class, user, cpu, mem, different int
}

func attemptColumns(r *rows) attempts2011Columns {
	return attempts2011Columns{
		job: r.column("job_id"), index: r.column("task_index"), attempt: r.column("attempt"), submit: r.column("submit_ms"), schedule: r.column("schedule_ms"),
		end: r.column("end_ms"), how: r.column("end_type"), machine: r.column("machine_id"), priority: r.column("priority"), class: r.column("sched_class"),
		user: r.column("user"), cpu: r.column("cpu_req"), mem: r.column("mem_req"), different: r.column("different_machines"),
	}
}
