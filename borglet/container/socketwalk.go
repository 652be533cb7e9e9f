package container

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/sockets"
)

// socketHolder is what some processes hold together.
type socketHolder struct {
	use sockets.Use
	// bound and connected are the TCP ports, of those that the kernel gives out. A port to
	// which a socket was bound before it was connected looks like one that was not bound.
	bound, connected map[uint16]bool
}

// walkSockets finds out what each copy holds.
func (r *Runtime) walkSockets(look *socketLook) (map[borglet.ID]sockets.Use, error) {
	members, err := r.backend.members(r.processes(r.ids()))
	if err != nil {
		return nil, err
	}
	held := make(map[borglet.ID]sockets.Use, len(members))
	isOurs, known := map[int]bool{}, map[uint16]bool{}
	hidden := sum(look.unread)
	for id, pids := range members {
		h := look.heldBy(pids, &r.sockets)
		hidden -= h.use[sockets.NetlinkBytes]
		h.use[sockets.TCPPorts] = int64(len(h.bound) + explicitlyBound(h.connected))
		held[id] = h.use
		for port := range h.bound {
			known[port] = true
		}
		for _, pid := range pids {
			isOurs[pid] = true
		}
	}
	r.chargeHidden(look, members, held, hidden, known, isOurs)
	return held, nil
}

// heldBy adds up the sockets of processes.
func (l *socketLook) heldBy(running []int, w *socketWatch) (h socketHolder) {
	h.bound, h.connected = map[uint16]bool{}, map[uint16]bool{}
	seen, udpPorts := map[socket]bool{}, map[uint16]bool{}
	network, networkErr := networkCookie()
	given := func(port uint16) bool { return port >= w.first && port <= w.last }
	for _, pid := range running {
		process, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		visitSockets(pid, func(number int, s socket) {
			if seen[s] {
				return
			}
			seen[s] = true
			inode := string(s)
			bytes, isNetlink := l.unread[inode]
			udp, isUDP := l.udp.Sockets[inode]
			tcp, isTCP := l.tcp.Sockets[inode]
			elsewhere, isElsewhere := l.udpElsewhere.Sockets[inode]
			h.use[sockets.NetlinkBytes] += bytes
			h.use[sockets.UDPBytes] += udp.Unread + elsewhere.Unread
			switch {
			case isNetlink || isElsewhere:
			case isUDP && given(udp.Port):
				udpPorts[udp.Port] = true
			case isTCP && given(tcp.Port) && tcp.Listens:
				h.bound[tcp.Port] = true
			case isTCP && given(tcp.Port):
				h.connected[tcp.Port] = true
			case !isTCP && !isUDP && l.crowded && networkErr == nil:
				if port, _ := boundAt(process, number, network); given(port) {
					h.bound[port] = true
				}
			}
		})
		unix.Close(process)
	}
	h.use[sockets.UDPPorts] = int64(len(udpPorts))
	// Connections that came to a port hold no other port than that.
	for port := range h.bound {
		delete(h.connected, port)
	}
	return h
}

// chargeHidden charges sockets that no process has open to the copy that has the most
// descriptors under way between its processes: there they can be kept.
func (r *Runtime) chargeHidden(look *socketLook, members map[borglet.ID][]int, held map[borglet.ID]sockets.Use, unread int64, known map[uint16]bool, isOurs map[int]bool) {
	one := r.sockets.machine.OfTask()
	unknown := func() (n int64) {
		for _, port := range look.sample {
			if !known[port] && !look.tcp.Ports[port] {
				n++
			}
		}
		return n * r.sockets.machine[sockets.TCPPorts] / portSamples
	}
	isHidden := func() bool {
		return unread > one[sockets.NetlinkBytes] || look.crowded && unknown() > one[sockets.TCPPorts]
	}
	if !isHidden() {
		return
	}
	var others []int
	for _, pid := range pids() {
		if !isOurs[pid] {
			others = append(others, pid)
		}
	}
	h := look.heldBy(others, &r.sockets)
	unread -= h.use[sockets.NetlinkBytes]
	for port := range h.bound {
		known[port] = true
	}
	if id, most := mostUnderWay(members); isHidden() && most > 0 {
		u := held[id]
		u[sockets.NetlinkBytes] += max(unread, 0)
		u[sockets.TCPPorts] += unknown()
		held[id] = u
	}
}

// mostUnderWay returns the copy whose sockets have the most descriptors in messages that
// nobody has received yet.
func mostUnderWay(members map[borglet.ID][]int) (id borglet.ID, most int) {
	for candidate, pids := range members {
		n := 0
		seen := map[socket]bool{}
		for _, pid := range pids {
			visitSockets(pid, func(number int, s socket) {
				if !seen[s] {
					seen[s] = true
					n += descriptorsIn(pid, number)
				}
			})
		}
		if n > most {
			id, most = candidate, n
		}
	}
	return id, most
}

// descriptorsIn returns the descriptors that wait in a local socket to be received.
func descriptorsIn(pid, number int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, number))
	for line := range strings.Lines(string(text)) {
		if count, is := strings.CutPrefix(line, "scm_fds:"); is {
			n, _ := strconv.Atoi(strings.TrimSpace(count))
			return n
		}
	}
	return 0
}
