package main

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"borg/cli"
	"borg/fauxmaster/export"
)

// TestStudies asks for each experiment, a plan of moves and a forecast, in all three
// forms.
func TestStudies(t *testing.T) {
	ckpt := imported(t)
	state := filepath.Join(t.TempDir(), "probes")
	trials := []string{"--trials", "2", "--threads", "2"}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{append([]string{"experiment", "segregate", ckpt, "--state", state}, trials...), []string{"production apart", "OVERHEAD", "Figure 5", "percent more than the one cell needs"}},
		{append([]string{"experiment", "split-by-user", ckpt, "--user-mem", "45GiB"}, trials...), []string{"large users apart: ann", "large users apart: all others"}},
		{append([]string{"experiment", "subdivide", ckpt, "--cells", "2"}, trials...), []string{"2 cells: 1", "2 cells: 2"}},
		{append([]string{"experiment", "bucket", ckpt}, trials...), []string{"lower bound", "upper bound", "bucketed"}},
		{append([]string{"experiment", "no-reclamation", ckpt}, trials...), []string{"nothing to reclaim", "+0.0 %"}},
		{append([]string{"experiment", "estimator", ckpt}, trials...), []string{"conservative", "medium", "aggressive"}},
		{[]string{"defrag", ckpt, "--max-moves", "5"}, []string{"empty machines", "largest task that fits 10 times"}},
		{[]string{"eta", ckpt, "ann/web/0"}, []string{"has a place, or gets one at once, on m1", "Taken as given"}},
	} {
		out := mustRun(t, c.args...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("fauxmaster %s: %q is missing in:\n%s", strings.Join(c.args, " "), want, out)
			}
		}
		var v any
		if text := mustRun(t, append(c.args, "-o", "json")...); json.Unmarshal([]byte(text), &v) != nil {
			t.Errorf("fauxmaster %s -o json:\n%s", strings.Join(c.args, " "), text)
		}
		page := filepath.Join(t.TempDir(), "page.html")
		mustRun(t, append(c.args, "--html", page)...)
		mustBePage(t, page)
	}
	// The probes of one question are not those of another.
	if code, _, errs := ask(t, append([]string{"experiment", "bucket", ckpt, "--state", state}, trials...)...); code != cli.Conflict {
		t.Errorf("exit code %d, want %d: %s", code, cli.Conflict, errs)
	}
}

// TestDiffOfCheckpoints compares a cell with one from which a machine was taken.
func TestDiffOfCheckpoints(t *testing.T) {
	ckpt := imported(t)
	small := filepath.Join(t.TempDir(), "small.ckpt")
	out := mustRun(t, "sample", ckpt, "--machines", "5", "-o", small)
	if !strings.Contains(out, "5 with 40 cpu, 160 GiB") {
		t.Errorf("sample:\n%s", out)
	}
	code, out, errs := ask(t, "diff", ckpt, small)
	if code != cli.Changes {
		t.Fatalf("exit code %d, want %d: %s", code, cli.Changes, errs)
	}
	for _, want := range []string{"not moments of one cell", "6 → 5", "Machines\n  - m"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if out := mustRun(t, "diff", ckpt, ckpt); !strings.Contains(out, "Nothing is different.") {
		t.Errorf("a cell and itself:\n%s", out)
	}
	page := filepath.Join(t.TempDir(), "page.html")
	if code, _, _ := ask(t, "diff", ckpt, small, "--html", page, "-o", "json"); code != cli.Changes {
		t.Errorf("exit code %d, want %d", code, cli.Changes)
	}
	mustBePage(t, page)
}

// TestDiffOfMoments goes by the log of an archive.
func TestDiffOfMoments(t *testing.T) {
	dir := story(t)
	code, out, errs := ask(t, "diff", dir, "--at", "3", "--to", "1:7")
	if code != cli.Changes || !strings.Contains(out, "index 3") || !strings.Contains(out, "index 7") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	if code, _, _ := ask(t, "diff", dir); code != cli.Usage {
		t.Errorf("one archive and no moments: exit code %d, want %d", code, cli.Usage)
	}
}

func rowsOf(t *testing.T, path string) []map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil || len(all) == 0 {
		t.Fatalf("%s: %d rows, %v", path, len(all), err)
	}
	var rows []map[string]string
	for _, cells := range all[1:] {
		row := make(map[string]string)
		for i, name := range all[0] {
			row[name] = cells[i]
		}
		rows = append(rows, row)
	}
	return rows
}

// TestExport reads the tables of a checkpoint back, of both formats.
func TestExport(t *testing.T) {
	ckpt, dir := imported(t), t.TempDir()
	mustRun(t, "export", ckpt, "-o", dir)
	mustRun(t, "export", ckpt, "-o", dir, "--format", "parquet")
	tasks := rowsOf(t, filepath.Join(dir, "tasks.csv"))
	again, err := parquet.ReadFile[export.TaskRow](filepath.Join(dir, "tasks.parquet"))
	if err != nil || len(tasks) != 32 || len(again) != 32 {
		t.Fatalf("%d and %d tasks, %v; want 32", len(tasks), len(again), err)
	}
	for i, row := range again {
		if tasks[i]["machine"] != row.Machine || tasks[i]["job"] != row.Job || row.Machine == "" || row.LimitCPUMilli == 0 {
			t.Errorf("task %d: %v and %+v", i, tasks[i], row)
		}
	}
	machines, err := parquet.ReadFile[export.MachineRow](filepath.Join(dir, "machines.parquet"))
	if err != nil || len(machines) != 6 || machines[0].Attributes["rack"] != "r1" || machines[0].LimitCPUMilli != 9000 {
		t.Errorf("%+v, %v", machines, err)
	}
	if jobs := rowsOf(t, filepath.Join(dir, "jobs.csv")); len(jobs) != 2 || jobs[0]["running"] != "12" {
		t.Errorf("%v", jobs)
	}
}

// TestExportEvents follows each instance of an archive through Google's events: it
// begins with SUBMIT, is scheduled onto a machine that is there, and once ended goes
// on only with a SUBMIT.
func TestExportEvents(t *testing.T) {
	dir := t.TempDir()
	mustRun(t, "export", story(t), "-o", dir, "--format", "google2019")
	data, err := os.ReadFile(filepath.Join(dir, "instance_events.json"))
	if err != nil {
		t.Fatal(err)
	}
	type key struct {
		id    int64
		index int32
	}
	const submit, schedule, evict, kill = 0, 3, 4, 7
	last := make(map[key]int32)
	seen := make(map[int32]int)
	time := int64(0)
	for line := range strings.Lines(string(data)) {
		var e export.InstanceEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		k := key{e.CollectionID, e.InstanceIndex}
		was, known := last[k]
		ended := known && was >= evict && was <= 8
		switch {
		case !known && e.Type != submit, ended && e.Type != submit, known && !ended && e.Type == submit, e.Type == schedule && e.MachineID == 0, e.Time < time:
			t.Errorf("%+v after an event of type %d (%v)", e, was, known)
		}
		last[k], time = e.Type, e.Time
		seen[e.Type]++
		if e.ResourceRequest.CPUs <= 0 {
			t.Errorf("%+v asks for nothing", e)
		}
	}
	if seen[submit] < 2 || seen[schedule] < 1 || seen[kill] < 1 {
		t.Errorf("%v: submitted, scheduled and killed are missing", seen)
	}
	for _, name := range []string{"collection_events.json", "machine_events.json", "names.json", "about.json"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	flat := t.TempDir()
	mustRun(t, "export", story(t), "-o", flat)
	if rows := rowsOf(t, filepath.Join(flat, "instance_events.csv")); len(rows) != strings.Count(string(data), "\n") || rows[0]["resource_request.cpus"] == "" {
		t.Errorf("%d rows of CSV, %d of JSON", len(rows), strings.Count(string(data), "\n"))
	}
}
