package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

const cpusetFile = "cpuset.cpus"

// processors divides those of the machine between copies that have some alone and all
// others: each cgroup of a copy says on which it may run. Allocs do not, what is in them
// does.
type processors struct {
	cores borglet.Cores
	// dir is where the cgroups of copies lie that say it.
	dir string

	mu sync.Mutex
	// held is the processors of each copy that has some alone. Guarded by mu, as is
	// changes, which counts how often held has changed.
	held    map[borglet.ID][]int
	changes int
}

func newProcessors(cores borglet.Cores, dir string) *processors {
	return &processors{cores: cores, dir: dir, held: map[borglet.ID][]int{}}
}

// take says on which processors a copy is to run, "" for all, and takes those from
// all others that it has alone. changes is for started.
func (p *processors) take(id borglet.ID, numbers []uint32) (cpus []int, set string, changes int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(numbers) == 0 {
		return nil, p.setOf(id), p.changes, nil
	}
	if cpus, err = p.cores.Of(numbers); err != nil {
		return nil, "", 0, err
	}
	for other, theirs := range p.held {
		if other != id && slices.ContainsFunc(cpus, func(cpu int) bool { return slices.Contains(theirs, cpu) }) {
			return nil, "", 0, fmt.Errorf("copy %s still has the processors %s", other, listText(theirs))
		}
	}
	p.held[id] = cpus
	p.changes++
	if err := p.divide(); err != nil {
		delete(p.held, id)
		return nil, "", 0, errors.Join(err, p.divide())
	}
	return cpus, listText(cpus), p.changes, nil
}

// keep takes those that a copy of an earlier borglet has.
func (p *processors) keep(id borglet.ID, cpus []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[id] = cpus
	p.changes++
}

// free gives back what a copy had alone.
func (p *processors) free(id borglet.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, had := p.held[id]; !had {
		return nil
	}
	delete(p.held, id)
	p.changes++
	return p.divide()
}

// started is for a copy whose cgroup has come to be since take: if processors were taken
// or given back meanwhile, it was not there to hear of it.
func (p *processors) started(changes int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changes == changes {
		return nil
	}
	return p.divide()
}

// settle divides anew.
func (p *processors) settle() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.divide()
}

// setFor is where a copy may run at present; "": everywhere.
func (p *processors) setFor(id borglet.ID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.setOf(id)
}

func (p *processors) setOf(id borglet.ID) string {
	if cpus, ok := p.held[id]; ok {
		return listText(cpus)
	}
	if len(p.held) == 0 {
		return ""
	}
	return listText(p.rest())
}

func (p *processors) rest() []int {
	var taken []int
	for _, cpus := range p.held {
		taken = append(taken, cpus...)
	}
	return p.cores.Rest(taken)
}

// divide writes into each cgroup of a copy where it may run. Those that others have alone
// are taken away from all before anybody begins who has them, so the order does not matter.
func (p *processors) divide() error {
	rest := p.rest()
	var failed error
	for _, pattern := range []string{"*", allocPrefix + "*/*"} {
		// No name has a character that a pattern knows.
		dirs, _ := filepath.Glob(filepath.Join(p.dir, pattern))
		for _, dir := range dirs {
			id, err := borglet.ParseID(filepath.Base(dir))
			if err != nil {
				continue
			}
			want, alone := p.held[id]
			if !alone {
				want = rest
			}
			failed = errors.Join(failed, p.confine(dir, want))
		}
	}
	return failed
}

// confine writes where the processes of a cgroup may run, unless it says so. One that is
// only being made says nothing in version 1, and in version 2 one that may run everywhere.
func (p *processors) confine(dir string, cpus []int) error {
	path := filepath.Join(dir, cpusetFile)
	text, err := os.ReadFile(path)
	if err == nil {
		have, listErr := parseList(string(text))
		if listErr != nil {
			return fmt.Errorf("%s: %w", path, listErr)
		}
		if slices.Equal(have, cpus) || len(have) == 0 && len(cpus) == len(p.cores.All) {
			return nil
		}
		err = os.WriteFile(path, []byte(listText(cpus)), 0o600)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil // it is gone
	}
	if err != nil {
		return fmt.Errorf("confine to processors %s: %w", listText(cpus), err)
	}
	return nil
}

// listText writes processors as the kernel does: "0-2,5".
func listText(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		last := i
		for last+1 < len(cpus) && cpus[last+1] == cpus[last]+1 {
			last++
		}
		part := strconv.Itoa(cpus[i])
		if last > i {
			part += "-" + strconv.Itoa(cpus[last])
		}
		parts = append(parts, part)
		i = last + 1
	}
	return strings.Join(parts, ",")
}

// maxCPU bounds the numbers of processors that are believed.
const maxCPU = 1 << 16

func parseList(text string) ([]int, error) {
	var cpus []int
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, lastErr := strconv.Atoi(to)
		if err != nil || lastErr != nil || first < 0 || last < first || last > maxCPU {
			return nil, fmt.Errorf("%q is not a list of processors", text)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// coresIn lists the cores below /sys/devices/system/cpu of which may has all processors.
func coresIn(root string, may []int) ([][]int, error) {
	var cores [][]int
	for _, cpu := range may {
		text, err := os.ReadFile(filepath.Join(root, "cpu"+strconv.Itoa(cpu), "topology", "thread_siblings_list"))
		if err != nil {
			return nil, fmt.Errorf("which processors are one core: %w", err)
		}
		core, err := parseList(string(text))
		if err != nil {
			return nil, fmt.Errorf("which processors are one core with %d: %w", cpu, err)
		}
		whole := !slices.ContainsFunc(core, func(c int) bool { return !slices.Contains(may, c) })
		if whole && len(core) > 0 && core[0] == cpu {
			cores = append(cores, core)
		}
	}
	return cores, nil
}

// ownCores says which cores copies may have alone here, at most so many, and where the
// cgroups below parent say so. Nil: none.
func ownCores(parent string, most int) (*processors, error) {
	if most <= 0 {
		return nil, nil
	}
	list, err := hierarchies()
	if err != nil {
		return nil, err
	}
	dir, ok := cpusetDir(list, parent)
	if !ok {
		return nil, errors.New("the cgroup controller cpuset is not there")
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
		return nil, fmt.Errorf("on which processors the borglet may run: %w", err)
	}
	var may []int
	for cpu := 0; len(may) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			may = append(may, cpu)
		}
	}
	cores, err := coresIn("/sys/devices/system/cpu", may)
	if err != nil {
		return nil, err
	}
	p := newProcessors(borglet.DivideCores(cores, most), dir)
	if len(p.cores.Own) == 0 {
		return nil, nil
	}
	p.cores.All = may
	return p, nil
}

// cpusetDir is the directory of the cgroup at path in the tree that knows of
// processors.
func cpusetDir(list []hierarchy, path string) (string, bool) {
	for _, h := range list {
		if slices.Contains(h.controllers, "cpuset") {
			return filepath.Join(h.mount, path), true
		}
		if h.controllers == nil {
			text, _ := os.ReadFile(filepath.Join(h.mount, "cgroup.controllers"))
			if slices.Contains(strings.Fields(string(text)), "cpuset") {
				return filepath.Join(h.mount, path), true
			}
		}
	}
	return "", false
}
