package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/proto/borgpb"
)

// DescribeMachine says what this machine has: what tasks may use in all, and
// what constraints may ask for. Disk is that of dir's file system.
func DescribeMachine(dir string, caps borglet.Capabilities) (*borgpb.MachineSpec, error) {
	mem, err := memTotalBytes()
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, fmt.Errorf("measure the file system of %s: %w", dir, err)
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, fmt.Errorf("ask for the kernel's name: %w", err)
	}
	spec := &borgpb.MachineSpec{
		Capacity: &borgpb.Resources{
			CpuMilli: int64(runtime.NumCPU()) * 1000,
			MemBytes: mem,
			// What is kept for root is not for tasks.
			DiskBytes: int64(fs.Blocks-(fs.Bfree-fs.Bavail)) * fs.Bsize,
		},
		Attributes: map[string]string{
			"arch":     runtime.GOARCH,
			"os":       runtime.GOOS,
			"kernel":   unix.ByteSliceToString(uts.Release[:]),
			"hostname": unix.ByteSliceToString(uts.Nodename[:]),
			"runtime":  caps.Runtime,
			"cgroup":   caps.Cgroup,
			"seccomp":  caps.Seccomp,
			"userns":   caps.Userns,
			"ports":    caps.Ports,
			"network":  caps.Network,

			"disk_limit": caps.DiskLimit,
		},
	}
	if n := len(caps.Cores.Own); n > 0 {
		spec.Capacity.Devices = map[string]int64{borgpb.ExclusiveCPU: int64(n)}
		spec.Attributes[borgpb.CoreThreads] = strconv.Itoa(caps.Cores.Threads)
	}
	return spec, nil
}

func memTotalBytes() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("ask for the machine's memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("ask for the machine's memory: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("ask for the machine's memory: /proc/meminfo has no MemTotal")
}

// BootID names this boot of the machine.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("ask for the boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Punch gives back the disk that the start of a file takes. Its length and what is
// behind stay, so that neither the task, which appends, nor a reader, who counts from
// the start, notices.
func Punch(f *os.File, end int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, end)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return errors.ErrUnsupported
	}
	if err != nil {
		return fmt.Errorf("give back the start of %s: %w", filepath.Base(f.Name()), err)
	}
	return nil
}
