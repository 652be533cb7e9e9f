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
