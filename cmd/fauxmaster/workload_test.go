package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"borg/cli"
	"borg/fauxmaster/workload"
)

// importedDay is an archive of one machine, a service on it, and a batch job that is too
// large for what is left and arrives twice.
func importedDay(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "day")
	out := mustRun(t, "import", "csv", writeFile(t, "machines.csv", "machine,cpu,mem\nm1,8,32Gi\n"),
		writeFile(t, "tasks.csv", "job,cpu,mem,priority,machine,submit,run,count\nann/web,4,4Gi,200,m1,,,1\nbob/sort,2,2Gi,110,,60,120,2\nbob/sort,2,2Gi,110,,90,120,2\n"), "-o", dir)
	for _, want := range []string{"1 with 8 cpu, 32 GiB", "2 ops in 3m30s, of 4 tasks"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	return dir
}

// TestSimulateWorkload lets it happen, in all three forms of the report.
func TestSimulateWorkload(t *testing.T) {
	dir := importedDay(t)
	html := filepath.Join(t.TempDir(), "day.html")
	out := mustRun(t, "simulate", dir, "--until", "6m", "--every", "1m", "--html", html)
	// The second two wait for the first ones until 180 s, and end at 300 s.
	for _, want := range []string{"0:02:00  2        3        0", "0:04:00  0        3        0", "0:05:00  0        1        0", "4 tasks; placed 4, finished 4", "pending 0.7 of 0.0, running 0.7 of 3.7", "mean gap to the recording"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if page, err := os.ReadFile(html); err != nil || !strings.Contains(string(page), "<svg") || !strings.Contains(string(page), "recorded at 0:02:00") || strings.Contains(string(page), "src=") {
		t.Errorf("the page: %v\n%.2000s", err, page)
	}
	var r workload.Report
	if err := json.Unmarshal([]byte(mustRun(t, "simulate", dir, "--every", "30s", "-o", "json")), &r); err != nil || len(r.Samples) != 8 || r.Submitted != 4 {
		t.Errorf("%v: %d samples, %d submitted; want 8 to the end of the recording at 3m30s, and 4", err, len(r.Samples), r.Submitted)
	}
	// It is an archive like any other.
	if out := mustRun(t, "step", dir, "-n", "1"); !strings.Contains(out, "submit-job bob/sort") {
		t.Errorf("step:\n%s", out)
	}
	if out := mustRun(t, "simulate", imported(t), "--synthetic", "jobs-per-hour=100", "--until", "1h"); !strings.Contains(out, "1:00:00") || strings.Contains(out, "mean gap") {
		t.Errorf("made up:\n%s", out)
	}
}

// TestSimulateFoldsRows: a day without new load has a row for its first and one for its last
// sample of those that are alike; the JSON has all.
func TestSimulateFoldsRows(t *testing.T) {
	of := imported(t)
	out := mustRun(t, "simulate", of, "--until", "2h")
	rows, _, _ := strings.Cut(out, "\n\n")
	if n := strings.Count(rows, "\n"); n > 6 || !strings.Contains(rows, " rows alike)\n2:00:00") {
		t.Errorf("%d rows:\n%s", n, rows)
	}
	var r workload.Report
	if err := json.Unmarshal([]byte(mustRun(t, "simulate", of, "--until", "2h", "-o", "json")), &r); err != nil || len(r.Samples) < 24 {
		t.Errorf("%v: %d samples in the JSON, want one every 5m", err, len(r.Samples))
	}
}

// TestSimulateMistakes says what is wrong with the command line, and keeps what an
// interrupted run came to.
func TestSimulateMistakes(t *testing.T) {
	dir := importedDay(t)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"simulate DIR DIR", cli.Usage, "want one checkpoint or archive"},
		{"simulate DIR.none", cli.NotFound, "DIR.none"},
		{"simulate DIR --until -1s", cli.Usage, "want a time above zero"},
		{"simulate DIR --every 1500ms", cli.Usage, "a multiple of the pace"},
		{"simulate DIR --synthetic hogs=1", cli.Usage, "jobs-per-hour (600)"},
		{"simulate DIR --policy worst", cli.Usage, "policies: hybrid"},
		{"simulate DIR --at 1:999", cli.NotFound, "does not lead to"},
	} {
		replace := strings.NewReplacer("DIR", dir)
		code, out, errs := ask(t, strings.Fields(replace.Replace(c.args))...)
		if code != c.code || out != "" || !strings.Contains(errs, replace.Replace(c.want)) {
			t.Errorf("fauxmaster %s: exit code %d, %s%s; want %d and %q", c.args, code, out, errs, c.code, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"fauxmaster", "simulate", dir}, &out, &errs); code != cli.Interrupted || !strings.Contains(out.String(), "0:00:00") || !strings.Contains(errs.String(), "interrupted at 0s of 3m30s") {
		t.Errorf("interrupted: exit code %d, %s%s", code, out.String(), errs.String())
	}
}

// TestSimulateTellsWhatCannotBeMeant: no time at all is refused, and a checkpoint in which nothing arrives says so.
func TestSimulateTellsWhatCannotBeMeant(t *testing.T) {
	path := imported(t)
	for _, flag := range []string{"--until", "--every", "--pace"} {
		if code, _, errs := ask(t, "simulate", path, flag, "0s"); code != cli.Usage || !strings.Contains(errs, flag+" 0s: want a time above zero") {
			t.Errorf("%s 0s: exit code %d\n%s", flag, code, errs)
		}
	}
	if _, _, errs := ask(t, "simulate", path, "--until", "1h"); !strings.Contains(errs, "nothing arrives: ") || !strings.Contains(errs, "--synthetic default") {
		t.Errorf("without a workload:\n%s", errs)
	}
}
