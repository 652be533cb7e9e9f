package container

import (
	"maps"

	"borg/borglet"
	"borg/borglet/sockets"
)

// socketHolder is what some processes hold together.
type socketHolder struct {
	use sockets.Use
	// bound and connected are the TCP ports, of those that the kernel gives out. A port to
	// which a socket was bound before it was connected looks like one that was not bound.
	bound, connected map[uint16]bool
	// seen are all their sockets.
	seen map[socket]bool
}

// add adds what other processes hold, without the amounts.
func (h *socketHolder) add(o socketHolder) {
	maps.Copy(h.bound, o.bound)
	maps.Copy(h.seen, o.seen)
}

// walkSockets finds out what each copy holds. It reports whether the next walk can tell more.
func (r *Runtime) walkSockets(look *socketLook) (held map[borglet.ID]sockets.Use, more bool, err error) {
	members, err := r.backend.members(r.processes(r.ids()))
	if err != nil {
		return nil, false, err
	}
	held = make(map[borglet.ID]sockets.Use, len(members))
	open := socketHolder{bound: map[uint16]bool{}, seen: map[socket]bool{}}
	for id, pids := range members {
		h := look.heldBy(pids, &r.sockets)
		h.use[sockets.TCPPorts] = int64(len(h.bound) + explicitlyBound(h.connected, r.sockets.first, r.sockets.last))
		held[id] = h.use
		open.add(h)
	}
	return held, r.chargeHidden(look, members, held, open), nil
}

// heldBy adds up the sockets of processes.
func (l *socketLook) heldBy(running []int, w *socketWatch) (h socketHolder) {
	h.bound, h.connected, h.seen = map[uint16]bool{}, map[uint16]bool{}, map[socket]bool{}
	udpPorts := map[uint16]bool{}
	network, networkErr := networkCookie()
	given := func(port uint16) bool { return port >= w.first && port <= w.last }
	for _, pid := range running {
		visitSockets(pid, func(tid, number int, s socket) {
			if h.seen[s] {
				return
			}
			h.seen[s] = true
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
				// The table is read piece by piece and before this walk: it may lack connections.
				if port, isConnected := boundAt(tid, number, network); given(port) && isConnected {
					h.connected[port] = true
				} else if given(port) {
					h.bound[port] = true
				}
			}
		})
	}
	h.use[sockets.UDPPorts] = int64(len(udpPorts))
	// Connections that came to a port hold no other port than that.
	for port := range h.bound {
		delete(h.connected, port)
	}
	return h
}
