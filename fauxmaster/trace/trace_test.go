package trace_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
)

// TestTranscripts reads the small traces in testdata, each row of which shows
// something, and the cells made from them. Commands:
//
//	google2011 at=MICROSECONDS [until=MICROSECONDS]    tables, each after a line "== NAME"
//	google2019 at=MICROSECONDS [until=MICROSECONDS]    files, each after a line "== NAME"
//	openb [recorded]              the same: machines, pods
//	usage2019                     one table
//	kubernetes rack=LABEL power=LABEL    what kubectl wrote
//	nomad                         what Nomad's API said
//	tables                        machines, tasks
//
// Tables are told without blank lines; an empty line is left out.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "google2011":
				return playGoogle2011(t, d)
			case "google2019":
				return playGoogle2019(t, d)
			case "openb":
				return playOpenb(t, d)
			case "usage2019":
				u := &trace.Usage2019{}
				if err := u.Read("usage.csv", strings.NewReader(d.Input)); err != nil {
					return err.Error() + "\n"
				}
				return usageText(u)
			case "kubernetes":
				var labels trace.KubernetesLabels
				d.MaybeScanArgs(t, "rack", &labels.Rack)
				d.MaybeScanArgs(t, "power", &labels.Power)
				k := trace.NewKubernetes(labels)
				return playCell(t, k.Read("cluster.json", strings.NewReader(d.Input)), k.Cell)
			case "nomad":
				n := trace.NewNomad()
				return playCell(t, n.Read("nomad.json", strings.NewReader(d.Input)), n.Cell)
			case "tables":
				return playTables(t, d)
			}
			t.Fatalf("%s: there is no command %s", d.Pos, d.Cmd)
			return ""
		})
	})
}

// tables cuts the input where a table begins.
func tables(input string) (names []string, texts []string) {
	for part := range strings.SplitSeq("\n"+input, "\n== ") {
		name, text, _ := strings.Cut(part, "\n")
		if name = strings.TrimSpace(name); name != "" {
			names, texts = append(names, name), append(texts, text)
		}
	}
	return names, texts
}

func playGoogle2011(t *testing.T, d *datadriven.TestData) string {
	var atUs int64
	d.ScanArgs(t, "at", &atUs)
	g := trace.NewGoogle2011(atUs)
	if d.HasArg("until") {
		var untilUs int64
		d.ScanArgs(t, "until", &untilUs)
		g.Follow(untilUs)
	}
	names, texts := tables(d.Input)
	for i, name := range names {
		read := map[string]func(string, io.Reader) error{
			"machine_events": g.ReadMachineEvents, "machine_attributes": g.ReadMachineAttributes,
			"task_constraints": g.ReadTaskConstraints, "task_events": g.ReadTaskEvents,
			"machine_table": g.ReadMachineTable, "tasks": g.ReadAttempts,
		}[name]
		if read == nil {
			t.Fatalf("%s: there is no table %q", d.Pos, name)
		}
		if err := read(name, strings.NewReader(texts[i])); err != nil {
			return err.Error() + "\n"
		}
	}
	c, err := g.Cell()
	if err != nil {
		return err.Error() + "\n"
	}
	mustTake(t, c)
	return cellText(c)
}

func playGoogle2019(t *testing.T, d *datadriven.TestData) string {
	var atUs, untilUs int64
	d.ScanArgs(t, "at", &atUs)
	d.MaybeScanArgs(t, "until", &untilUs)
	dir := t.TempDir()
	names, texts := tables(d.Input)
	for i, name := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(texts[i]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := trace.LoadGoogle2019(dir, atUs, untilUs)
	if err != nil {
		return strings.ReplaceAll(err.Error(), dir+"/", "") + "\n"
	}
	mustTake(t, c)
	return cellText(c)
}

// playCell writes what was read, which a cell has to take.
func playCell(t *testing.T, err error, read func() (*trace.Cell, error)) string {
	var c *trace.Cell
	if err == nil {
		c, err = read()
	}
	if err != nil {
		return err.Error() + "\n"
	}
	mustTake(t, c)
	return cellText(c)
}

func playTables(t *testing.T, d *datadriven.TestData) string {
	o := trace.NewTables()
	names, texts := tables(d.Input)
	for i, name := range names {
		read := map[string]func(string, io.Reader) error{"machines": o.ReadMachines, "tasks": o.ReadTasks}[name]
		if read == nil {
			t.Fatalf("%s: there is no table %q", d.Pos, name)
		}
		if err := read(name, strings.NewReader(texts[i])); err != nil {
			return err.Error() + "\n"
		}
	}
	return playCell(t, nil, o.Cell)
}

func playOpenb(t *testing.T, d *datadriven.TestData) string {
	o := &trace.Openb{}
	names, texts := tables(d.Input)
	for i, name := range names {
		read := map[string]func(string, io.Reader) error{"machines": o.ReadMachines, "pods": o.ReadPods}[name]
		if read == nil {
			t.Fatalf("%s: there is no table %q", d.Pos, name)
		}
		if err := read(name, strings.NewReader(texts[i])); err != nil {
			return err.Error() + "\n"
		}
	}
	if d.HasArg("recorded") {
		c := o.Recorded()
		mustTake(t, c)
		return cellText(c)
	}
	var out strings.Builder
	for _, m := range o.Machines {
		fmt.Fprintf(&out, "%+v\n", m)
	}
	for _, p := range o.Pods {
		fmt.Fprintf(&out, "%+v\n", p)
	}
	return out.String()
}

func usageText(u *trace.Usage2019) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d rows, %d used\n", u.Rows, u.Used)
	for tier := range trace.NumTiers {
		for i := range u.Len(tier) {
			first, end := u.Job(tier, i)
			fmt.Fprintf(&out, "%v: %+v, rows %d to %d are of its job\n", tier, u.At(tier, i), first, end-1)
		}
	}
	return out.String()
}

// cellText writes a cell for people.
// historyText shows what became of tasks.
func historyText(all []trace.History) string {
	var out strings.Builder
	for i, h := range all {
		fmt.Fprintf(&out, "  task %d:", i)
		for _, r := range h.Runs {
			fmt.Fprintf(&out, " waits %v", time.Duration(r.WaitNs))
			if r.RunNs != trace.NeverRan {
				fmt.Fprintf(&out, " runs %v", time.Duration(r.RunNs))
			}
			fmt.Fprintf(&out, " %v;", r.End)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// arrivalsText shows what arrives.
func arrivalsText(c *trace.Cell) string {
	var out strings.Builder
	for _, a := range c.Arrivals {
		fmt.Fprintf(&out, "at %v ", time.Duration(a.AtNs))
		switch o := a.Op.Op.(type) {
		case *borgpb.Op_SubmitJob:
			spec := &borgpb.JobSpec{}
			if err := proto.Unmarshal(o.SubmitJob.Spec, spec); err != nil {
				fmt.Fprintf(&out, "%v ", err)
			}
			fmt.Fprintf(&out, "submit %s/%s %d tasks, priority %d", o.SubmitJob.User, o.SubmitJob.Name, spec.Tasks, spec.Priority)
			if spec.AllocSet != "" || spec.Parent != "" {
				fmt.Fprintf(&out, ", in %s, parent %s", spec.AllocSet, spec.Parent)
			}
			out.WriteString("\n")
			all, err := trace.Histories(spec)
			if err != nil || !reflect.DeepEqual(all, a.Histories) {
				fmt.Fprintf(&out, "  its spec says %v: %v\n", all, err)
			}
			out.WriteString(historyText(all))
		case *borgpb.Op_KillJob:
			fmt.Fprintf(&out, "kill %s/%s\n", o.KillJob.User, o.KillJob.Name)
		case *borgpb.Op_SubmitAllocSet:
			fmt.Fprintf(&out, "submit alloc set %s/%s\n", o.SubmitAllocSet.User, o.SubmitAllocSet.Name)
		case *borgpb.Op_KillAllocSet:
			fmt.Fprintf(&out, "kill alloc set %s/%s\n", o.KillAllocSet.User, o.KillAllocSet.Name)
		case *borgpb.Op_AddMachine:
			fmt.Fprintf(&out, "add %s, cpu=%d\n", o.AddMachine.Name, o.AddMachine.Spec.Capacity.CpuMilli)
		case *borgpb.Op_RemoveMachine:
			fmt.Fprintf(&out, "remove %s\n", o.RemoveMachine.Name)
		case *borgpb.Op_SetMachine:
			fmt.Fprintf(&out, "%s has cpu=%d\n", o.SetMachine.Name, o.SetMachine.Capacity.CpuMilli)
		}
	}
	if c.Recorded() {
		fmt.Fprintf(&out, "until %v\n", time.Duration(c.LastNs))
	}
	return out.String()
}

func cellText(c *trace.Cell) string {
	var out strings.Builder
	resources := func(r *borgpb.Resources) string {
		text := fmt.Sprintf("cpu=%d mem=%dMiB", r.GetCpuMilli(), r.GetMemBytes()>>20)
		if n := r.GetDiskBytes(); n > 0 {
			text += fmt.Sprintf(" disk=%dMiB", n>>20)
		}
		if d := r.GetDevices(); len(d) > 0 {
			text += fmt.Sprintf(" devices=%v", d)
		}
		return text
	}
	constraints := func(ks []*borgpb.Constraint) (words string) {
		for _, k := range ks {
			words += " " + cell.ConstraintWords(k)
			if k.Soft {
				words += " (soft)"
			}
		}
		return words
	}
	tolerations := func(all []*borgpb.Toleration) (words string) {
		for _, o := range all {
			words += fmt.Sprintf(" tolerates %s=%s for %ds", o.Key, o.Value, o.ForgivenessNs/1e9)
		}
		return words
	}
	for _, m := range c.Machines {
		fmt.Fprintf(&out, "machine %s %s %v", m.Name, resources(m.Spec.Capacity), m.Spec.Attributes)
		for _, t := range m.Spec.Taints {
			fmt.Fprintf(&out, ", taint %s=%s evict %v prefer not %v", t.Key, t.Value, t.Evict, t.PreferNot)
		}
		if m.Down || m.Draining {
			fmt.Fprintf(&out, ", down %v, draining %v", m.Down, m.Draining)
		}
		out.WriteString("\n")
	}
	for _, s := range c.AllocSets {
		fmt.Fprintf(&out, "alloc set %s/%s %d allocs, priority %d, per machine %d, per rack %d: %s%s\n  on %q\n", s.User, s.Name, s.Spec.Allocs, s.Spec.Priority,
			s.Spec.MaxPerMachine, s.Spec.MaxPerRack, resources(s.Spec.Resources), constraints(s.Spec.Constraints), s.Machines)
	}
	for _, j := range c.Jobs {
		s := j.Spec
		fmt.Fprintf(&out, "job %s/%s %d tasks, priority %d, %s, per machine %d: %s%s\n", j.User, j.Name, s.Tasks, s.Priority,
			strings.ToLower(strings.TrimPrefix(s.Kind.String(), "JOB_KIND_")), s.MaxPerMachine, resources(s.Task.Resources), constraints(s.Task.Constraints)+tolerations(s.Task.Tolerations))
		for _, o := range s.Overrides {
			fmt.Fprintf(&out, "  %d to %d: %s%s\n", o.First, o.Last, resources(o.Spec.Resources), constraints(o.Spec.Constraints)+tolerations(o.Spec.Tolerations))
		}
		for _, more := range []struct{ word, is string }{
			{"in", s.AllocSet}, {"parent", s.Parent}, {"after", strings.Join(s.StartAfter, " ")}, {"per rack", strings.TrimPrefix(fmt.Sprint(s.MaxPerRack), "0")},
			{"held back", strings.TrimPrefix(fmt.Sprint(s.BatchQueue), "false")}, {"per power", strings.TrimPrefix(fmt.Sprint(s.MaxPerPower), "0")},
			{"per", strings.TrimPrefix(fmt.Sprint(s.MaxPer), "map[]")}, {"down at most", strings.TrimPrefix(fmt.Sprint(s.DisruptionBudget.GetMaxDown()), "0")},
			{"when lost", strings.TrimPrefix(s.OnLost.String(), "ON_LOST_UNSPECIFIED")}, {"preempts", strings.TrimPrefix(s.Preempt.String(), "PREEMPT_UNSPECIFIED")},
			{"runs at most", strings.TrimPrefix(time.Duration(s.Task.MaxRuntimeNs).String(), "0s")},
		} {
			if more.is != "" {
				fmt.Fprintf(&out, "  %s: %s\n", more.word, more.is)
			}
		}
		fmt.Fprintf(&out, "  on %q\n", j.Machines)
		if j.Allocs != nil {
			fmt.Fprintf(&out, "  in %q\n", j.Allocs)
		}
		if all, err := trace.Histories(s); err != nil {
			fmt.Fprintf(&out, "  %v\n", err)
		} else {
			out.WriteString(historyText(all))
		}
	}
	if c.Strangers+c.Unknown > 0 {
		fmt.Fprintf(&out, "%d on machines that are not there, %d of unknown size\n", c.Strangers, c.Unknown)
	}
	for _, words := range slices.Sorted(maps.Keys(c.Notes)) {
		fmt.Fprintf(&out, "%d: %s\n", c.Notes[words], words)
	}
	return out.String() + arrivalsText(c)
}

// mustTake wants a cell to take everything that was read.
func mustTake(t testing.TB, c *trace.Cell) *cell.Cell {
	t.Helper()
	o := cell.New("trace", 1)
	for op := range c.Ops() {
		data, err := proto.Marshal(op)
		if err != nil {
			t.Fatal(err)
		}
		at := int64(o.Index()) + 1
		ops := [][]byte{data}
		if at == 1 {
			raise, err := proto.Marshal(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
			if err != nil {
				t.Fatal(err)
			}
			ops = [][]byte{raise, data}
		}
		entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: at * 1e6, WallTimeNs: 1e18 + at*1e6, Ops: ops})
		if err != nil {
			t.Fatal(err)
		}
		if results, _ := o.Apply(o.Index()+1, 1, entry); results[len(results)-1].GetRefusal() != nil {
			t.Fatalf("%v: %v", op, results[len(results)-1].GetRefusal())
		}
	}
	return o
}

// TestErrors wants every fault to say where it is and what was wanted.
func TestErrors(t *testing.T) {
	task := "0,,5,0,,0,u,3,9,0.1,0.1,0.1,0"
	for _, c := range []struct{ table, text, want string }{
		{"task_events", "", ""},
		{"task_events", task + "\n1,,5", "task_events:2: 3 values, want 13: time, missing info, "},
		{"task_events", "x" + task, `task_events:1: column 1 (time): "x0" is no whole number from 0 to `},
		{"task_events", strings.Replace(task, "0.1", "NaN", 1), `task_events:1: column 10 (CPU request): "NaN" is no number from 0 to 16`},
		{"task_events", strings.Replace(task, "0.1", "1e9", 1), `column 10 (CPU request): "1e9" is no number from 0 to 16`},
		{"task_events", strings.Replace(task, "9,", "12,", 1), `column 9 (priority): "12" is no whole number from 0 to 11`},
		{"task_events", strings.Replace(task, "9,", ",", 1), `column 9 (priority): it is empty; want a whole number from 0 to 11`},
		{"task_events", strings.Replace(task, "u", `"u"`, 1), `column 7 (user): "\"u\"" is in quotes`},
		{"task_events", "7" + task[1:] + "\n" + task, "task_events:2: column 1 (time): 0 comes after 7: the parts have to be read in order of time"},
		{"task_events", "\x1f\x8b\x08\x00" + task, "task_events:1: this is no text: is the file compressed under a wrong name?"},
		{"task_events", strings.Repeat("a", 100_000), "task_events:1: a line of more than 65536 bytes"},
		{"machine_events", "0,5,7,p,0.5,0.5", `machine_events:1: column 3 (event type): "7" is no whole number from 0 to 2`},
		{"machine_events", "0,0,0,p,0.5,0.5", `column 2 (machine ID): "0" is no whole number from 1 to `},
		{"machine_attributes", "0,5,,x,0", `column 3 (attribute name): "" has 0 bytes, want 1 to 63`},
		{"task_constraints", "0,5,0,2,k,x", `column 6 (attribute value): "x" is no whole number`},
		{"task_constraints", "0,5,0,k,x,7", `column 4 (comparison operator): "k" is no whole number from 0 to 3`},
		{"machines", "", "machines:1: the file is empty; its first line should name the columns"},
		{"machines", "machine_id,cpu_milli\nm,1", "machines:1: there is no column mem_mib; the columns are machine_id, cpu_milli"},
		{"machines", "sn,cpu_milli,memory_mib,gpu,model,gpu", "machines:1: column 6 (gpu): there are two columns of that name"},
		{"machines", "sn,cpu_milli,memory_mib,gpu,model\nm,1,1,2,", `machines:2: column 5 (model): "" is the model of 2 GPUs`},
		{"machines", "sn,cpu_milli,memory_mib,gpu,model\nm,1,1,0,\nm,1,1,0,", `machines:3: column 1 (sn): "m" comes twice`},
		{"pods", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1,1,2,500,", "pods:2: column 5 (gpu_milli): 500 thousandths of each of 2 GPUs; of several each has to be whole (1000)"},
		{"pods", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\nP,1,1,1,500,", `pods:2: column 1 (name): "P" is no name`},
	} {
		g, o := trace.NewGoogle2011(10), &trace.Openb{}
		read := map[string]func(string, io.Reader) error{
			"machine_events": g.ReadMachineEvents, "machine_attributes": g.ReadMachineAttributes,
			"task_constraints": g.ReadTaskConstraints, "task_events": g.ReadTaskEvents,
			"machines": o.ReadMachines, "pods": o.ReadPods,
		}[c.table]
		err := read(c.table, strings.NewReader(c.text))
		var at *trace.Error
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s %q: %v", c.table, c.text, err)
		case c.want != "" && (!errors.As(err, &at) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %q: %v, want %q", c.table, c.text, err, c.want)
		}
	}
}

// TestBadRows leaves out a few, and counts them; many are another file.
func TestBadRows(t *testing.T) {
	task := func(job int) string { return fmt.Sprintf("0,,%d,0,,0,u,3,9,0.1,0.1,0.1,0\n", job) }
	g := trace.NewGoogle2011(10)
	g.SkipBadRows()
	if err := g.ReadMachineEvents("m", strings.NewReader("0,5,0,p,0.5,0.5\n0,6,7,p,0.5,0.5\n0,,0,p,0.5,0.5\n")); err != nil {
		t.Fatal(err)
	}
	if err := g.ReadTaskEvents("t", strings.NewReader(task(1)+"what is this?\n"+strings.Replace(task(2), "9,", "99,", 1)+task(3))); err != nil {
		t.Fatal(err)
	}
	c, err := g.Cell()
	if err != nil || len(c.Machines) != 1 || len(c.Jobs) != 2 || c.Notes["rows left out, as they cannot be read"] != 4 {
		t.Errorf("%v:\n%s", err, cellText(c))
	}
	g = trace.NewGoogle2011(10)
	g.SkipBadRows()
	err = g.ReadTaskEvents("t", strings.NewReader(strings.Repeat("what is this?\n", 100)))
	if err == nil || !strings.Contains(err.Error(), "t:21: 1 values, want 13") {
		t.Errorf("another file: %v", err)
	}
	if err = g.ReadTaskEvents("t", broken{strings.NewReader(task(4))}); err == nil || !strings.Contains(err.Error(), "the disk is gone") {
		t.Errorf("a broken file: %v", err)
	}
	g = trace.NewGoogle2011(10)
	g.SkipBadRows()
	if err = g.ReadTaskEvents("t", strings.NewReader("7"+task(1)[1:]+task(2))); err == nil || !strings.Contains(err.Error(), "0 comes after 7") {
		t.Errorf("in disorder: %v", err)
	}
}

// broken fails after its text.
type broken struct{ io.Reader }

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = errors.New("the disk is gone")
	}
	return n, err
}

func TestBrokenFile(t *testing.T) {
	g := trace.NewGoogle2011(0)
	err := g.ReadMachineEvents("m", broken{strings.NewReader("0,5,0,p,0.5,0.5\n")})
	if err == nil || err.Error() != "m:2: the file cannot be read further: the disk is gone" {
		t.Errorf("got %v", err)
	}
}

// TestLoad reads a folder, with a file of each compression.
func TestLoad(t *testing.T) {
	c, err := trace.LoadGoogle2011("testdata/google2011", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Machines) != 2 || len(c.Jobs) != 1 || c.Jobs[0].Spec.Tasks != 2 {
		t.Errorf("read %s", cellText(c))
	}
	if _, err := trace.LoadGoogle2011(t.TempDir(), 0, 0); err == nil || !strings.Contains(err.Error(), "has no machine_events/part-*") {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := trace.LoadUsage2019(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// FuzzGoogle2011 wants an error with a place, or a cell that a cell takes.
func FuzzGoogle2011(f *testing.F) {
	f.Add("0,5,0,p,0.5,0.5\n0,6,0,p,1,1\n1,5,1,p,,", "0,5,rack,r1,0\n0,5,rack,,1", "0,7,0,0,rack,r1\n0,7,1,2,n,5", "0,2,7,0,5,0,u,3,9,,,,\n0,,7,0,5,1,u,3,9,0.1,0.1,,1\n0,,7,1,,0,u,0,0,0.1,0.1,,\n5,,7,1,,5,u,0,0,,,,", int64(3))
	f.Fuzz(func(t *testing.T, machines, attributes, constraints, tasks string, atUs int64) {
		g := trace.NewGoogle2011(atUs)
		for _, table := range []struct {
			text string
			read func(string, io.Reader) error
		}{{machines, g.ReadMachineEvents}, {attributes, g.ReadMachineAttributes}, {constraints, g.ReadTaskConstraints}, {tasks, g.ReadTaskEvents}} {
			if err := table.read("f", strings.NewReader(table.text)); err != nil {
				mustSayWhere(t, err)
				return
			}
		}
		c, err := g.Cell()
		if err != nil {
			return
		}
		mustTake(t, c)
	})
}

// FuzzGoogle2019 does the same for the tables of 2019, in a form each.
func FuzzGoogle2019(f *testing.F) {
	f.Add([]byte(`{"time":"0","machine_id":"5","type":1,"capacity":{"cpus":0.5,"memory":0.25}}`),
		[]byte("time,type,collection_id,user,collection_type,alloc_collection_id,parent_collection_id,start_after_collection_ids\n0,SUBMIT,1,u,1,,,\n0,0,2,v,0,1,2,\"[1,\"\"2\"\"]\"\n700,7,2,v,0,,,\n"),
		[]byte(`{"time":"0","type":0,"collection_id":"1","collection_type":1,"instance_index":4,"resource_request":{"cpus":0.5,"memory":0.25}}
{"time":"0","type":3,"collection_id":"1","collection_type":1,"instance_index":4,"machine_id":"5"}
{"time":"0","type":0,"collection_id":"2","instance_index":1,"priority":200,"resource_request":{"cpus":0.1,"memory":0.1},"constraint":[{"name":"k","relation":4,"value":"5"}]}
{"time":"0","type":3,"collection_id":"2","instance_index":1,"priority":200,"machine_id":"5","alloc_collection_id":1,"alloc_instance_index":4}
{"time":"800000000","type":4,"collection_id":"2","instance_index":1,"priority":200}`), int64(0), int64(900e6))
	f.Fuzz(func(t *testing.T, machines, collections, instances []byte, atUs, untilUs int64) {
		o := trace.NewGoogle2019(atUs, untilUs)
		for _, file := range []struct {
			name string
			data []byte
		}{{"machine_events.json", machines}, {"collection_events.csv", collections}, {"instance_events.json", instances}} {
			if err := o.Read(file.name, bytes.NewReader(file.data)); err != nil {
				var at *trace.Error
				if !errors.As(err, &at) || at.File != file.name || at.Line < 1 || at.Text == "" {
					t.Fatalf("%v does not say where", err)
				}
				return
			}
		}
		c, err := o.Cell()
		if err != nil {
			return
		}
		mustTake(t, c)
	})
}

// FuzzGoogle2019Parquet wants no more of files of Parquet than an error with a place.
func FuzzGoogle2019Parquet(f *testing.F) {
	type constraint struct {
		Name     string `parquet:"name"`
		Relation int32  `parquet:"relation"`
		Value    string `parquet:"value,optional"`
	}
	type row struct {
		Time       int64        `parquet:"time"`
		Type       string       `parquet:"type"`
		ID         int64        `parquet:"collection_id,optional"`
		Constraint []constraint `parquet:"constraint,list"`
	}
	var file bytes.Buffer
	if err := parquet.Write(&file, []row{{1, "SUBMIT", 5, nil}, {2, "KILL", 6, []constraint{{"k", 1, ""}, {"l", 2, "3"}}}}); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	for _, p := range packings {
		f.Add(packedPage(f, p.codec, p.pack(8)))
		f.Add(packedPage(f, p.codec, p.pack(64<<10)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		err := trace.NewGoogle2019(0, 0).Read("instance_events.parquet", bytes.NewReader(data))
		var at *trace.Error
		if err != nil && (!errors.As(err, &at) || at.Line < 1 || at.Text == "") {
			t.Fatalf("%v does not say where", err)
		}
	})
}

// FuzzForeign wants an error, or a cell that a cell takes.
func FuzzForeign(f *testing.F) {
	f.Add([]byte(`{"items":[{"kind":"Node","metadata":{"name":"n"},"status":{"allocatable":{"cpu":"1","memory":"1Gi"}}},{"kind":"Pod","metadata":{"name":"p","namespace":"x"},"spec":{"nodeName":"n","containers":[{"resources":{"requests":{"cpu":"100m"}}}]}}]}`), []byte("a,b"))
	f.Add([]byte(`[{"ID":"n","Name":"N","SchedulingEligibility":"eligible","Resources":{"CPU":1}},{"JobID":"j","TaskGroup":"g","NodeID":"n"}]`), []byte("machine,cpu,mem\nm,1,1Gi\n"))
	// Amounts and counts at their edges.
	f.Add([]byte(`{"items":[{"kind":"Node","metadata":{"name":"n","labels":{"a":"1"}},"spec":{"taints":[{"key":"t","effect":"NoExecute"}]},"status":{"allocatable":{"cpu":"1","x.y/z":"9"}}},
{"kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":-5,"template":{"spec":{"containers":[{}]}}}},{"kind":"StatefulSet","metadata":{"name":"s"},"spec":{"replicas":9223372036854775807}},
{"kind":"Job","metadata":{"name":"j"},"spec":{"parallelism":3,"completions":-9223372036854775808},"status":{"succeeded":9223372036854775807}},
{"kind":"PodDisruptionBudget","metadata":{"name":"b"},"spec":{"minAvailable":"200%","selector":{}}},
{"kind":"Pod","metadata":{"name":"p"},"spec":{"nodeName":"n","restartPolicy":"Never","activeDeadlineSeconds":9223372036854775807,"overhead":{"cpu":"1000000000000"},"containers":[{"resources":{"requests":{"cpu":"1000000000000","memory":"1Pi"}}},{"resources":{"requests":{"memory":"1Pi"}}}],
"tolerations":[{"key":"t","effect":"NoExecute","tolerationSeconds":-1}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{},{}]}},"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"a"},{"labelSelector":{},"topologyKey":"a"}]}}}}]}`), []byte("a,b"))
	f.Add([]byte(`[{"ID":"n","Name":"N","SchedulingEligibility":"eligible","NodeResources":{"Cpu":{"CpuShares":4611686018427387904,"TotalCpuCores":1}}},
{"ID":"j","TaskGroups":[{"Name":"g","Count":-1,"Constraints":[{"LTarget":"${attr.a}","RTarget":">= x","Operand":"version"},{"LTarget":"","RTarget":"${","Operand":"regexp"}],"Tasks":[{"Resources":{"Cores":9223372036854775807,"CPU":-5,"Devices":[{"Name":"//","Count":-3}]}}]},{"Name":"h","Count":1,"Tasks":[{"Resources":{"Cores":9223372036854775807,"CPU":-5,"MemoryMB":9223372036854775807,"Devices":[{"Name":"a/b/c","Count":-3}]}}]}]}]`), []byte("a,b"))
	f.Fuzz(func(t *testing.T, data, table []byte) {
		k, n, o := trace.NewKubernetes(trace.KubernetesLabels{Power: "z"}), trace.NewNomad(), trace.NewTables()
		for _, read := range []struct {
			err  error
			cell func() (*trace.Cell, error)
		}{{k.Read("f", bytes.NewReader(data)), k.Cell}, {n.Read("f", bytes.NewReader(data)), n.Cell}, {o.ReadMachines("f", bytes.NewReader(table)), o.Cell}} {
			if read.err != nil {
				continue
			}
			if c, err := read.cell(); err == nil {
				mustTake(t, c)
			}
		}
	})
}

// FuzzHeaded does the same for the traces with a head.
func FuzzHeaded(f *testing.F) {
	f.Add([]byte("sn,cpu_milli,memory_mib,gpu,model\nm,1000,1024,2,T4\n"))
	f.Add([]byte("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\np,1,1,1,500,A|B,LS\n"))
	f.Add([]byte("job_id,priority,cpu_req,mem_req,cpu_avg,mem_avg,cpu_max,mem_max\n1,200,0.5,0.5,0.1,0.2,,\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, u := &trace.Openb{}, &trace.Usage2019{}
		for _, read := range []func(string, io.Reader) error{o.ReadMachines, o.ReadPods, u.Read} {
			if err := read("f", bytes.NewReader(data)); err != nil {
				mustSayWhere(t, err)
			}
		}
		for tier := range trace.NumTiers {
			for i := range u.Len(tier) {
				if first, end := u.Job(tier, i); i < first || i >= end {
					t.Fatalf("row %d of %v is not among those of its job, %d to %d", i, tier, first, end)
				}
			}
		}
	})
}

func mustSayWhere(t *testing.T, err error) {
	t.Helper()
	var at *trace.Error
	if !errors.As(err, &at) || at.File != "f" || at.Line < 1 || at.Text == "" {
		t.Fatalf("%v does not say where", err)
	}
}
