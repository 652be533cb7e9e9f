package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/container"
	"borg/cli"
	"borg/fauxmaster/fleet"
)

const (
	maxMasters  = 9
	maxMachines = 100
	// Borglet K listens on the port base + 100 + K.
	borgletPortOffset = 100
	// The status page of master N is on the port base + 50 + N, that of borglet K on
	// base + 200 + K.
	masterPageOffset  = 50
	borgletPageOffset = 200
	// Each borglet grants ports out of a range of its own, since they share
	// this machine: at most so many, and all below where the kernel takes the
	// ports of outgoing connections from.
	taskPortsEach = 1000
	taskPortEnd   = 32768
	// Another --port-base that is offered is so much further.
	portBaseStep = 1000
	// Racks that the machines are spread over.
	racks = 3
	// A machine offers at most this part of what it has, in percent: the
	// masters and this machine's other work need the rest.
	offerPercent = 80
)

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// layout is where everything of a cell is. It is written to borgcell.json when
// the cell is made, because the replicas' log holds their addresses.
type layout struct {
	Name    string `json:"cell"`
	CellID  string `json:"cell_id"`
	Masters int    `json:"masters"`
	// All of them were made: one whose directory is missing has lost its disk, or left, and
	// never comes back under its number.
	Made bool `json:"made,omitempty"`
	// How many machines the cell was last run with.
	Machines     int `json:"machines"`
	PortBase     int `json:"port_base"`
	TaskPortBase int `json:"task_port_base"`
	// As `borglet --capacity` takes it; empty: an equal share of this machine.
	Capacity string `json:"capacity,omitempty"`
	// As `borglet --runtime` takes it.
	Runtime string `json:"runtime"`
	// What the machines are drawn from when they are pretended; nil: they are
	// processes here.
	Fake *fake `json:"fake,omitempty"`
	// As `borgmaster serve --metric-gates` takes them; none: gates are refused.
	MetricGates []string `json:"metric_gates,omitempty"`
	// Directories, absolute: RunDir holds what must not survive a boot, dir all
	// else, binDir the programs.
	RunDir      string `json:"run_dir"`
	dir, binDir string
}

func (l layout) validate() error {
	switch {
	case !dnsLabel.MatchString(l.Name) || len(l.Name) > 32:
		return cli.Errorf(cli.Usage, "--cell %q: want a name of at most 32 letters a-z, digits and dashes", l.Name)
	case l.Masters < 1 || l.Masters > maxMasters || l.Masters%2 == 0:
		return cli.Errorf(cli.Usage, "--masters %d: want 1, 3, 5, 7 or 9; an even number survives no more failures than one less", l.Masters)
	case l.Machines < 1 || l.Machines > l.maxMachines():
		e := cli.Errorf(cli.Usage, "--machines %d: want 1 to %d", l.Machines, l.maxMachines())
		if l.Fake == nil && l.Machines <= fleet.MaxMachines && l.Machines > 0 {
			return e.Hint("so many can be pretended: --fake")
		}
		return e
	case l.PortBase < 1024 || l.PortBase+borgletPageOffset+maxMachines > 65535:
		return cli.Errorf(cli.Usage, "--port-base %d: want 1024 to %d", l.PortBase, 65535-borgletPageOffset-maxMachines)
	case l.Fake == nil && (l.TaskPortBase < 1024 || l.taskPortsPerMachine() < 10):
		return cli.Errorf(cli.Usage, "--task-port-base %d: want 1024 to %d, so that each of %d machines has at least 10 ports below %d",
			l.TaskPortBase, taskPortEnd-10*l.Machines, l.Machines, taskPortEnd)
	}
	if door := l.doorAmongTaskPorts(); door != "" {
		return cli.Errorf(cli.Usage, "--task-port-base %d: tasks would be granted the ports %s, and the cell itself listens on %s", l.TaskPortBase, l.allTaskPorts(), door).
			Hint("take other ports: --port-base %d", l.otherPortBase())
	}
	switch l.Runtime {
	case "auto", "container", "process":
		return nil
	}
	return cli.Errorf(cli.Usage, "--runtime %q: want auto, container or process", l.Runtime)
}

func (l layout) maxMachines() int {
	if l.Fake != nil {
		return fleet.MaxMachines
	}
	return maxMachines
}

func (l layout) masterName(i int) string { return fmt.Sprintf("master-%d", i) }

// machineName carries the cell's name because cgroups of all borglets on this
// machine lie side by side.
func (l layout) machineName(k int) string { return fmt.Sprintf("%s-m%d", l.Name, k) }

// machineNumber is the k of a machine's name, or 0.
func (l layout) machineNumber(name string) int {
	for k := 1; k <= l.Machines; k++ {
		if l.machineName(k) == name {
			return k
		}
	}
	return 0
}

func (l layout) masterAddr(i int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(l.PortBase+i))
}

func (l layout) borgletAddr(k int) string {
	if l.Fake != nil {
		return fleet.Addr(k, l.fakePort(l.fakePart(k))).String()
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(l.PortBase+borgletPortOffset+k))
}

// masterPage and borgletPage are where the programs show their status pages: on this
// machine alone.
func (l layout) masterPage(i int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(l.PortBase+masterPageOffset+i))
}

func (l layout) borgletPage(k int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(l.PortBase+borgletPageOffset+k))
}

// pages says where people find the status pages.
func (l layout) pages() string {
	text := l.eachMaster(func(i int) string { return "http://" + l.masterPage(i) + "/" })
	if l.Fake == nil {
		text += fmt.Sprintf("; machines from http://%s/ on", l.borgletPage(1))
	}
	return text
}

func (l layout) masterDir(i int) string  { return filepath.Join(l.dir, "masters", strconv.Itoa(i)) }
func (l layout) borgletDir(k int) string { return filepath.Join(l.dir, "borglets", l.machineName(k)) }
func (l layout) logDir() string          { return filepath.Join(l.dir, "log") }
func (l layout) logPath(name string) string {
	return filepath.Join(l.logDir(), name+".log")
}
func (l layout) recordPath() string    { return filepath.Join(l.dir, "processes.json") }
func (l layout) cellFile() string      { return filepath.Join(l.dir, "cell.yaml") }
func (l layout) identityFile() string  { return filepath.Join(l.dir, "identity.pem") }
func (l layout) layoutFile() string    { return filepath.Join(l.dir, "borgcell.json") }
func (l layout) bin(p string) string   { return filepath.Join(l.binDir, p) }
func (l layout) rack(k int) string     { return fmt.Sprintf("r%d", (k-1)%racks+1) }
func (l layout) cgroup(k int) string   { return "/borg/" + l.machineName(k) }
func (l layout) runOf(n string) string { return filepath.Join(l.RunDir, n) }

func (l layout) masterAddrs() []string {
	var addrs []string
	for _, i := range l.masterNumbers() {
		addrs = append(addrs, l.masterAddr(i))
	}
	return addrs
}

func (l layout) taskPortsPerMachine() int {
	return min(taskPortsEach, (taskPortEnd-l.TaskPortBase)/max(1, l.Machines))
}

// taskPorts is the range of borglet k, as `borglet --task-ports` takes it.
func (l layout) taskPorts(k int) string {
	first := l.TaskPortBase + (k-1)*l.taskPortsPerMachine()
	return fmt.Sprintf("%d-%d", first, first+l.taskPortsPerMachine()-1)
}

// lastTaskPort is the last port that tasks of any machine may be granted.
func (l layout) lastTaskPort() int {
	return l.TaskPortBase + max(1, l.Machines)*l.taskPortsPerMachine() - 1
}

func (l layout) allTaskPorts() string { return fmt.Sprintf("%d-%d", l.TaskPortBase, l.lastTaskPort()) }

// doorAmongTaskPorts is an address of the cell's own that tasks may be granted; empty: there is
// none.
func (l layout) doorAmongTaskPorts() string {
	if l.Fake != nil {
		return ""
	}
	for _, addr := range l.doors() {
		_, text, _ := net.SplitHostPort(addr)
		if port, err := strconv.Atoi(text); err == nil && port >= l.TaskPortBase && port <= l.lastTaskPort() {
			return addr
		}
	}
	return ""
}

// otherPortBase is another --port-base, whose ports are not those of tasks.
func (l layout) otherPortBase() int {
	other := l.PortBase + portBaseStep
	if l.Fake == nil && other+borgletPageOffset+maxMachines >= l.TaskPortBase && other <= l.lastTaskPort() {
		other = l.lastTaskPort() + 1
	}
	return min(other, 65535-borgletPageOffset-maxMachines)
}

// taskPortsHeld names what other programs hold of the ports that tasks of all machines may
// be granted; empty where that is not known.
func (l layout) taskPortsHeld() []string {
	if l.Fake != nil {
		return nil
	}
	held, err := container.PortsOfOthers(borglet.PortRange{First: uint16(l.TaskPortBase), Last: uint16(l.lastTaskPort())})
	if err != nil {
		return nil
	}
	var names []string
	for _, h := range held {
		name := fmt.Sprint(h.Port)
		if h.By != "" {
			name += " by " + h.By
		}
		names = append(names, name)
	}
	return names
}

// envMark is in the environment of every process that belongs to the cell.
func (l layout) envMark() string { return "BORGCELL_DIR=" + l.dir }

// marks are the signs of the cell's processes. Machines that an earlier run
// had more of count too.
func (l layout) marks() marks {
	m := marks{env: l.envMark(), outputDirs: []string{filepath.Join(l.dir, "borglets"), l.RunDir}}
	m.serveDirs = append(m.serveDirs, filepath.Join(l.dir, "masters"), filepath.Join(l.dir, "borglets"), l.RunDir)
	for k := 1; k <= maxMachines; k++ {
		m.cgroups = append(m.cgroups, l.cgroup(k))
	}
	return m
}

// knownMachines is how many machines may have left something: as many as the
// cell has, or as there are directories for.
func (l layout) knownMachines() int {
	known := l.Machines
	if l.Fake != nil {
		known = 0
	}
	for k := known + 1; k <= maxMachines; k++ {
		if _, err := os.Stat(l.borgletDir(k)); err == nil {
			known = k
		}
	}
	return known
}

// readLayout reads how the cell in dir was made; fs.ErrNotExist when there is
// none.
func readLayout(dir string) (layout, error) {
	l := layout{dir: dir}
	err := readJSON(l.layoutFile(), &l)
	return l, err
}

// placeFile is the file, in the run-time directory, that names the cell's
// directory: the next cell of the same name is kept elsewhere, perhaps.
func (l layout) placeFile() string { return filepath.Join(l.RunDir, "dir") }

// earlier are the cells whose processes may be in the way of this one: that in
// the same directory, and that which had the same run-time directory last.
func (l layout) earlier() []layout {
	dirs := []string{l.dir}
	if b, err := os.ReadFile(l.placeFile()); err == nil {
		if dir := strings.TrimSpace(string(b)); dir != l.dir && filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	var found []layout
	for _, dir := range dirs {
		old, err := readLayout(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != l.dir {
			// Somebody removed the directory under it; its processes and cgroups
			// still bear their marks.
			old = layout{Name: l.Name, Machines: maxMachines, RunDir: l.RunDir, dir: dir}
			err = nil
		}
		if err == nil {
			old.binDir = l.binDir
			found = append(found, old)
		}
	}
	return found
}

// settle joins what is asked for with how the cell in the directory was made.
// What the replicas' log holds cannot be asked for differently.
func (l layout) settle(asked func(flag string) bool) (layout, error) {
	old, err := readLayout(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, cli.Errorf(cli.Invalid, "the cell in %s: %w", l.dir, err).Hint("choose another --dir, or start over with --fresh")
	}
	fixed := func(flag string, now, was any) error {
		if !asked(flag) || now == was {
			return nil
		}
		return cli.Errorf(cli.Conflict, "the cell in %s was made with --%s %v, not %v", l.dir, flag, was, now).
			Hint("leave --%s out, choose another --dir, or start over with --fresh", flag)
	}
	if err := errors.Join(fixed("cell", l.Name, old.Name), fixed("masters", l.Masters, old.Masters), fixed("port-base", l.PortBase, old.PortBase)); err != nil {
		var first *cli.Error
		errors.As(err, &first)
		return l, first
	}
	if (l.Fake != nil) != (old.Fake != nil) {
		e := cli.Errorf(cli.Conflict, "the machines of the cell in %s are processes, and --fake pretends them", l.dir)
		if old.Fake != nil {
			e = cli.Errorf(cli.Conflict, "the machines of the cell in %s are pretended", l.dir)
		}
		return l, e.Hint("add or leave out --fake, choose another --dir, or start over with --fresh")
	}
	if l.Fake != nil && asked("seed") && l.Fake.Seed != old.Fake.Seed {
		return l, fixed("seed", l.Fake.Seed, old.Fake.Seed)
	}
	if l.Fake != nil {
		l.Fake.Seed = old.Fake.Seed
	}
	l.Name, l.CellID, l.Masters, l.Made, l.PortBase = old.Name, old.CellID, old.Masters, old.Made, old.PortBase
	if !asked("machines") {
		l.Machines = old.Machines
	}
	if !asked("task-port-base") {
		l.TaskPortBase = old.TaskPortBase
	}
	if !asked("capacity") {
		l.Capacity = old.Capacity
	}
	if !asked("runtime") {
		l.Runtime = old.Runtime
	}
	if !asked("metric-gates") {
		l.MetricGates = old.MetricGates
	}
	return l, l.validate()
}

// share is what each machine offers: an equal part of this one.
func (l layout) share() (string, error) {
	if l.Capacity != "" {
		return l.Capacity, nil
	}
	var mem unix.Sysinfo_t
	if err := unix.Sysinfo(&mem); err != nil {
		return "", fmt.Errorf("size of memory: %w", err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(l.dir, &disk); err != nil {
		return "", fmt.Errorf("size of the disk of %s: %w", l.dir, err)
	}
	part := func(whole uint64) uint64 { return whole / 100 * offerPercent / uint64(l.Machines) }
	cpuMilli := runtime.NumCPU() * 1000 / l.Machines
	return fmt.Sprintf("cpu=%dm,mem=%d,disk=%d", cpuMilli,
		part(mem.Totalram*uint64(mem.Unit)), part(disk.Bavail*uint64(disk.Bsize))), nil
}
