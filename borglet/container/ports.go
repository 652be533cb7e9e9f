package container

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"borg/borglet"
)

// socketTables are the kernel's tables of sockets, by protocol. Tasks share the
// machine's network, so that theirs are in them.
var socketTables = map[string]string{"tcp": "tcp", "tcp6": "tcp", "udp": "udp", "udp6": "udp"}

// What the tables call a socket that waits for whoever comes. One of UDP is that
// unless it has been connected.
const (
	tcpListening = "0A"
	udpOpen      = "07"
)

// socket is the inode of one, by which a process's descriptors name it.
type socket string

// listeners remembers whose a socket is: as long as nobody opens another one, no
// process is looked at.
type listeners struct {
	mu sync.Mutex
	// owners of the sockets that were there when was looked last; the zero ID: none of
	// ours. Guarded by mu.
	owners map[socket]borglet.ID
	// others are the ports that none of our copies listens on. Guarded by mu.
	others map[port]bool
}

// port is one by its number, whatever the address.
type port struct {
	proto  string
	number uint16
}

func portOf(l borglet.Listener) port { return port{l.Proto, l.Addr.Port()} }

// Listening says on which ports copies listen. What listens on loopback addresses
// alone is left out, and so is what has its port of UDP from the kernel: everybody
// who asks for a name has such a one.
func (r *Runtime) Listening(ids []borglet.ID) (map[borglet.ID][]borglet.Listener, error) {
	sockets, err := readSockets("/proc/thread-self/net")
	if err != nil {
		return nil, err
	}
	runs := r.processes(ids)
	r.listeners.mu.Lock()
	defer r.listeners.mu.Unlock()
	owners := make(map[socket]borglet.ID, len(sockets))
	unknown := 0
	for s := range sockets {
		id, known := r.listeners.owners[s]
		if _, runs := runs[id]; known && (runs || id == borglet.ID{}) {
			owners[s] = id
		} else {
			unknown++
		}
	}
	if unknown > 0 && len(runs) > 0 {
		members, err := r.backend.members(runs)
		if err != nil {
			return nil, err
		}
		for id, pids := range members {
			for _, pid := range pids {
				for _, s := range socketsOf(pid) {
					if _, listens := sockets[s]; listens {
						owners[s] = id
					}
				}
			}
		}
		for s := range sockets {
			if _, known := owners[s]; !known {
				owners[s] = borglet.ID{}
			}
		}
	}
	r.listeners.owners, r.listeners.others = owners, map[port]bool{}
	found := make(map[borglet.ID][]borglet.Listener)
	for s := range sockets {
		if id := owners[s]; id != (borglet.ID{}) {
			found[id] = append(found[id], sockets[s])
		} else {
			r.listeners.others[portOf(sockets[s])] = true
		}
	}
	return found, nil
}

// Block closes what copies were found to listen on and were not granted, but for ports
// that others of the machine use too, on other addresses.
func (r *Runtime) Block(found map[borglet.ID][]borglet.Listener) error {
	r.listeners.mu.Lock()
	others := r.listeners.others
	r.listeners.mu.Unlock()
	alone := make(map[borglet.ID][]borglet.Listener, len(found))
	for id, listens := range found {
		for _, l := range listens {
			if !others[portOf(l)] {
				alone[id] = append(alone[id], l)
			}
		}
	}
	return r.backend.block(alone)
}

// readSockets reads the sockets that anybody from outside reaches.
func readSockets(dir string) (map[socket]borglet.Listener, error) {
	first, last := ephemeralPorts()
	found := make(map[socket]borglet.Listener)
	for table, proto := range socketTables {
		text, err := os.ReadFile(filepath.Join(dir, table))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		maps.Copy(found, parseSockets(string(text), proto, first, last))
	}
	return found, nil
}

// parseSockets reads one of the tables. UDP's from first to last are left out.
func parseSockets(text, proto string, first, last uint16) map[socket]borglet.Listener {
	found := make(map[socket]borglet.Listener)
	for line := range strings.Lines(text) {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
		f := strings.Fields(line)
		if len(f) < 10 || (proto == "tcp" && f[3] != tcpListening) || (proto == "udp" && f[3] != udpOpen) {
			continue
		}
		addr, err := parseSocketAddr(f[1])
		if err != nil || addr.Addr().IsLoopback() || addr.Port() == 0 || (proto == "udp" && addr.Port() >= first && addr.Port() <= last) {
			continue
		}
		found[socket(f[9])] = borglet.Listener{Proto: proto, Addr: addr}
	}
	return found
}

// parseSocketAddr reads an address as the tables have it: words of 32 bits in the
// machine's own order, and the port.
func parseSocketAddr(text string) (netip.AddrPort, error) {
	words, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(words)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read socket address %q: %w", text, err)
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read socket address %q: %w", text, err)
	}
	if len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("read socket address %q: unexpected form", text)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("read socket address %q: unexpected form", text)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}

// ephemeralPorts are those that the kernel gives to who asks for none.
func ephemeralPorts() (first, last uint16) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if _, scanErr := fmt.Sscan(string(text), &first, &last); err != nil || scanErr != nil {
		return 32768, 60999 // the kernel's default
	}
	return first, last
}

// socketsOf are the sockets that a process has open.
func socketsOf(pid int) (found []socket) {
	visitSockets(pid, func(_, _ int, s socket) { found = append(found, s) })
	return found
}

// visitSockets calls see for each descriptor of a process that is a socket, with a thread that
// has the descriptor: a thread can have a table of its own.
func visitSockets(pid int, see func(tid, number int, s socket)) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return // it has ended
	}
	last := 0
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err == nil && (last == 0 || !shared(last, tid, kcmpFiles)) {
			visitTable(tid, see)
			last = tid
		}
	}
}

// visitTable calls see for each descriptor of a thread that is a socket.
func visitTable(tid int, see func(tid, number int, s socket)) {
	dir := fmt.Sprintf("/proc/%d/fd", tid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // it has ended
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		number, numberErr := strconv.Atoi(e.Name())
		if inode, ok := strings.CutPrefix(target, "socket:["); err == nil && numberErr == nil && ok {
			see(tid, number, socket(strings.TrimSuffix(inode, "]")))
		}
	}
}
