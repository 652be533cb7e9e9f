//go:build linux

package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// open only opens.
func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

// makeIn makes a file in a directory, and takes it away.
func makeIn(dir string) error {
	path := filepath.Join(dir, ".probe")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(path))
}

func exists(path string) string {
	if _, err := os.Lstat(path); err != nil {
		return outcome(err)
	}
	return "there"
}

// content says how much of a file or directory can be seen.
func content(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return outcome(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return outcome(err)
	}
	if info.IsDir() {
		names, err := f.Readdirnames(1)
		switch {
		case errors.Is(err, io.EOF):
			return "nothing"
		case err != nil:
			return outcome(err)
		}
		return "files, such as " + names[0]
	}
	_, err = f.Read(make([]byte, 1))
	switch {
	case errors.Is(err, io.EOF):
		return "nothing"
	case err != nil:
		return outcome(err)
	}
	return "bytes"
}

// mount is a line of /proc/self/mountinfo.
type mount struct {
	at      string
	options []string
	shared  bool
}

func readMounts() ([]mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []mount
	for line := range strings.Lines(string(text)) {
		before, _, ok := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if !ok || len(f) < 6 {
			continue
		}
		m := mount{at: f[4], options: strings.Split(f[5], ",")}
		for _, tag := range f[6:] {
			m.shared = m.shared || strings.HasPrefix(tag, "shared:") || strings.HasPrefix(tag, "master:")
		}
		found = append(found, m)
	}
	return found, nil
}

// mounts is what the mounts of the task may do. How many there are is the
// machine's affair: what is hidden in /sys is a mount each.
func (p *probe) mounts() {
	all, err := readMounts()
	if err != nil {
		p.try("mounts", err)
		return
	}
	lacking := func(ok func(mount) bool) string {
		var at []string
		for _, m := range all {
			// Single files, and what hides parts of /proc and /sys, are looked at by name.
			info, err := os.Stat(m.at)
			hides := err != nil || !info.IsDir() || strings.HasPrefix(m.at, "/sys/") || strings.HasPrefix(m.at, "/proc/")
			if !hides && !ok(m) && !slices.Contains(at, m.at) {
				at = append(at, m.at)
			}
		}
		slices.Sort(at)
		return orNone(strings.Join(at, " "))
	}
	p.tell("mounts.writable", "%s", lacking(func(m mount) bool { return slices.Contains(m.options, "ro") }))
	p.tell("mounts.with-setuid-programs", "%s", lacking(func(m mount) bool { return slices.Contains(m.options, "nosuid") }))
	p.tell("mounts.with-devices", "%s", lacking(func(m mount) bool { return slices.Contains(m.options, "nodev") }))
	p.tell("mounts.tied-to-the-machine", "%s", lacking(func(m mount) bool { return !m.shared }))
	p.tell("mounts.count", "%s", count(len(all)))
}

// count tells some mounts from the hundreds that a machine may have.
func count(n int) string {
	if n > 0 && n <= 100 {
		return "1 to 100"
	}
	return "more than 100"
}

// files are what can be read and written.
func (p *probe) files() {
	for name, dir := range map[string]string{
		"root": "/", "usr": "/usr", "etc": "/etc", "sys": "/sys", "run": "/run", "init": "/.borg", "dev": "/dev",
		"task": "/task", "tmp": "/tmp", "papers": "/run/borg",
	} {
		p.try("write."+name, makeIn(dir))
	}
	for name, path := range map[string]string{
		"kcore": "/proc/kcore", "keys": "/proc/keys", "timer-list": "/proc/timer_list", "interrupts": "/proc/interrupts", "kmsg": "/proc/kmsg",
		"acpi": "/proc/acpi", "scsi": "/proc/scsi", "firmware": "/sys/firmware", "cgroups": "/sys/fs/cgroup", "debug": "/sys/kernel/debug",
		"tracing": "/sys/kernel/tracing", "security": "/sys/kernel/security", "bpf": "/sys/fs/bpf", "powercap": "/sys/devices/virtual/powercap",
	} {
		p.tell("masked."+name, "%s", hiddenContent(path))
	}
	for name, path := range map[string]string{
		"sysrq-trigger": "/proc/sysrq-trigger", "core-pattern": "/proc/sys/kernel/core_pattern", "modprobe": "/proc/sys/kernel/modprobe",
		"kernel-host-name": "/proc/sys/kernel/hostname", "uevent-helper": "/sys/kernel/uevent_helper", "panic": "/proc/sys/kernel/panic",
	} {
		p.tell("write."+name, "%s", closed(path))
	}
	p.try("hidden.shadow", open("/etc/shadow", unix.O_RDONLY))
	for name, path := range p.out.hidden {
		p.tell("hidden."+name, "%s", exists(path))
	}
	p.tell("devices.nodes", "%s", devices())
	for _, name := range []string{"mem", "kmsg", "fuse", "kvm", "loop-control", "net/tun"} {
		p.tell("devices.open-"+filepath.Base(name), "%s", closed("/dev/"+name))
	}
	p.try("devices.make", makeDevice())
}

// hiddenContent counts what is not there as what is hidden: not every kernel has all.
func hiddenContent(path string) string {
	if got := content(path); got != "ENOENT" {
		return got
	}
	return "nothing"
}

// closed says whether a file cannot be written. Not every kernel has all of them.
func closed(path string) string {
	err := open(path, unix.O_WRONLY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		return "closed"
	}
	return outcome(err)
}

// devices are the device nodes in /dev.
func devices() string {
	var nodes []string
	err := filepath.WalkDir("/dev", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// What is mounted on a file has not the type that its directory says.
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeDevice != 0 {
			nodes = append(nodes, strings.TrimPrefix(path, "/dev/"))
		}
		return nil
	})
	if err != nil {
		return outcome(err)
	}
	slices.Sort(nodes)
	return strings.Join(nodes, " ")
}

// makeDevice makes the machine's memory and opens it.
func makeDevice() error {
	const path = "/tmp/.probe-mem"
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))); err != nil {
		return err
	}
	return errors.Join(open(path, unix.O_RDONLY), os.Remove(path))
}
