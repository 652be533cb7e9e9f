package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet/diskquota"
	"borg/borglet/network"
)

// facts are what diagnose judges.
type facts struct {
	os, arch, kernel, goVersion string
	cpus                        int
	root                        bool

	binDir  string
	missing []string
	// The borglet was built with cgo.
	borgletCgo bool
	// The borglet was built with libseccomp.
	borgletSeccomp bool
	// When the programs were built.
	built time.Time

	// "v1", "v2" or "none".
	cgroupVersion                   string
	controllers, controllersMissing []string
	// Why a cgroup could not be made.
	cgroupErr         string
	userNamespaces    bool
	namespacesMissing []string

	toolsMissing []string
	nft          bool
	// Why tasks can have no networks of their own; empty: they can. noNetworkConf: nobody
	// has configured one.
	networkLacks           string
	noNetworkConf          bool
	memBytes, memFreeBytes uint64
	dir, dirErr            string
	diskFreeBytes          uint64
	// Why the file system cannot refuse what tasks write beyond their disk limit; empty: it
	// can.
	quotaLacks        string
	runDir, runDirErr string
	fileLimit         uint64
	// What the kernel allows, by the names of sysctls; one that is not there is not known.
	sysctls               map[string]int64
	now                   time.Time
	otherPortBase         int
	portsTaken, portsFree []string
	// Ports that tasks may be granted and that other programs hold, with the programs.
	taskPortsHeld []string
	// The cell in dir, or the last one of its name, runs, or was killed and left
	// its processes.
	ownRuns bool
}

// gather looks at this machine, for the cell of a layout.
func gather(ctx context.Context, l layout) facts {
	f := facts{
		os: runtime.GOOS, arch: runtime.GOARCH, kernel: kernelRelease(), goVersion: runtime.Version(),
		cpus: runtime.NumCPU(), root: os.Geteuid() == 0,
		binDir: l.binDir, dir: l.dir, runDir: l.RunDir, otherPortBase: l.otherPortBase(), now: time.Now(),
	}
	f.lookAtPrograms(l)
	f.lookAtCgroups()
	f.lookAtNamespaces()
	for _, path := range []string{"/usr", "/bin/sh", "/usr/bin/find", "/usr/bin/wc", "/usr/bin/cat"} {
		if _, err := os.Stat(path); err != nil {
			f.toolsMissing = append(f.toolsMissing, path)
		}
	}
	_, err := exec.LookPath("nft")
	f.nft = err == nil
	if err := network.Check(ctx, network.DefaultConf, network.DefaultBins()); err != nil {
		f.networkLacks, f.noNetworkConf = err.Error(), errors.Is(err, network.ErrNoConf)
	}
	f.memBytes, f.memFreeBytes = memorySizes()
	f.diskFreeBytes, f.dirErr = writableDisk(l.dir)
	f.quotaLacks = quotaLacks(l.dir)
	_, f.runDirErr = writableDisk(l.RunDir)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		f.fileLimit = limit.Max
	}
	f.sysctls = readSysctls("/proc/sys")
	f.lookAtPorts(ctx, l)
	return f
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func (f *facts) lookAtPrograms(l layout) {
	names := []string{"borgmaster", "borglet", "borgcfg"}
	if l.Fake != nil {
		names = append(names, "borgcell")
	}
	for _, name := range names {
		info, err := os.Stat(l.bin(name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			f.missing = append(f.missing, name)
			continue
		}
		f.built = info.ModTime()
	}
	info, err := buildinfo.ReadFile(l.bin("borglet"))
	if err != nil {
		return
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "CGO_ENABLED":
			f.borgletCgo = s.Value == "1"
		case "-tags":
			f.borgletSeccomp = slices.Contains(strings.Split(s.Value, ","), "seccomp")
		}
	}
}

// lookAtCgroups finds the controllers and makes a cgroup, to see whether we
// may.
func (f *facts) lookAtCgroups() {
	f.cgroupVersion = "none"
	wanted := []string{"cpu", "memory", "pids"}
	var there func(controller string) bool
	dir := cgroupRoot
	if list, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		f.cgroupVersion = "v2"
		there = func(c string) bool { return strings.Contains(" "+strings.TrimSpace(string(list))+" ", " "+c+" ") }
	} else if _, err := os.Stat(filepath.Join(cgroupRoot, "cpu")); err == nil {
		f.cgroupVersion = "v1"
		dir = filepath.Join(cgroupRoot, "cpu")
		there = func(c string) bool {
			_, err := os.Stat(filepath.Join(cgroupRoot, c, "cgroup.procs"))
			return err == nil
		}
	} else {
		return
	}
	for _, c := range wanted {
		if there(c) {
			f.controllers = append(f.controllers, c)
		} else {
			f.controllersMissing = append(f.controllersMissing, c)
		}
	}
	try := filepath.Join(dir, fmt.Sprintf("borgcell-doctor-%d", os.Getpid()))
	err := os.Mkdir(try, 0o755)
	if err == nil {
		err = syscall.Rmdir(try)
	}
	if err != nil {
		f.cgroupErr = err.Error()
	}
}

func (f *facts) lookAtNamespaces() {
	for _, kind := range []string{"mnt", "pid", "ipc", "uts"} {
		if _, err := os.Stat("/proc/self/ns/" + kind); err != nil {
			f.namespacesMissing = append(f.namespacesMissing, kind)
		}
	}
	b, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if err == nil {
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		f.userNamespaces = err == nil && n > 0
	}
}

// memorySizes returns all memory, and what programs may still take.
func memorySizes() (all, free uint64) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "MemTotal:":
			all = kib << 10
		case "MemAvailable:":
			free = kib << 10
		}
	}
	return all, free
}

// writableDisk returns the free bytes of the file system that holds dir, or
// would hold it, and why dir could not be written.
func writableDisk(dir string) (freeBytes uint64, problem string) {
	there := dir
	for {
		_, err := os.Stat(there)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || there == "/" {
			return 0, err.Error()
		}
		there = filepath.Dir(there)
	}
	if err := unix.Access(there, unix.W_OK|unix.X_OK); err != nil {
		return 0, err.Error()
	}
	var s unix.Statfs_t
	if err := unix.Statfs(there, &s); err != nil {
		return 0, err.Error()
	}
	return s.Bavail * uint64(s.Bsize), ""
}

// lookAtPorts tries the doors of the cell.
func (f *facts) lookAtPorts(ctx context.Context, l layout) {
	var listening net.ListenConfig
	for _, addr := range l.doors() {
		listener, err := listening.Listen(ctx, "tcp", addr)
		if err != nil {
			f.portsTaken = append(f.portsTaken, addr)
			continue
		}
		listener.Close()
	}
	for _, earlier := range l.earlier() {
		if len(f.portsTaken) == 0 || f.ownRuns {
			break
		}
		found, err := earlier.marks().find()
		f.ownRuns = err == nil && len(found) > 0
	}
	f.taskPortsHeld = l.taskPortsHeld()
	f.portsFree = []string{
		fmt.Sprintf("%d-%d", l.PortBase+1, l.PortBase+l.Masters),
		fmt.Sprintf("%d-%d", l.PortBase+masterPageOffset+1, l.PortBase+masterPageOffset+l.Masters),
		fmt.Sprintf("%d-%d", l.PortBase+borgletPortOffset+1, l.PortBase+borgletPortOffset+l.Machines),
		fmt.Sprintf("%d-%d", l.PortBase+borgletPageOffset+1, l.PortBase+borgletPageOffset+l.Machines),
	}
}

// quotaLacks asks of a directory that may not be there yet.
func quotaLacks(dir string) string {
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	if _, err := diskquota.Open(dir); err != nil {
		return err.Error()
	}
	return ""
}
