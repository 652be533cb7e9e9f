package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/cli"
	"borg/fauxmaster"
	"borg/fauxmaster/export"
	"borg/fauxmaster/plan"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
)

// allKinds is a checkpoint of a cell with all that Google's schema can say of one.
func allKinds(t *testing.T) string {
	t.Helper()
	from := &trace.Cell{}
	for i, cpu := range []int64{64_000, 7_000, 33_333, 48_000} {
		from.Machines = append(from.Machines, trace.Machine{Name: fmt.Sprintf("host-%d", i), Spec: &borgpb.MachineSpec{
			PortFirst: borgpb.TaskPortFirst, PortLast: borgpb.TaskPortLast,
			Addr: "127.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: cpu, MemBytes: 123_456_789_012 + int64(i)*7},
			Attributes: map[string]string{"rack": fmt.Sprintf("r%d", i/2), "platform": "p"},
		}})
	}
	task := func(cpu, mem int64, constraints ...*borgpb.Constraint) *borgpb.TaskSpec {
		return &borgpb.TaskSpec{Args: []string{"/bin/true"}, Resources: &borgpb.Resources{CpuMilli: cpu, MemBytes: mem}, Constraints: constraints}
	}
	const service, batch = borgpb.JobKind_JOB_KIND_SERVICE, borgpb.JobKind_JOB_KIND_BATCH
	var relations []*borgpb.Constraint
	for r := range borgpb.Relation_name {
		if r > 0 {
			relations = append(relations, &borgpb.Constraint{Key: "k", Value: "7", Relation: borgpb.Relation(r)})
		}
	}
	slices.SortFunc(relations, func(a, b *borgpb.Constraint) int { return int(a.Relation - b.Relation) })
	from.AllocSets = []trace.AllocSet{{
		User: "ann", Name: "room", Machines: []string{"host-0", "host-3", ""},
		Spec: &borgpb.AllocSetSpec{Allocs: 3, Priority: 210, Resources: &borgpb.Resources{CpuMilli: 10_001, MemBytes: 9_999_999_999}, MaxPerMachine: 1, Constraints: []*borgpb.Constraint{
			{Key: "platform", Value: "p", Relation: borgpb.Relation_RELATION_EQUAL},
		}},
	}}
	from.Jobs = []trace.Job{
		{User: "ann", Name: "inside", Allocs: []string{"ann/room/1", ""}, Machines: []string{"host-3", ""}, Spec: &borgpb.JobSpec{
			Kind: service, Tasks: 2, Priority: 200, AllocSet: "ann/room", Task: task(1_003, 1_000_000_007),
		}},
		{User: "ann", Name: "web", Machines: []string{"host-0", "host-2", "host-1", ""}, Spec: &borgpb.JobSpec{
			Kind: service, Tasks: 4, Priority: 359, MaxPerMachine: 1, MaxPerRack: 2, Task: task(3_333, 7_777_777_777),
			Overrides: []*borgpb.TaskOverride{{First: 2, Last: 3, Spec: task(6_999, 1_234_567)}},
		}},
		// More than the machine has, as real cells do.
		{User: "bob", Name: "crunch", Machines: []string{"host-1", "host-1"}, Spec: &borgpb.JobSpec{Kind: batch, Tasks: 2, Priority: 115, Task: task(2_001, 2_000_003)}},
		{User: "bob", Name: "picky", Machines: []string{""}, Spec: &borgpb.JobSpec{Kind: batch, Tasks: 1, Priority: 117, Task: task(1, 1, relations...)}},
		{User: "bob", Name: "child", Machines: []string{""}, Spec: &borgpb.JobSpec{
			Kind: batch, Tasks: 1, Priority: 100, Parent: "bob/crunch", StartAfter: []string{"bob/picky"}, BatchQueue: true, Task: task(64_000, 123_456_789_033),
		}},
		{User: "eve", Name: "watch", Machines: []string{"host-2"}, Spec: &borgpb.JobSpec{Kind: service, Tasks: 1, Priority: 450, Task: task(100, 100)}},
		{User: "eve", Name: "rest", Machines: []string{"host-2"}, Spec: &borgpb.JobSpec{Kind: batch, Tasks: 1, Priority: 0, Task: task(0, 1)}},
	}
	c, made, err := plan.Make("all", 1e18, from, nil)
	if err != nil || len(made.Refused)+len(made.Misplaced) > 0 || made.OvercommittedCPU != 1 {
		t.Fatalf("%+v, %v", made, err)
	}
	path := filepath.Join(t.TempDir(), "all.ckpt")
	if err := writeCheckpoint(path, "all", c); err != nil {
		t.Fatal(err)
	}
	return path
}

// inWords is what Google's schema can say of a cell: tasks and allocs without
// their indexes, which an import gives anew.
func inWords(c *cell.Cell) string {
	var lines []string
	for m := range c.Machines() {
		rack, _ := m.Attribute("rack")
		platform, _ := m.Attribute("platform")
		lines = append(lines, fmt.Sprintf("machine %s %v rack %s platform %s", m.Name(), m.Capacity(), rack, platform))
	}
	constraints := func(all []*borgpb.Constraint) (words string) {
		for _, k := range all {
			words += " " + cell.ConstraintWords(k)
		}
		return words
	}
	for s := range c.AllocSets() {
		spec := s.Spec()
		lines = append(lines, fmt.Sprintf("set %v %d at %d, %d per machine%s", s.Key(), s.NumAllocs(), s.Priority(), spec.GetMaxPerMachine(), constraints(spec.GetConstraints())))
		for a := range s.Allocs() {
			where := ""
			if a.Machine() != nil {
				where = a.Machine().Name()
			}
			lines = append(lines, fmt.Sprintf("alloc of %v: %v on %q", s.Key(), s.Need().Resources, where))
		}
	}
	for j := range c.Jobs() {
		spec := j.Spec()
		lines = append(lines, fmt.Sprintf("job %v %v %d at %d, %d per machine, %d per rack, in %q, parent %q, after %v, queue %v", j.Key(), j.Kind(), j.NumTasks(), j.Priority(),
			spec.GetMaxPerMachine(), spec.GetMaxPerRack(), spec.GetAllocSet(), spec.GetParent(), spec.GetStartAfter(), spec.GetBatchQueue()))
		for i, task := range j.Tasks() {
			where, alloc := "", ""
			if p := task.Current(); p != nil {
				where = p.Machine().Name()
				if a := p.Alloc(); a != nil {
					alloc = fmt.Sprint(a.Set().Key())
				}
			}
			need := j.Need(i)
			lines = append(lines, fmt.Sprintf("task of %v: %v%s on %q %s", j.Key(), need.Resources, constraints(need.Task.GetConstraints()), where, alloc))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestGoogle2019RoundTrip exports a cell in each form and imports it again: machines,
// alloc sets, jobs, tasks and what they ask for are the same.
func TestGoogle2019RoundTrip(t *testing.T) {
	ckpt := allKinds(t)
	want := cellAt(t, ckpt)
	for _, format := range []export.Format{export.JSON, export.CSV, export.Parquet} {
		dir, again := t.TempDir(), filepath.Join(t.TempDir(), "again.ckpt")
		if format == export.JSON {
			mustRun(t, "export", ckpt, "--format", "google2019", "-o", dir)
		} else if e, err := export.NewEvents(want, "all", format, dir, make(export.Counts)); err != nil {
			t.Fatal(err)
		} else if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		out := mustRun(t, "import", "google2019", dir, "-o", again)
		if got := inWords(cellAt(t, again)); got != inWords(want) {
			t.Errorf("%s: imported again it is\n%s\n\nwant\n%s\n\n%s", format, got, inWords(want), out)
		}
		for _, never := range []string{"refused", "not where it ran", "strangers", "unknown", "not mapped"} {
			if strings.Contains(out, never) {
				t.Errorf("%s: %s in\n%s", format, never, out)
			}
		}
	}
}

// TestGoogle2019Archive imports what an archive tells: the same cell at its end, and
// from its beginning on as an archive that can be simulated.
func TestGoogle2019Archive(t *testing.T) {
	tables, dir := t.TempDir(), t.TempDir()
	day := importedDay(t)
	mustRun(t, "export", day, "-o", tables)
	end := filepath.Join(dir, "end.ckpt")
	out := mustRun(t, "import", "google2019", tables, "--at", "9000000000", "-o", end)
	if !strings.Contains(out, "none of the tables that are read") {
		t.Errorf("jobs.csv is not told of:\n%s", out)
	}
	past, err := fauxmaster.OpenPast(day)
	if err != nil {
		t.Fatal(err)
	}
	travel, err := past.At(fauxmaster.Moment{})
	if err != nil {
		t.Fatal(err)
	}
	defer travel.Close()
	if got, want := inWords(cellAt(t, end)), inWords(travel.Cell); got != want {
		t.Errorf("at its end it is\n%s\nwant\n%s", got, want)
	}
	again := filepath.Join(dir, "again")
	if out := mustRun(t, "import", "google2019", tables, "--until", "15m", "-o", again); !strings.Contains(out, "2 ops in 5m0s, of 4 tasks") {
		t.Errorf("as an archive:\n%s", out)
	}
	if out := mustRun(t, "simulate", again, "--every", "1m"); !strings.Contains(out, "4 tasks; placed 2") {
		t.Errorf("simulated:\n%s", out)
	}
}

func cellAt(t *testing.T, path string) *cell.Cell {
	t.Helper()
	p, err := openPath(path)
	if err != nil {
		t.Fatal(err)
	}
	return p.Cell
}

// TestGoogle2019Mistakes says what was looked for, and where a table is wrong.
func TestGoogle2019Mistakes(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out.ckpt")
	for _, c := range []struct {
		files map[string]string
		code  int
		want  string
	}{
		{nil, cli.Invalid, "has no table machine_events: looked for machine_events.json, .jsonl"},
		{map[string]string{"machine_events.json": "", "collection_events-000000000000.csv": "time,type,collection_id\n"}, cli.Invalid, "has no table instance_events"},
		{map[string]string{"instance_events.jsonl": `{"a":`}, cli.OK, "1: rows left out, as they cannot be read"},
		{map[string]string{"collection_events-000000000000.csv": "time,kind\n"}, cli.Invalid, "collection_events-000000000000.csv:1: there is no column type; the columns are time, kind"},
		{map[string]string{"collection_events-000000000000.csv": "time,type,collection_id\n", "instance_events.jsonl": "[\n"}, cli.Invalid, "instance_events.jsonl:1: a list begins here; want an object in each line"},
		{map[string]string{"instance_events.jsonl": "", "machine_events.parquet": "no"}, cli.Invalid, "machine_events.parquet:1: this is no Parquet file"},
	} {
		for name, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		code, stdout, errs := ask(t, "import", "google2019", dir, "--force", "-o", out)
		if code != c.code || !strings.Contains(stdout+errs, c.want) {
			t.Errorf("%v: exit code %d, %s%s; want %d and %q", c.files, code, stdout, errs, c.code, c.want)
		}
	}
	if code, _, errs := ask(t, "import", "google2019", filepath.Join(dir, "none"), "--force", "-o", out); code != cli.NotFound || !strings.Contains(errs, "none") {
		t.Errorf("no directory: exit code %d, %s", code, errs)
	}
	if code, _, errs := ask(t, "import", "google2019", "--force", "-o", out); code != cli.Usage || !strings.Contains(errs, "collection_events and instance_events") {
		t.Errorf("no argument: exit code %d, %s", code, errs)
	}
}

// TestImportChoosesAMoment imports tables without --at: Google's at their beginning, at
// their end when no machine is there before, and those that export wrote at their end. A
// cell without machines or tasks is told.
func TestImportChoosesAMoment(t *testing.T) {
	const (
		events      = "time,type,collection_id,instance_index,machine_id,resource_request.cpus,resource_request.memory\n"
		collections = "time,type,collection_id,user,priority\n0,SUBMIT,1,ann,200\n"
		machines    = "time,machine_id,type,capacity.cpus,capacity.memory\n"
	)
	early := map[string]string{"machine_events.csv": machines + "0,5,ADD,1,1\n", "collection_events.csv": collections,
		"instance_events.csv": events + "0,SUBMIT,1,0,,0.1,0.1\n700000000,SCHEDULE,1,0,5,0.1,0.1\n"}
	late := map[string]string{"machine_events.csv": machines + "650000000,5,ADD,1,1\n", "collection_events.csv": collections,
		"instance_events.csv": events + "660000000,SUBMIT,1,0,,0.1,0.1\n700000000,SCHEDULE,1,0,5,0.1,0.1\n"}
	ours := map[string]string{"about.json": `{"largestCpuMilli":8000,"largestMemBytes":8589934592}`}
	maps.Copy(ours, early)
	google2011 := map[string]string{"machine_events/part-0": "650000000,5,0,p,1,1\n", "task_events/part-0": "660000000,,1,0,5,1,ann,0,9,0.1,0.1,0,0\n"}
	for _, c := range []struct {
		kind, args string
		files      map[string]string
		want       []string
	}{
		{"google2019", "", early, []string{"moment      --at 0, the beginning", "machines    1 with", "running     0 tasks", "pending     1 task"}},
		{"google2019", "", late, []string{"--at 700000000, the end: at 0 there is no machine, the first one comes at 650000000", "machines    1 with", "running     1 task"}},
		{"google2019", "", ours, []string{"--at 700000000, the end\n", "running     1 task"}},
		{"google2019", "--at 600000000", late, []string{"warning: the cell has no machines and 0 tasks (--at 600000000; the first machine comes at 650000000)", "another moment of the trace: --at MICROSECONDS"}},
		{"google2019", "--at 650000000", late, []string{"warning: the cell has 1 machine and no tasks (--at 650000000)"}},
		{"google2019", "--until 15m", late, []string{"--at 650000000, when the first machine comes", "machines    1 with"}},
		{"google2011", "", google2011, []string{"the end: at 0 there is no machine, the first one comes at 650000000", "machines    1 with", "running     1 task"}},
		{"google2011", "--at 0", google2011, []string{"warning: the cell has no machines"}},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		args := append([]string{"import", c.kind, dir, "-o", filepath.Join(t.TempDir(), "out")}, strings.Fields(c.args)...)
		code, out, errs := ask(t, args...)
		for _, want := range c.want {
			if code != cli.OK || !strings.Contains(out+errs, want) {
				t.Errorf("import %s %s: exit code %d; %q is missing in\n%s%s", c.kind, c.args, code, want, out, errs)
			}
		}
		if warns := strings.Contains(c.want[0], "warning"); warns != strings.Contains(errs, "warning") {
			t.Errorf("import %s %s: %s", c.kind, c.args, errs)
		}
	}
	// The others have one moment, and say it in the same words or refuse.
	nodes := writeFile(t, "nodes.json", `{"kind":"List","apiVersion":"v1","items":[{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},"status":{"allocatable":{"cpu":"4","memory":"8Gi"}}}]}`)
	if code, _, errs := ask(t, "import", "kubernetes", nodes, "-o", filepath.Join(t.TempDir(), "out")); code != cli.OK || !strings.Contains(errs, "warning: the cell has 1 machine and no tasks\n") {
		t.Errorf("no pods: exit code %d, %s", code, errs)
	}
	none := writeFile(t, "m.csv", "machine,cpu,mem\n")
	if code, _, errs := ask(t, "import", "csv", none, writeFile(t, "t.csv", "job,cpu,mem,priority,machine\n"), "-o", filepath.Join(t.TempDir(), "out")); code != cli.Invalid || !strings.Contains(errs, "the table of machines has no row that can be used") {
		t.Errorf("empty tables: exit code %d, %s", code, errs)
	}
}
