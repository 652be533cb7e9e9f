package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/bench/figures"
	"borg/cli"
	"borg/fauxmaster/sim"
)

// TestMain lets the test be the program when the simulate command starts itself
// as a worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "faults" && os.Args[2] == "--worker" {
		os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func simulateIt(ctx context.Context, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(ctx, append([]string{"fauxmaster", "faults"}, args...), &o, &e)
	return code, o.String(), e.String()
}

// row is what the table says of something.
func row(out, name string) string {
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
			return strings.Join(strings.Fields(rest), " ")
		}
	}
	return "no row"
}

// TestSimulate runs one seed here: the whole, with a trace, and in part.
func TestSimulate(t *testing.T) {
	code, out, errs := simulateIt(t.Context(), "--seed", "4", "--duration", "1s")
	if code != cli.OK || row(out, "violations") != "0" || row(out, "histories illegal") != "0" {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	code, out, _ = simulateIt(t.Context(), "--seed", "4", "--duration", "1s", "--trace", "--only-faults", "none", "--only-clients", "0,2")
	if code != cli.OK || !strings.Contains(out, "settled at index") || !strings.Contains(out, "client c02 asks") || strings.Contains(out, "client c01 asks") {
		t.Errorf("exit %d, and not the transcript of clients 0 and 2:\n%.500s", code, out)
	}
}

// TestSimulateSeeds shares seeds among processes, replays some, and keeps all in
// a file with which another run goes on.
func TestSimulateSeeds(t *testing.T) {
	dir := t.TempDir()
	file, bench := filepath.Join(dir, "seeds"), filepath.Join(dir, "bench.json")
	args := []string{"--seed", "4", "--duration", "1s", "--processes", "2", "--state", file}
	code, out, errs := simulateIt(t.Context(), append(args, "--seeds", "3", "--replay", "2", "--bench", bench)...)
	if code != cli.OK || row(out, "seeds") != "3 of 3" || row(out, "runs made again") != "4" || row(out, "replay differences") != "0" {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	values := readBench(t, bench)
	if values["sim.seconds_per_seed"] <= 0 || values["sim.acknowledged_per_seed_min"] <= 0 || len(values) < 4 {
		t.Errorf("figures %v", values)
	}

	// As if it had been ended while it wrote the third.
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data[:len(data)-20], 0o600); err != nil {
		t.Fatal(err)
	}
	code, again, errs := simulateIt(t.Context(), append(args, "--seeds", "3")...)
	if code != cli.OK || !strings.Contains(again, "2 of 3 seeds are in "+file) || row(again, "log entries") != row(out, "log entries") {
		t.Errorf("exit %d\n%s%s", code, again, errs)
	}
	if code, _, errs = simulateIt(t.Context(), "--duration", "2s", "--state", file); code != cli.Conflict || !strings.Contains(errs, "run with --duration 1s") {
		t.Errorf("another duration: exit %d\n%s", code, errs)
	}
	data = bytes.Replace(data, []byte(`"Program":"`), []byte(`"Program":"x`), 1)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs = simulateIt(t.Context(), args...); code != cli.Conflict || !strings.Contains(errs, "another build") {
		t.Errorf("another build: exit %d\n%s", code, errs)
	}
}

// readBench is what a file of figures holds, by name; nothing, if there is no file.
func readBench(t *testing.T, file string) map[string]float64 {
	t.Helper()
	all, err := figures.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range all {
		values[f.Name] = f.Value
	}
	return values
}

// TestSimulateInterrupted prints what was done.
func TestSimulateInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, out, errs := simulateIt(ctx, "--seeds", "5", "--duration", "1s")
	if code != cli.Interrupted || !strings.HasSuffix(row(out, "seeds"), "of 5") || !strings.Contains(errs, "--state FILE") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

func TestSimulateRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"--seeds", "0"}, {"--processes", "0"}, {"--duration", "-1s"}, {"1"}, {"--seeds", "2", "--only-faults", "1"},
		{"--only-faults", "x"}, {"--only-clients", "1000"}, {"--aim", "nowhere"},
	} {
		if code, _, errs := simulateIt(t.Context(), args...); code != cli.Usage {
			t.Errorf("%v: exit %d, want %d: %s", args, code, cli.Usage, errs)
		}
	}
}

// A process that dies over a seed is a violation of that seed, and no end of the
// run.
func TestWorkerDies(t *testing.T) {
	w := worker{self: "/bin/false", processors: 1}
	for seed := range uint64(2) {
		r, err := w.run(t.Context(), seed)
		if err != nil || r.Seed != seed || !strings.Contains(r.Failed, "the process that ran it ended: exit status 1") {
			t.Errorf("seed %d came to %q, %v", seed, r.Failed, err)
		}
	}
}

// What is left of a seed is told in words, and with the command that shows it.
func TestTellSmaller(t *testing.T) {
	cfg := sim.Config{Seed: 6, DurationNs: int64(8 * time.Second)}
	faults, clients, err := sim.Size(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Without, cfg.WithoutClients = sim.Others(faults, []int{1}), sim.Others(clients, nil)[:clients-1]
	var out bytes.Buffer
	s := simulation{out: &out}
	s.tellSmaller(sim.Shrunk{
		Config: cfg, Runs: 7, Cut: "stopped after 7 runs",
		Result: sim.Result{Faults: []string{"1.0 s: left out", "2.0 s: it rains"}, Violation: errors.New("at 3.0 s: S4: wet")},
	}, faults, clients)
	want := fmt.Sprintf(`seed 6 made smaller in 7 runs: 1 of %d faults, 1 of %d clients, 8s
	stopped after 7 runs: it may become smaller yet
	fault 1 at 2.0 s: it rains
	at 3.0 s: S4: wet
	see it with: bin/fauxmaster faults --seed 6 --duration 8s --only-faults 1 --only-clients %d --trace
`, faults, clients, clients-1)
	if out.String() != want {
		t.Errorf("it says\n%s\nwant\n%s", out.String(), want)
	}
}
