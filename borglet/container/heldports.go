package container

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"borg/borglet"
	"borg/borglet/beneath"
)

// maxHolderBytes bounds the words on who holds a port.
const maxHolderBytes = 40

// HeldPorts returns who holds ports of the machine's network: those from all, and wanted. It
// returns nobody when none of wanted is held. Every address counts: a program that listens on
// a loopback address keeps a task from listening on all addresses.
func (r *Runtime) HeldPorts(wanted []uint32, all borglet.PortRange) (borglet.PortHolders, error) {
	sockets, err := portHolders()
	if err != nil {
		return borglet.PortHolders{}, err
	}
	isHeld := func(n uint32) bool { return len(sockets[uint16(n)]) > 0 || !bindable(uint16(n), false) }
	if !slices.ContainsFunc(wanted, isHeld) {
		return borglet.PortHolders{}, nil
	}
	members, err := r.backend.members(r.processes(r.ids()))
	if err != nil {
		return borglet.PortHolders{}, err
	}
	found := borglet.PortHolders{Copies: boundBy(members, wanted)}
	owners := make(map[socket]borglet.ID)
	for id, pids := range members {
		for _, pid := range pids {
			for _, s := range socketsOf(pid) {
				owners[s] = id
			}
		}
	}
	first, last := ephemeralPorts()
	names := socketOwners(pids())
	for number, holders := range sockets {
		if (number < all.First || number > all.Last) && !slices.Contains(wanted, uint32(number)) {
			continue
		}
		chosen := number < first || number > last
		for _, s := range holders {
			if id, ours := owners[s]; !ours || !chosen {
				found.Others = append(found.Others, borglet.HeldPort{Port: number, By: names[s]})
				break
			} else if !slices.Contains(found.Copies[id], number) {
				found.Copies[id] = append(found.Copies[id], number)
			}
		}
	}
	return found, nil
}

// ids returns the copies that have runs.
func (r *Runtime) ids() []borglet.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.runs))
}

// PortsOfOthers returns who holds ports from first to last and is no task of a borglet,
// ordered by port.
func PortsOfOthers(all borglet.PortRange) ([]borglet.HeldPort, error) {
	sockets, err := portHolders()
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(sockets, func(number uint16, _ []socket) bool { return number < all.First || number > all.Last })
	if len(sockets) == 0 {
		return nil, nil
	}
	running := pids()
	tasks := slices.DeleteFunc(slices.Clone(running), func(pid int) bool { return !isTask(pid) })
	ours, names := socketOwners(tasks), socketOwners(running)
	var held []borglet.HeldPort
	for _, number := range slices.Sorted(maps.Keys(sockets)) {
		other := slices.IndexFunc(sockets[number], func(s socket) bool { return ours[s] == "" })
		if other >= 0 {
			held = append(held, borglet.HeldPort{Port: number, By: names[sockets[number][other]]})
		}
	}
	return held, nil
}

// isTask reports whether a process belongs to a task of some borglet: it is in a cgroup of
// ours, or carries the mark of a plain process.
func isTask(pid int) bool {
	groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if strings.Contains(string(groups), ":"+cgroupTop+"/") {
		return true
	}
	env, _ := beneath.ReadProc(fmt.Sprintf("/proc/%d", pid), "environ")
	return strings.Contains("\x00"+string(env), "\x00"+markerVariable+"=")
}

// portHolders are the sockets that hold ports of the machine's network.
func portHolders() (map[uint16][]socket, error) {
	sockets := make(map[uint16][]socket)
	for table, proto := range socketTables {
		text, err := os.ReadFile(filepath.Join("/proc/thread-self/net", table))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		addPortHolders(sockets, string(text), proto)
	}
	return sockets, nil
}

// addPortHolders adds the ports of one of the kernel's tables that a socket holds: one of
// TCP that listens, or any of UDP.
func addPortHolders(sockets map[uint16][]socket, text, proto string) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 10 || proto == "tcp" && f[3] != tcpListening {
			continue
		}
		if addr, err := parseSocketAddr(f[1]); err == nil && addr.Port() != 0 {
			sockets[addr.Port()] = append(sockets[addr.Port()], socket(f[9]))
		}
	}
}

// socketOwners names the processes that have sockets open. It reads the descriptors of
// every process, so nobody asks before a port is known to be held.
func socketOwners(pids []int) map[socket]string {
	names := make(map[socket]string)
	for _, pid := range pids {
		sockets := socketsOf(pid)
		if len(sockets) == 0 {
			continue
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue // it has ended
		}
		by := holderWords(string(name), pid)
		for _, s := range sockets {
			if _, known := names[s]; !known {
				names[s] = by
			}
		}
	}
	return names
}

// holderWords names a process. Its name is the process's own choice: what is not plain
// text of it is left out.
func holderWords(comm string, pid int) string {
	words := fmt.Sprintf("%s (process %d)", plainName(comm), pid)
	return words[:min(len(words), maxHolderBytes)]
}
