package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"borg/mutation/plant"
)

// test is one test, or one seed of the simulator, as it ran without a mutant.
type test struct {
	pkg, name string
	took      time.Duration
	// seen has a byte for each number of a mutant; those passed are not zero.
	seen []byte
}

// record runs every test once and returns those that pass.
func (r *run) record(ctx context.Context, b *build) ([]*test, error) {
	var all []*test
	for _, path := range b.tested() {
		out, err := exec.CommandContext(ctx, b.binary(recording, path), "-test.list", ".").Output()
		if err != nil {
			return nil, fmt.Errorf("list the tests of %s: %w", path, err)
		}
		for name := range strings.Lines(string(out)) {
			if name = strings.TrimSpace(name); strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example") || strings.HasPrefix(name, "Fuzz") {
				all = append(all, &test{pkg: path, name: name})
			}
		}
	}
	for seed := range r.seeds {
		all = append(all, &test{pkg: simulator, name: strconv.Itoa(seed + 1)})
	}
	fmt.Printf("run %d tests to see which mutants they reach\n", len(all))
	next := make(chan *test)
	var wg sync.WaitGroup
	var mu sync.Mutex // guards passed and done
	var passed []*test
	var done int
	for worker := range r.workers {
		wg.Go(func() {
			seen := filepath.Join(b.dir, recording, fmt.Sprintf("seen%d", worker))
			for t := range next {
				err := b.watch(ctx, t, seen)
				mu.Lock()
				done++
				switch {
				case ctx.Err() != nil:
				case err != nil:
					fmt.Printf("%s %s fails without a mutant and is left out: %v\n", b.tree.short(t.pkg), t.name, err)
				default:
					passed = append(passed, t)
				}
				if done%100 == 0 {
					fmt.Printf("%d of %d tests\n", done, len(all))
				}
				mu.Unlock()
			}
		})
	}
	for _, t := range all {
		next <- t
	}
	close(next)
	wg.Wait()
	slices.SortFunc(passed, func(a, b *test) int { return int(a.took - b.took) })
	return passed, ctx.Err()
}

// recordLimit is how long a test may take at most; one that takes longer is left out.
const recordLimit = 10 * time.Minute

// watch runs the test and stores which mutants it reaches.
func (b *build) watch(ctx context.Context, t *test, seen string) error {
	if err := os.WriteFile(seen, make([]byte, len(b.mutants)+1), 0o644); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	began := time.Now()
	cmd := b.command(limited, recording, t.pkg, []string{t.name}, plant.SeenVar+"="+seen)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, lastLine(out))
	}
	t.took = time.Since(began)
	var err error
	t.seen, err = os.ReadFile(seen)
	return err
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// killWhole makes the end of the command's context end all that it started.
func killWhole(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
}
