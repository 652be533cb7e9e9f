//go:build linux && cgo

package container

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"borg/borglet"
)

// allocWeights has the cgroup of an alloc weigh as its most urgent copy does: the kernel
// divides a processor among allocs before it looks what is in them, so that batch alone
// in an alloc would otherwise not give way to anybody beside it.
type allocWeights struct {
	// groups returns the directories of an alloc's cgroup.
	groups func(alloc string) paths

	// mu is held while weights are written, so that who writes last knows of all.
	mu sync.Mutex
	// copies are those in allocs. Guarded by mu.
	copies map[borglet.ID]allocCopy
}

// allocCopy is what one copy says of the weight of its alloc.
type allocCopy struct {
	alloc    string
	batch    bool
	cpuMilli int64
}

func newAllocWeights(groups func(alloc string) paths) *allocWeights {
	return &allocWeights{groups: groups, copies: map[borglet.ID]allocCopy{}}
}

// join counts a copy with its alloc and completes the alloc's limits. What it says may be
// out of date when it is obeyed: weigh follows.
func (w *allocWeights) join(l *borglet.Launch) {
	if l.Alloc == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.copies[l.ID] = allocCopy{alloc: l.Alloc, batch: l.Limits.Batch, cpuMilli: l.AllocLimits.CPUMilli}
	l.AllocLimits.Batch = w.batch(l.Alloc)
}

// leave is join undone.
func (w *allocWeights) leave(id borglet.ID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.copies[id]
	if !ok {
		return nil
	}
	delete(w.copies, id)
	return w.write(c.alloc)
}

// weigh writes the weight of the alloc that a copy is in.
func (w *allocWeights) weigh(id borglet.ID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.copies[id]
	if !ok {
		return nil
	}
	return w.write(c.alloc)
}

// settle writes all weights.
func (w *allocWeights) settle() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	allocs := map[string]bool{}
	for _, c := range w.copies {
		allocs[c.alloc] = true
	}
	var errs []error
	for _, alloc := range slices.Sorted(maps.Keys(allocs)) {
		errs = append(errs, w.write(alloc))
	}
	return errors.Join(errs...)
}

// batch: all in the alloc are.
func (w *allocWeights) batch(alloc string) bool {
	for _, c := range w.copies {
		if c.alloc == alloc && !c.batch {
			return false
		}
	}
	return true
}

// write sets the weight of an alloc. One in which nothing runs has none to have, and one
// whose cgroup is gone, or is not there yet, gets it from who makes it.
func (w *allocWeights) write(alloc string) error {
	cpuMilli := int64(0)
	for _, c := range w.copies {
		if c.alloc == alloc {
			cpuMilli = max(cpuMilli, c.cpuMilli)
		}
	}
	if cpuMilli == 0 {
		return nil
	}
	r, group := limits(borglet.Limits{CPUMilli: cpuMilli, Batch: w.batch(alloc)}), w.groups(alloc)
	file, weight := filepath.Join(group["cpu"], "cpu.shares"), r.CpuShares
	if group.v2() {
		file, weight = filepath.Join(group[""], "cpu.weight"), r.CpuWeight
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = f.WriteString(strconv.FormatUint(weight, 10))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("set the processor weight of alloc %s: %w", alloc, err)
	}
	return nil
}
