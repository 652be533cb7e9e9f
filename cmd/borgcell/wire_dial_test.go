package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// census names the processes that have sockets. A look at all of them costs
// milliseconds, and in a cell whose masters all start at once hundreds dial:
// those who ask while one look is taken share the next.
type census struct {
	c *Cell

	mu sync.Mutex
	// Guarded by mu.
	waiting []*dialler
	looking bool
}

// dialler is somebody's end of a connection, and whose it is in the end.
type dialler struct {
	local, remote string
	name          chan string
}

// whoDialled names the process of the cell that has the socket at a local
// address, or that started the process which has it.
func (s *census) whoDialled(local, remote *net.TCPAddr) string {
	d := &dialler{kernelAddr(local), kernelAddr(remote), make(chan string, 1)}
	s.mu.Lock()
	s.waiting = append(s.waiting, d)
	if !s.looking {
		s.looking = true
		go s.look()
	}
	s.mu.Unlock()
	return <-d.name
}

// look answers until nobody waits.
func (s *census) look() {
	for {
		s.mu.Lock()
		asked := s.waiting
		s.waiting = nil
		s.looking = len(asked) > 0
		s.mu.Unlock()
		if len(asked) == 0 {
			return
		}
		inodes, owners := inodes(), owners(s.names())
		for _, d := range asked {
			name := owners[inodes[[2]string{d.local, d.remote}]]
			d.name <- cmp.Or(name, outside)
		}
	}
}

// names are those of the cell's processes, by number.
func (s *census) names() map[int]string {
	names := make(map[int]string)
	for _, p := range s.c.sup.all() {
		if pid := p.pid(); pid != 0 {
			names[pid] = p.spec.Name
		}
	}
	return names
}

// owners names processes, and gives those that they started the same names, by the
// inodes of their sockets.
func owners(names map[int]string) map[string]string {
	owners := make(map[string]string)
	for pid, name := range names {
		enter(owners, pid, name)
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if name := names[parentOf(pid)]; name != "" {
				enter(owners, pid, name)
			}
		}
	}
	return owners
}

// enter notes the sockets of a process.
func enter(owners map[string]string, pid int, name string) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join(dir, e.Name()))
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			owners[strings.TrimSuffix(inode, "]")] = name
		}
	}
}

// inodes finds the sockets of all connections by the addresses of their own end
// and of the other, as the kernel writes them.
func inodes() map[[2]string]string {
	all := make(map[[2]string]string)
	list, _ := os.ReadFile("/proc/net/tcp")
	for line := range strings.Lines(string(list)) {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		if f := strings.Fields(line); len(f) > 9 && f[9] != "0" {
			all[[2]string{f[1], f[2]}] = f[9]
		}
	}
	return all
}

// kernelAddr is an IPv4 address as /proc/net/tcp has it: the address as a
// number of this machine's byte order.
func kernelAddr(a *net.TCPAddr) string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a.IP.To4()), a.Port)
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
