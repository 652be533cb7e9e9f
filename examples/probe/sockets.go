//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"borg/identity"
)

// sockets opens one of each family and kind that no task may have, and of those
// that it may.
func (p *probe) sockets() {
	for _, s := range []struct {
		name                   string
		family, kind, protocol int
	}{
		{"local", unix.AF_UNIX, unix.SOCK_STREAM, 0},
		{"ip", unix.AF_INET, unix.SOCK_STREAM, 0},
		{"ipv6", unix.AF_INET6, unix.SOCK_STREAM, 0},
		{"routes", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE},
		{"raw", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"netlink-audit", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		{"netlink-filter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
		{"netlink-uevents", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"ciphers", unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{"bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 0},
		{"keys", unix.AF_KEY, unix.SOCK_RAW, 2},
	} {
		fd, err := unix.Socket(s.family, s.kind, s.protocol)
		p.try("socket."+s.name, err)
		if err == nil {
			unix.Close(fd)
		}
	}
	p.try("socket.addresses-change", setLoopback())
	p.try("socket.mark", mark())
}

// setLoopback asks for what the loopback device is already: to be up.
func setLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// mark marks packets for the machine's routing.
func mark() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1)
}

// papers are the files by which the task proves who it is.
func (p *probe) papers() {
	path := os.Getenv("BORG_IDENTITY")
	p.tell("papers.name", "%s", paperName(path))
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		p.try("papers.files", err)
		return
	}
	var files []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			p.try("papers.files", err)
			return
		}
		files = append(files, e.Name()+" "+info.Mode().String())
	}
	slices.Sort(files)
	p.tell("papers.files", "%s", strings.Join(files, ", "))
	var is unix.Statfs_t
	switch err := unix.Statfs(path, &is); {
	case err != nil:
		p.try("papers.disk", err)
	case int64(is.Type) == unix.TMPFS_MAGIC || int64(is.Type) == unix.RAMFS_MAGIC:
		p.tell("papers.disk", "memory")
	default:
		p.tell("papers.disk", "a disk")
	}
	p.try("papers.write", open(path, unix.O_WRONLY))
	p.try("papers.remove", os.Remove(path))
}

// paperName is whose the certificate is.
func paperName(path string) string {
	has, err := identity.ReadCredential(path)
	if err != nil {
		return outcome(err)
	}
	if has.Name.Role == identity.Task && has.Name.ID == os.Getenv("BORG_TASK") {
		return "this task"
	}
	return has.Name.String()
}
