package container

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/sockets"
)

// socketHolder is what some processes hold together.
type socketHolder struct {
	use sockets.Use
	// bound and connected are the TCP ports, of those that the kernel gives out. A port to
	// which a socket was bound before it was connected looks like one that was not bound.
	bound, connected, udpPorts map[uint16]bool
}

// socketWalk is one walk over the descriptors of the machine.
type socketWalk struct {
	*socketLook
	watch *socketWatch
	// open is the sockets that some process has open.
	open map[socket]bool
	// network is the cookie of the machine's network; zero if it is not known.
	network uint64
}

// walkSockets finds out what each copy holds.
func (r *Runtime) walkSockets(look *socketLook) (map[borglet.ID]sockets.Use, error) {
	members, err := r.backend.members(r.processes(r.ids()))
	if err != nil {
		return nil, err
	}
	w := &socketWalk{socketLook: look, watch: &r.sockets, open: map[socket]bool{}}
	w.network, _ = networkCookie()
	holders := make(map[borglet.ID]*socketHolder, len(members))
	for id, pids := range members {
		holders[id] = w.heldBy(pids)
	}
	if w.hides(holders, members) {
		r.chargeInFlight(w, members, holders)
	}
	held := make(map[borglet.ID]sockets.Use, len(members))
	for id, h := range holders {
		held[id] = h.total()
	}
	return held, nil
}

// heldBy adds up the sockets of processes.
func (w *socketWalk) heldBy(running []int) *socketHolder {
	h := &socketHolder{bound: map[uint16]bool{}, connected: map[uint16]bool{}, udpPorts: map[uint16]bool{}}
	seen := map[socket]bool{}
	for _, pid := range running {
		process, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		visitSockets(pid, func(number int, s socket) {
			if !seen[s] {
				seen[s], w.open[s] = true, true
				h.add(w, s, func() uint16 {
					port, _ := boundAt(process, number, w.network)
					return port
				})
			}
		})
		unix.Close(process)
	}
	return h
}

// add counts a socket. boundTo returns the TCP port to which it is bound.
func (h *socketHolder) add(w *socketWalk, s socket, boundTo func() uint16) {
	inode := string(s)
	bytes, isNetlink := w.unread[inode]
	udp, isUDP := w.udp.Sockets[inode]
	tcp, isTCP := w.tcp.Sockets[inode]
	elsewhere, isElsewhere := w.udpElsewhere.Sockets[inode]
	given := func(port uint16) bool { return port >= w.watch.first && port <= w.watch.last }
	h.use[sockets.NetlinkBytes] += bytes
	h.use[sockets.UDPBytes] += udp.Unread + elsewhere.Unread
	switch {
	case isNetlink || isElsewhere:
	case isUDP && given(udp.Port):
		h.udpPorts[udp.Port] = true
	case isTCP && given(tcp.Port) && tcp.Listens:
		h.bound[tcp.Port] = true
	case isTCP && given(tcp.Port):
		h.connected[tcp.Port] = true
	case !isTCP && !isUDP && w.crowded && w.network != 0:
		if port := boundTo(); given(port) {
			h.bound[port] = true
		}
	}
}

// total returns all that is held.
func (h *socketHolder) total() sockets.Use {
	// Connections that came to a port hold no other port than that.
	for port := range h.bound {
		delete(h.connected, port)
	}
	h.use[sockets.UDPPorts] = int64(len(h.udpPorts))
	h.use[sockets.TCPPorts] = int64(len(h.bound) + explicitlyBound(h.connected))
	return h.use
}

// hides reports whether sockets that no process has open may hold more than a task's part.
// That is no proof against anybody: a socket that was closed during the walk looks the same.
func (w *socketWalk) hides(holders map[borglet.ID]*socketHolder, members map[borglet.ID][]int) bool {
	one := w.watch.machine.OfTask()
	known, isOurs := map[uint16]bool{}, map[int]bool{}
	for id, h := range holders {
		maps.Copy(known, h.bound)
		for _, pid := range members[id] {
			isOurs[pid] = true
		}
	}
	hides := func() bool {
		var use sockets.Use
		for inode, bytes := range w.unread {
			if !w.open[socket(inode)] {
				use[sockets.NetlinkBytes] += bytes
			}
		}
		for inode, row := range w.udp.Sockets {
			if !w.open[socket(inode)] {
				use[sockets.UDPBytes] += row.Unread
				use[sockets.UDPPorts]++
			}
		}
		for inode, row := range w.udpElsewhere.Sockets {
			if !w.open[socket(inode)] {
				use[sockets.UDPBytes] += row.Unread
			}
		}
		for _, port := range w.sample {
			if w.crowded && !known[port] && !w.tcp.Ports[port] {
				use[sockets.TCPPorts] += w.watch.machine[sockets.TCPPorts] / portSamples
			}
		}
		for inode := range w.tcp.Sockets {
			if !w.open[socket(inode)] {
				use[sockets.TCPPorts]++
			}
		}
		return use.Exceeds(one)
	}
	if !hides() {
		return false
	}
	others := slices.DeleteFunc(pids(), func(pid int) bool { return isOurs[pid] })
	maps.Copy(known, w.heldBy(others).bound)
	return hides()
}

// chargeInFlight charges the sockets that no process has open to the copies in whose local
// sockets they wait to be received. Only what is seen there counts, and for its owner.
func (r *Runtime) chargeInFlight(w *socketWalk, members map[borglet.ID][]int, holders map[borglet.ID]*socketHolder) {
	runs := r.processes(slices.Collect(maps.Keys(members)))
	peeker := &heldWalk{root: true}
	for id := range members {
		peeker.copies = append(peeker.copies, &heldCopy{id: id, uids: userRange(runs[id].Pid)})
	}
	slices.SortFunc(peeker.copies, func(a, b *heldCopy) int { return cmp.Compare(a.id.String(), b.id.String()) })
	peeker.visit = func(fd int) {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return
		}
		s := socket(fmt.Sprint(st.Ino))
		if owner := peeker.charged(st.Uid); !w.open[s] && (owner.uids[1] == 0 || owner.hasUser(st.Uid)) {
			w.open[s] = true
			holders[owner.id].add(w, s, func() uint16 { return boundPort(fd, w.network) })
		}
	}
	groups := r.backend.cgroups(runs)
	for _, together := range groupByFreezer(peeker.copies, groups) {
		together = slices.DeleteFunc(together, func(c *heldCopy) bool { return len(waitingIn(members[c.id])) == 0 })
		if len(together) > 0 {
			r.peekAtGroup(peeker, together, groups[together[0].id], members)
		}
	}
}

// peekAtGroup freezes copies and visits what waits in their sockets. Of a copy that cannot be
// frozen it visits the first message of each socket.
func (r *Runtime) peekAtGroup(peeker *heldWalk, together []*heldCopy, group paths, members map[borglet.ID][]int) {
	frozen, release := r.freezeGroup(group)
	defer release()
	for _, c := range together {
		c.frozen, peeker.current = frozen, c
		for _, d := range waitingIn(members[c.id]) {
			peeker.lookIntoSocket(d.pid, d.pid, fmt.Sprint(d.number))
		}
	}
}

// descriptor is an open file of a process.
type descriptor struct{ pid, number int }

// waitingIn returns the sockets of processes, each once, in which descriptors wait to be
// received.
func waitingIn(running []int) (found []descriptor) {
	seen := map[socket]bool{}
	for _, pid := range running {
		visitSockets(pid, func(number int, s socket) {
			if !seen[s] && waitingFiles(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, number)) > 0 {
				found = append(found, descriptor{pid, number})
			}
			seen[s] = true
		})
	}
	return found
}
