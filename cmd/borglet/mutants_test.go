//go:build mutants

package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"borg/mutant"
)

// mutantVariable names the bug that is planted in this process and in the borglets
// that it starts.
const mutantVariable = "BORGLET_TEST_MUTANT"

func init() { mutant.Plant(mutant.Name(os.Getenv(mutantVariable))) }

// trials are bugs of the borglet, and the test with real processes and containers that
// has to find each.
var trials = []struct {
	mutant mutant.Name
	test   string
}{
	{mutant.EndNotKept, "TestEndKept"},
	{mutant.RebootForgotten, "TestReboot"},
	{mutant.StopLeaksProcess, "TestStop"},
	{mutant.ZombieAdopted, "TestAdopt"},
	{mutant.HalfMadeKept, "TestShimKilledInStart"},
	{mutant.RemovalNotRetried, "TestBusyCgroup"},
	{mutant.AbsenceStops, "TestAbsence"},
	{mutant.BackoffForgotten, "TestRestartWaits"},
}

// TestMutants plants each in a borglet and wants its test to fail, and to pass with
// nothing planted.
func TestMutants(t *testing.T) {
	table := &strings.Builder{}
	tw := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { _, _ = tw.Write([]byte(strings.Join(cells, "\t") + "\n")) }
	row("MUTANT", "FAILURE", "FOUND BY", "PLANTED", "WITHOUT", "SAID")
	killed := 0
	for _, trial := range trials {
		m, ok := mutant.Find(trial.mutant)
		if !ok {
			t.Fatalf("there is no mutant %s", trial.mutant)
		}
		number, _, _ := strings.Cut(m.Failure, ":")
		clean, said := runTrial(t, "", trial.test)
		if clean != "passes" {
			t.Errorf("%s %s with nothing planted: %s", trial.test, clean, said)
		}
		with, said := runTrial(t, trial.mutant, trial.test)
		if with != "fails" {
			t.Errorf("%s: %s %s with it", trial.mutant, trial.test, with)
			with = "SURVIVED: " + with
		} else {
			killed, with = killed+1, "killed"
		}
		row(string(trial.mutant), number, trial.test, with, clean, said)
	}
	tw.Flush()
	t.Logf("\n%s%d of %d mutants killed by real borglets", table, killed, len(trials))
}

// trialTimeout bounds one test; trialPatience is how long it waits for what must come.
const trialTimeout, trialPatience = 5 * time.Minute, 20 * time.Second

// runTrial runs one test of this program with a bug planted; empty: none. It says how
// it went, and what the test said first.
func runTrial(t *testing.T, name mutant.Name, test string) (how, said string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+test+"$", "-test.v", "-test.timeout", trialTimeout.String())
	cmd.Env = append(os.Environ(), mutantVariable+"="+string(name), patienceVariable+"="+trialPatience.String())
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil && strings.Contains(string(out), "--- PASS: "+test+" "):
		return "passes", ""
	case err == nil:
		return "does not run", lastLine(out)
	case errors.As(err, &exit) && strings.Contains(string(out), "--- FAIL: "+test+" "):
		return "fails", firstFailure(string(out))
	}
	return "does not end", lastLine(out)
}

// firstFailure is the first line of the output of a test that is of a file of tests.
func firstFailure(out string) string {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.Contains(line, "_test.go:") && !strings.Contains(line, "seed") {
			return line[:min(len(line), 150)]
		}
	}
	return ""
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
