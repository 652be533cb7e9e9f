package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// whoDialled names the process of the cell that has the socket at a local
// address, or that started the process which has it.
func (c *Cell) whoDialled(dialler, door *net.TCPAddr) string {
	inode, err := inodeOf(dialler, door)
	if err != nil {
		return outside
	}
	names := make(map[int]string)
	for _, p := range c.sup.all() {
		if pid := p.pid(); pid != 0 {
			names[pid] = p.spec.Name
			if hasSocket(pid, inode) {
				return p.spec.Name
			}
		}
	}
	if hasSocket(os.Getpid(), inode) {
		return outside
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if name := names[parentOf(pid)]; name != "" && hasSocket(pid, inode) {
			return name
		}
	}
	return outside
}

// inodeOf finds the socket of a connection, which the kernel lists from the
// side of whoever dialled.
func inodeOf(local, remote *net.TCPAddr) (string, error) {
	list, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	want := []string{kernelAddr(local), kernelAddr(remote)}
	for line := range strings.Lines(string(list)) {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		f := strings.Fields(line)
		if len(f) > 9 && f[1] == want[0] && f[2] == want[1] {
			return f[9], nil
		}
	}
	return "", fmt.Errorf("the kernel lists no connection from %v to %v", local, remote)
}

// kernelAddr is an IPv4 address as /proc/net/tcp has it: the address as a
// number of this machine's byte order.
func kernelAddr(a *net.TCPAddr) string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a.IP.To4()), a.Port)
}

func hasSocket(pid int, inode string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if target, _ := os.Readlink(filepath.Join(dir, e.Name())); target == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}

// parentOf is who started a process, or 0.
func parentOf(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// After the name in parentheses: the state, the parent.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(string(f[1]))
	return parent
}
