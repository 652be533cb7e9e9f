package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"borg/mutation/plant"
)

// TestKillsComparesWithoutTheMutant: a run that fails without the mutant as well kills
// nothing, whether it is a test or a seed of the simulator.
func TestKillsComparesWithoutTheMutant(t *testing.T) {
	const pkg = "m/own"
	for _, row := range []struct {
		name, script string
		want         string
	}{
		{"fails with the mutant", `test "$` + plant.NumberVar + `" = 0`, " Test7"},
		{"fails always", "exit 1", ""},
		{"passes always", "exit 0", ""},
	} {
		for _, pkg := range []string{pkg, simulator} {
			t.Run(row.name+", "+pkg, func(t *testing.T) {
				b := &build{tree: &tree{module: "m", packages: map[string]*listed{pkg: {}}}, dir: t.TempDir()}
				write(t, b.binary(choosing, pkg), "#!/bin/sh\n"+row.script+"\n")
				got, err := b.kills(t.Context(), []*test{{pkg: pkg, name: "Test7", took: time.Second}}, 3)
				want := row.want
				if want != "" {
					want = b.tree.short(pkg) + want
				}
				if err != nil || got != want {
					t.Errorf("killed by %q (%v), want %q", got, err, want)
				}
			})
		}
	}
}

// TestKillsComparesGroups: a group of tests that crashes or hangs kills the mutant only if it
// passes without it; if not, each test is tried by itself.
func TestKillsComparesGroups(t *testing.T) {
	const pkg = "m/own"
	mutant := `test "$` + plant.NumberVar + `" = 0`
	for name, row := range map[string]struct{ script, want string }{
		"crashes with the mutant":                  {mutant, " crashes"},
		"crashes always":                           {"exit 1", ""},
		"crashes always, one of them only with it": {`case "$*" in *A*) exit 1;; esac; ` + mutant, " TestB"},
		"crashes always, together only":            {`case "$*" in *A*B*) exit 1;; esac`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := &build{tree: &tree{module: "m", packages: map[string]*listed{pkg: {}}}, dir: t.TempDir()}
			write(t, b.binary(choosing, pkg), "#!/bin/sh\n"+row.script+"\n")
			got, err := b.kills(t.Context(), []*test{{pkg: pkg, name: "TestA"}, {pkg: pkg, name: "TestB"}}, 3)
			want := row.want
			if want != "" {
				want = b.tree.short(pkg) + want
			}
			if err != nil || got != want {
				t.Errorf("killed by %q (%v), want %q", got, err, want)
			}
		})
	}
}

// TestHangsAreCompared: a run that was killed at its limit is compared as well.
func TestHangsAreCompared(t *testing.T) {
	const pkg = "m/own"
	for script, want := range map[string]string{`test "$` + plant.NumberVar + `" = 0`: " hangs", "exit 1": ""} {
		b := &build{tree: &tree{module: "m", packages: map[string]*listed{pkg: {}}}, dir: t.TempDir()}
		write(t, b.binary(choosing, pkg), "#!/bin/sh\n"+script+"\n")
		if want != "" {
			want = b.tree.short(pkg) + want
		}
		got, err := b.endsOnlyWith(t.Context(), []*test{{pkg: pkg, name: "TestA"}}, 3, timedOut, time.Minute)
		if err != nil || got != want {
			t.Errorf("%s: killed by %q (%v), want %q", script, got, err, want)
		}
	}
}

// TestKillsReportsWhatCannotRun: a binary that does not start is an error and kills nothing.
func TestKillsReportsWhatCannotRun(t *testing.T) {
	b := &build{tree: &tree{module: "m"}, dir: t.TempDir()}
	if got, err := b.kills(t.Context(), []*test{{pkg: simulator, name: "1"}}, 3); err == nil || got != "" {
		t.Errorf("killed by %q (%v), want an error", got, err)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
