package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"borg/mutation/plant"
)

// simulator stands for the package of the simulator's seeds.
const simulator = "simulator"

// build is the module compiled with all mutants in it.
type build struct {
	tree    *tree
	mutants []*plant.Mutant
	dir     string
	tags    string
}

// Directories of binaries: with the hook that records, and with the one that chooses.
const (
	recording = "record"
	choosing  = "try"
)

// compile writes the overlays and builds all tests and the simulator with each.
func (b *build) compile(ctx context.Context) error {
	abs, err := filepath.Abs(b.dir)
	if err != nil {
		return err
	}
	b.dir = abs
	for _, kind := range []string{recording, choosing} {
		if err := os.RemoveAll(filepath.Join(b.dir, kind)); err != nil {
			return err
		}
		overlay, err := b.overlay(kind)
		if err != nil {
			return err
		}
		for _, path := range b.tested() {
			if err := b.goBuild(ctx, "test", "-c", "-overlay", overlay, "-o", b.binary(kind, path), path); err != nil {
				return err
			}
		}
		if err := b.goBuild(ctx, "build", "-overlay", overlay, "-o", b.binary(kind, simulator), b.tree.module+"/cmd/fauxmaster"); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes the binaries, which take gigabytes.
func (b *build) remove() {
	os.RemoveAll(filepath.Join(b.dir, recording))
	os.RemoveAll(filepath.Join(b.dir, choosing))
}

func (b *build) goBuild(ctx context.Context, verb string, args ...string) error {
	out, err := exec.CommandContext(ctx, "go", slices.Concat([]string{verb, "-tags", b.tags}, args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go %s %s: %w\n%s", verb, strings.Join(args, " "), err, out)
	}
	return nil
}

// tested returns the packages with tests that can pass a mutant: those that have
// one, and those that import one of these.
func (b *build) tested() []string {
	with := map[string]bool{}
	for _, m := range b.mutants {
		with[m.Package] = true
	}
	var paths []string
	for path, l := range b.tree.packages {
		if l.Module == nil || l.Module.Path != b.tree.module || len(l.TestGoFiles)+len(l.XTestGoFiles) == 0 {
			continue
		}
		if with[path] || slices.ContainsFunc(l.Deps, func(dep string) bool { return with[dep] }) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

func (b *build) binary(kind, path string) string {
	return filepath.Join(b.dir, kind, strings.ReplaceAll(b.tree.short(path), "/", "-")+".test")
}

// overlay writes the sources with mutants and returns the file that names them.
func (b *build) overlay(kind string) (string, error) {
	replace := map[string]string{}
	put := func(original, name string, text []byte) error {
		to := filepath.Join(b.dir, kind, "src", name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		replace[original] = to
		return os.WriteFile(to, text, 0o644)
	}
	done := map[string]bool{}
	for _, m := range b.mutants {
		if done[m.Package] {
			continue
		}
		done[m.Package] = true
		p, l := b.tree.checked[m.Package], b.tree.packages[m.Package]
		for _, f := range p.Files {
			if !slices.ContainsFunc(b.mutants, func(m *plant.Mutant) bool { return m.File == f.Name }) {
				continue
			}
			if err := put(filepath.Join(b.tree.root, f.Name), f.Name, plant.Write(f, b.mutants, 1)); err != nil {
				return "", err
			}
		}
		hook := plant.Hook(p.Types.Name(), kind == recording)
		if err := put(filepath.Join(l.Dir, plant.HookFile), b.tree.short(m.Package)+"/"+plant.HookFile, hook); err != nil {
			return "", err
		}
	}
	name := filepath.Join(b.dir, kind, "overlay.json")
	data, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "  ")
	if err != nil {
		return "", err
	}
	return name, os.WriteFile(name, data, 0o644)
}

// command is a run of some tests of one package, or of one seed of the simulator.
func (b *build) command(ctx context.Context, kind, pkg string, names []string, env ...string) *exec.Cmd {
	var cmd *exec.Cmd
	if pkg == simulator {
		cmd = exec.CommandContext(ctx, b.binary(kind, pkg), "faults", "--seed", names[0], "--duration", "10s")
	} else {
		cmd = exec.CommandContext(ctx, b.binary(kind, pkg), "-test.short", "-test.failfast", "-test.timeout=0",
			"-test.run", "^("+strings.Join(names, "|")+")$")
		cmd.Dir = b.tree.packages[pkg].Dir
	}
	cmd.Env = append(os.Environ(), env...)
	killWhole(cmd)
	return cmd
}

// slack is added to three times what a test took, for a machine that has become
// busier since.
const slack = 10 * time.Second

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// kills runs tests of one package with the n-th mutant and returns the one that
// noticed it, empty if none did. A test that fails without the mutant as well
// notices nothing.
func (b *build) kills(ctx context.Context, group []*test, n int) (string, error) {
	if group[0].pkg == simulator {
		for _, t := range group {
			if killer, err := b.killsIn(ctx, []*test{t}, n); killer != "" || err != nil {
				return killer, err
			}
		}
		return "", nil
	}
	return b.killsIn(ctx, group, n)
}

// killsIn is kills for tests that one process runs.
func (b *build) killsIn(ctx context.Context, group []*test, n int) (string, error) {
	for len(group) > 0 {
		pkg := group[0].pkg
		limit := slack
		var names []string
		for _, t := range group {
			limit += 3 * t.took
			names = append(names, t.name)
		}
		out, got, err := b.runTests(ctx, limit, pkg, names, n)
		if err != nil || got == passed {
			return "", err
		}
		name := names[0]
		if m := failed.FindSubmatch(out); m != nil && got != timedOut {
			name = string(m[1])
		} else if got == timedOut || len(names) > 1 {
			// A crash or a hang: nothing says which test.
			return b.endsOnlyWith(ctx, group, n, got, 3*limit)
		}
		_, got, err = b.runTests(ctx, 3*limit, pkg, []string{name}, 0)
		if err != nil {
			return "", err
		}
		if got == passed {
			return b.tree.short(pkg) + " " + name, nil
		}
		group = slices.DeleteFunc(slices.Clone(group), func(t *test) bool { return t.name == name })
	}
	return "", nil
}

// endsOnlyWith compares a crash or a hang of a group with a run without the mutant, which it
// kills if that run passes. Otherwise each test is tried by itself.
func (b *build) endsOnlyWith(ctx context.Context, group []*test, n int, how outcome, limit time.Duration) (string, error) {
	pkg := group[0].pkg
	var names []string
	for _, t := range group {
		names = append(names, t.name)
	}
	_, got, err := b.runTests(ctx, limit, pkg, names, 0)
	switch {
	case err != nil:
		return "", err
	case got == passed && how == timedOut:
		return b.tree.short(pkg) + " hangs", nil
	case got == passed:
		return b.tree.short(pkg) + " crashes", nil
	case len(group) == 1:
		return "", nil
	}
	for _, t := range group {
		if killer, err := b.killsIn(ctx, []*test{t}, n); killer != "" || err != nil {
			return killer, err
		}
	}
	return "", nil
}

// outcome is how a run of tests ended.
type outcome int

const (
	passed outcome = iota
	notPassed
	// The run was killed at its time limit.
	timedOut
)

// runTests runs tests with the n-th mutant, or without a mutant if n is 0, and returns their
// output. The error is that the tests could not be run, or that ctx ended.
func (b *build) runTests(ctx context.Context, limit time.Duration, pkg string, names []string, n int) ([]byte, outcome, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out bytes.Buffer
	cmd := b.command(limited, choosing, pkg, names, plant.NumberVar+"="+strconv.Itoa(n))
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, notPassed, ctx.Err()
	case err == nil:
		return out.Bytes(), passed, nil
	case limited.Err() != nil:
		return out.Bytes(), timedOut, nil
	case errors.As(err, &exit):
		return out.Bytes(), notPassed, nil
	}
	return nil, notPassed, fmt.Errorf("run %s: %w", cmd.Path, err)
}
