package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/cli"
)

// ask runs the program.
func ask(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), append([]string{"fauxmaster"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := ask(t, args...)
	if code != cli.OK {
		t.Fatalf("fauxmaster %s: exit code %d: %s", strings.Join(args, " "), code, errs)
	}
	return out
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// imported is a checkpoint of six machines in three racks, with twelve web tasks
// (two on each) and batch in most of what they leave. One machine is overcommitted.
func imported(t *testing.T) string {
	t.Helper()
	var machines strings.Builder
	machines.WriteString("machine,cpu,mem,rack\n")
	var tasks strings.Builder
	tasks.WriteString("job,cpu,mem,priority,kind,machine,count\n")
	for i, name := range []string{"m1", "m2", "m3", "m4", "m5", "m6"} {
		machines.WriteString(name + ",8,32Gi,r" + string(rune('1'+i/2)) + "\n")
		tasks.WriteString("ann/web,2,4Gi,200,service," + name + ",2\n")
		tasks.WriteString("bob/crunch,1,2Gi,110,batch," + name + ",3\n")
	}
	tasks.WriteString("bob/crunch,1,2Gi,110,batch,m1,2\n")
	ckpt := filepath.Join(t.TempDir(), "cell.ckpt")
	out := mustRun(t, "import", "csv", writeFile(t, "machines.csv", machines.String()), writeFile(t, "tasks.csv", tasks.String()), "-o", ckpt)
	for _, want := range []string{"6 with 48 cpu, 192 GiB", "32 tasks; asked for are 44 cpu", "(91.7 % and 45.8 % of it)", "1 machine by CPU, 0 machines by memory"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	return ckpt
}

const moreJob = `{"job": {"name": "more", "user": "ann", "tasks": 2, "priority": 200, "task": {"args": ["/bin/x"], "resources": {"cpu": 1, "mem": "1GiB"}}}}`

// TestPlan asks a cell that was imported everything there is.
func TestPlan(t *testing.T) {
	ckpt := imported(t)
	job := writeFile(t, "more.json", moreJob)
	if out := mustRun(t, "show", ckpt); !strings.Contains(out, "32: 0 pending, 32 running") {
		t.Errorf("show:\n%s", out)
	}
	// Five machines have one core left; m1 has one less than none.
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"fit", ckpt, "--job", job, "--no-preemption", "--count-per", "rack"}, []string{"5 more tasks of ann/more fit without evictions.", "RACK", "r2    2", "CPU OF EACH"}},
		// Production takes four cores of each from batch: 6*4.
		{[]string{"fit", ckpt, "--job", job}, []string{"24 more tasks of ann/more fit.", "For them the cell evicts"}},
		{[]string{"fit", ckpt, "--job", "bob/crunch", "--no-preemption"}, []string{"more tasks of bob/crunch fit without evictions."}},
		{[]string{"whatif", ckpt, "--remove-machines", "rack=r3"}, []string{"tasks that wait  0               11", "JOB WITH FEWER RUNNING TASKS", "bob/crunch", "machine m5 was removed"}},
		{[]string{"whatif", ckpt, "--add-machines", "2=m1", "--submit", job}, []string{"2 new, placed", "0 jobs run with less"}},
		{[]string{"whatif", ckpt, "--add-machines", "1=cpu=4,mem=8GiB,rack=r9", "--set-attribute", "rack=r1:gen=8"}, []string{"Nothing happens to any task."}},
		{[]string{"fail", ckpt, "rack=*", "--worst"}, []string{"Of the domains asked about, the loss of rack=r", "IF LOST", "JOB WITH FEWER RUNNING TASKS"}},
		{[]string{"compact", ckpt, "--trials", "3", "--threads", "2"}, []string{"machines needed  6, 100.0 % of the cell", "32 tasks", "6 6 6"}},
		{[]string{"ab", ckpt, "--a", "hybrid", "--b", "worst-fit,rack=512", "--trials", "1"}, []string{"HYBRID", "WORST-FIT,RACK=512", "machines needed"}},
	} {
		out := mustRun(t, c.args...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("fauxmaster %s: %q is missing in:\n%s", strings.Join(c.args, " "), want, out)
			}
		}
		var v any
		text := mustRun(t, append(c.args, "-o", "json")...)
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Errorf("fauxmaster %s -o json: %v:\n%s", strings.Join(c.args, " "), err, text)
		}
		page := filepath.Join(t.TempDir(), "page.html")
		mustRun(t, append(c.args, "--html", page)...)
		mustBePage(t, page)
	}
}

// mustBePage wants a page that needs nothing but itself, whose charts are sound.
func mustBePage(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, never := range []string{"http:", "https:", "<script", "src=", "NaN", "Inf", "url("} {
		if strings.Contains(text, never) {
			t.Errorf("%s has %q", path, never)
		}
	}
	charts := 0
	for rest := text; ; charts++ {
		at := strings.Index(rest, "<svg")
		if at < 0 {
			break
		}
		end := strings.Index(rest[at:], "</svg>") + len("</svg>")
		d := xml.NewDecoder(strings.NewReader(rest[at : at+end]))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Errorf("%s: chart %d: %v", path, charts, err)
				break
			}
		}
		rest = rest[at+end:]
	}
	if charts == 0 || !strings.Contains(text, "prefers-color-scheme: dark") {
		t.Errorf("%s has %d charts, or is not for the dark", path, charts)
	}
}

// TestPlanRefusals wants each mistake to say what it is and what to type.
func TestPlanRefusals(t *testing.T) {
	ckpt := imported(t)
	job := writeFile(t, "more.json", moreJob)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"fit CKPT", cli.Usage, "fauxmaster fit CHECKPOINT --job FILE|"},
		{"fit CKPT --job ann/none", cli.NotFound, "the cell has no job of that name"},
		{"fit CKPT --user ann --job none", cli.NotFound, "ann/none is no file, and the cell has no job of that name"},
		{"fit --job JOB", cli.Usage, "want one checkpoint file"},
		{"fit CKPT.none --job JOB", cli.NotFound, "there is no file"},
		{"fit JOB --job JOB", cli.Invalid, "JOB"},
		{"fit CKPT --job JOB --only ann/none", cli.NotFound, "the files have no job ann/none"},
		{"fit CKPT --job JOB --count-per rck", cli.NotFound, `did you mean "rack"?`},
		{"step CKPT", cli.Usage, "CKPT is one checkpoint, and this takes an archive"},
		{"show CKPT --at 3", cli.NotFound, "leave --at out"},
		{"fit CKPT --job JOB --largest 0", cli.Usage, "is not a number of times"},
		{"fit CKPT --job JOB --policy worst", cli.Usage, "policies: hybrid"},
		{"fit CKPT --job JOB --weight rack=x", cli.Usage, "--weight"},
		{"fit CKPT --job JOB -o xml", cli.Usage, "use -o table or -o json"},
		{"whatif CKPT", cli.Usage, "there is nothing to try"},
		{"whatif CKPT --remove-machines rack=r9", cli.NotFound, "no machine has rack=r9"},
		{"whatif CKPT --remove-machines r9", cli.Usage, "want ATTRIBUTE=VALUE"},
		{"whatif CKPT --add-machines 3", cli.Usage, "want N=MACHINE"},
		{"whatif CKPT --add-machines 3=m99", cli.NotFound, "there is no machine m99"},
		{"whatif CKPT --add-machines 3=cpu=x", cli.Usage, "want N=MACHINE"},
		{"whatif CKPT --set-attribute rack=r1", cli.Usage, "want ATTRIBUTE=VALUE:KEY=NEW"},
		{"fail CKPT", cli.Usage, "fauxmaster fail CHECKPOINT 'rack=*' --worst"},
		{"fail CKPT shelf=*", cli.NotFound, "no machine has shelf=*"},
		{"compact CKPT --trials 0", cli.Usage, "at least one trial"},
		{"ab CKPT --a best", cli.Usage, `there is no policy "best"`},
		{"import csv JOB JOB", cli.Usage, "add -o FILE"},
		{"import csv JOB JOB -o CKPT.2", cli.Invalid, "there is no column machine"},
		{"import kubernetes CKPT.none -o CKPT.2", cli.NotFound, "there is no file CKPT.none"},
		{"import kubernetes CKPT -o CKPT.2", cli.Invalid, "CKPT is not JSON"},
		{"import kubernetes CKPT -o CKPT.2", cli.Invalid, "-A -o json > cluster.json"},
		{"import nomad CKPT -o CKPT.2", cli.Invalid, "curl $NOMAD_ADDR/v1/nodes"},
		{"import kubernetes JOB -o CKPT.2", cli.Invalid, "there is no node in it"},
		{"import nomad JOB -o CKPT.2", cli.Invalid, "there is no node in it"},
	} {
		replace := strings.NewReplacer("CKPT", ckpt, "JOB", job)
		code, out, errs := ask(t, strings.Fields(replace.Replace(c.args))...)
		if code != c.code || out != "" || !strings.Contains(errs, replace.Replace(c.want)) {
			t.Errorf("fauxmaster %s: exit code %d, %s%s; want %d and %q", c.args, code, out, errs, c.code, c.want)
		}
	}
	if _, err := os.Stat(ckpt + ".2"); !os.IsNotExist(err) {
		t.Errorf("a file was left behind: %v", err)
	}
}

// TestCompactGoesOn is interrupted, and goes on where it was to the same end.
func TestCompactGoesOn(t *testing.T) {
	ckpt := imported(t)
	state := filepath.Join(t.TempDir(), "state")
	args := []string{"compact", ckpt, "--trials", "3", "--threads", "1", "--state", state}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, append([]string{"fauxmaster"}, args...), &out, &errs); code != cli.Interrupted || !strings.Contains(errs.String(), "the same command goes on where it was") {
		t.Errorf("interrupted: exit code %d, %s", code, errs.String())
	}
	lines := func() []string {
		data, err := os.ReadFile(state)
		if err != nil {
			t.Fatal(err)
		}
		return strings.SplitAfter(string(data), "\n")
	}
	whole := strings.Split(mustRun(t, args...), "took")[0]
	all := lines()
	// The last line was cut short, and one is missing.
	cut := strings.Join(all[:len(all)-3], "") + `{"trial":2,"mach`
	if err := os.WriteFile(state, []byte(cut), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := strings.Split(mustRun(t, args...), "took")[0]; again != whole {
		t.Errorf("it went on to\n%s\nwant\n%s", again, whole)
	}
	if now := lines(); len(now) != len(all) {
		t.Errorf("the state has %d lines, want %d", len(now), len(all))
	}
	if code, _, errs := ask(t, append(args, "--policy", "best-fit")...); code != cli.Conflict || !strings.Contains(errs, "another cell, scheduler, build or question") {
		t.Errorf("with another policy: exit code %d, %s", code, errs)
	}
}

// TestImportIsSound wants the digest of a checkpoint that was made to be that of
// its cell, and the cell to keep its rules, as show proves.
func TestImportIsSound(t *testing.T) {
	dump := `{"items": [
 {"kind": "Node", "metadata": {"name": "n1"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"}}},
 {"kind": "Pod", "metadata": {"name": "a", "namespace": "x"}, "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"cpu": "3", "nvidia.com/gpu": "2"}}}]}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "b", "namespace": "x"}, "spec": {"nodeName": "gone", "containers": [{}]}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "c", "namespace": "x"}, "spec": {"nodeSelector": {"no": "such"}, "nodeName": "n1", "containers": [{}]}, "status": {"phase": "Running"}}]}`
	ckpt := filepath.Join(t.TempDir(), "k.ckpt")
	out := mustRun(t, "import", "kubernetes", writeFile(t, "dump.json", dump), "-o", ckpt)
	for _, want := range []string{
		"1 with 1 cpu, 1 GiB", "3 tasks; asked for are 3 cpu", "1 machine by CPU", "1 task ran on machines that are not listed",
		"1 task on machines that do not meet their constraints", "not mapped",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	p, err := openPath(ckpt)
	if err != nil {
		t.Fatal(err)
	}
	m := p.Cell.Machine("n1")
	if m.Capacity().CPUMilli != 1000 || len(m.Taints()) != 1 || m.NumCopies() != 3 {
		t.Errorf("%v with taints %v and %d copies", m.Capacity(), m.Taints(), m.NumCopies())
	}
	if j := p.Cell.Job(cell.JobKey{User: "x", Name: "a"}); j == nil || len(j.Task(0).Current().Devices()) != 2 {
		t.Errorf("pod a has no GPUs")
	}
}
