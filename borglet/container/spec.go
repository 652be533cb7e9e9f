//go:build linux && cgo

package container

import (
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"golang.org/x/sys/unix"

	"borg/borglet"
)

const (
	// cpuPeriodUs is the period of the processor's hard limit. Microseconds.
	cpuPeriodUs = 100_000
	// batchPart is how much less of a processor that all want a batch task has than a
	// latency-sensitive one of the same limit. What latency-sensitive tasks do not use
	// is divided among batch tasks by their limits, as if they were alone.
	batchPart = 16
	// Weights for disks, from 10 to 1000, where the kernel has them.
	ioWeight, batchIOWeight = 800, 100
	// minQuotaUs is the least that the kernel takes.
	minQuotaUs = 1000
)

// maskedPaths and readonlyPaths are those of runc's own default.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
		"/sys/firmware", "/sys/devices/virtual/powercap",
	}
	// maskedSys hides what is mounted in the machine's /sys: the kernel makes a new
	// one only for who owns the network, which is the machine's.
	maskedSys = []string{
		"/sys/fs/bpf", "/sys/fs/cgroup", "/sys/fs/fuse/connections", "/sys/fs/pstore", "/sys/fs/selinux", "/sys/kernel/config",
		"/sys/kernel/debug", "/sys/kernel/security", "/sys/kernel/tracing",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// containerConfig says all of a copy's container: a file system, processes, user
// ids, cgroups and a host name of its own, no capabilities, a list of system calls,
// limits; the network is the machine's, unless it was given one.
func containerConfig(o *order, root string, binds []bind) *configs.Config {
	l := &o.Launch
	mounts := []*configs.Mount{
		{Source: "proc", Destination: "/proc", Device: "proc", Flags: unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV},
		{Source: "tmpfs", Destination: "/dev", Device: "tmpfs", Flags: unix.MS_NOSUID | unix.MS_STRICTATIME, Data: "mode=755,size=65536k"},
		{Source: "devpts", Destination: "/dev/pts", Device: "devpts", Flags: unix.MS_NOSUID | unix.MS_NOEXEC, Data: "newinstance,ptmxmode=0666,mode=0620,gid=5,max=" + strconv.Itoa(terminals)},
		{Source: "shm", Destination: "/dev/shm", Device: "tmpfs", Flags: unix.MS_NOSUID | unix.MS_NODEV, Data: "mode=1777"},
		{Source: "mqueue", Destination: "/dev/mqueue", Device: "mqueue", Flags: unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV},
		{Source: "sysfs", Destination: "/sys", Device: "sysfs", Flags: unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY},
		{Source: "tmpfs", Destination: "/tmp", Device: "tmpfs", Flags: unix.MS_NOSUID | unix.MS_NODEV, Data: "mode=1777"},
		{Source: "tmpfs", Destination: "/run", Device: "tmpfs", Flags: unix.MS_NOSUID | unix.MS_NODEV, Data: "mode=755"},
	}
	if o.FirstID != 0 {
		for i, m := range mounts {
			if m.Device == "sysfs" {
				mounts[i] = bindMount(bind{source: o.sysSource(), path: "/sys"}, 0)
				mounts[i].Flags |= unix.MS_NOEXEC
			}
		}
	}
	for _, b := range binds {
		mounts = append(mounts, bindMount(b, o.FirstID))
	}
	score := l.OOMScore
	cfg := &configs.Config{
		Rootfs:          root,
		Readonlyfs:      l.Image() == nil,
		Hostname:        l.Hostname,
		NoNewPrivileges: true,
		// Empty, not nil: nil would leave all of them.
		Capabilities: &configs.Capabilities{},
		Namespaces: configs.Namespaces{
			{Type: configs.NEWNS}, {Type: configs.NEWUTS}, {Type: configs.NEWIPC}, {Type: configs.NEWPID}, {Type: configs.NEWCGROUP},
		},
		Cgroups: &cgroups.Cgroup{
			Path:      cgroupPath(o.CgroupParent, l),
			Resources: resources(l.Limits),
		},
		Mounts:        mounts,
		MaskPaths:     maskedPaths,
		ReadonlyPaths: readonlyPaths,
		OomScoreAdj:   &score,
	}
	if l.Network != "" {
		cfg.Namespaces.Add(configs.NEWNET, l.Network)
	}
	cfg.Cgroups.Resources.CpusetCpus = o.Cpuset
	if !l.AllCalls {
		cfg.Seccomp = callFilter()
	}
	for _, d := range specconv.AllowedDevices {
		if d.Path != "" {
			cfg.Devices = append(cfg.Devices, d)
		}
	}
	if o.FirstID != 0 {
		cfg.Namespaces.Add(configs.NEWUSER, o.users)
		cfg.UIDMappings, cfg.GIDMappings = idMap(o.FirstID), idMap(o.FirstID)
		cfg.MaskPaths = slices.Concat(maskedPaths, maskedSys)
	}
	return cfg
}

func idMap(first uint32) []configs.IDMap {
	return []configs.IDMap{{ContainerID: 0, HostID: int64(first), Size: idsPerCopy}}
}

// bindMount is how a bind is mounted, and all that is mounted in it.
func bindMount(b bind, firstID uint32) *configs.Mount {
	m := &configs.Mount{
		Source: b.source, Destination: b.path, Device: "bind", Flags: unix.MS_BIND | unix.MS_REC | unix.MS_NOSUID | unix.MS_NODEV,
		RecAttr:          &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV},
		PropagationFlags: []int{unix.MS_PRIVATE | unix.MS_REC},
	}
	if !b.writable {
		m.Flags |= unix.MS_RDONLY
		m.RecAttr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if b.owned && firstID != 0 {
		m.IDMapping = &configs.MountIDMapping{UIDMappings: idMap(firstID), GIDMappings: idMap(firstID)}
	}
	return m
}

// cgroupPath is where a copy's cgroup lies.
func cgroupPath(parent string, l *borglet.Launch) string {
	if l.Alloc != "" {
		parent = allocPath(parent, l.Alloc)
	}
	return filepath.Join(parent, l.ID.String())
}

// resources are the limits of a copy in the kernel's terms, for both versions
// of cgroups: each reads its own fields.
func resources(l borglet.Limits) *cgroups.Resources {
	pids := pidsOfTask()
	r := limits(l)
	r.PidsLimit = &pids
	if ioWeights(cgroupRoot) {
		r.BlkioWeight = ioWeight
		if l.Batch {
			r.BlkioWeight = batchIOWeight
		}
	}
	for _, d := range specconv.AllowedDevices {
		rule := d.Rule
		r.Devices = append(r.Devices, &rule)
	}
	return r
}

// limits are processor and memory alone.
func limits(l borglet.Limits) *cgroups.Resources {
	r := &cgroups.Resources{}
	if l.CPUMilli > 0 {
		shares := l.CPUMilli * 1024 / 1000
		if l.Batch {
			shares /= batchPart
		}
		r.CpuShares = uint64(min(max(shares, 2), 262144))
		r.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(r.CpuShares)
		r.CpuPeriod = cpuPeriodUs
		r.CpuQuota = -1
		if l.CPUHard {
			r.CpuQuota = max(l.CPUMilli*cpuPeriodUs/1000, minQuotaUs)
		}
	}
	if l.MemBytes > 0 {
		bytes := max(l.MemBytes, minMemBytes)
		if l.MemSoft {
			r.MemoryReservation = bytes
			r.Memory, r.MemorySwap = -1, -1
		} else {
			r.Memory, r.MemorySwap = bytes, bytes
		}
	}
	return r
}
