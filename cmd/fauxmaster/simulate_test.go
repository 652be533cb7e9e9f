package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"borg/bench/figures"
	"borg/cli"
)

// TestMain lets the test be the program when the simulate command starts itself
// as a worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "simulate" && os.Args[2] == "--worker" {
		os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func simulateIt(ctx context.Context, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(ctx, append([]string{"fauxmaster", "simulate"}, args...), &o, &e)
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
	var found []figures.Figure
	data, err := os.ReadFile(bench)
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	values := map[string]float64{}
	for _, f := range found {
		values[f.Name] = f.Value
	}
	if err != nil || values["sim.seconds_per_seed"] <= 0 || values["sim.acknowledged_per_seed_min"] <= 0 || len(values) < 4 {
		t.Errorf("figures %v: %v", values, err)
	}

	// As if it had been ended while it wrote the third.
	if data, err = os.ReadFile(file); err != nil {
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
