package container

import (
	"maps"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/sockets"
)

// A socket is hidden if no process has it open: it is in flight in a Unix socket. A socket
// that was closed after the tables were read looks the same, so a socket counts as hidden only
// if the tables still have it after the walk, and if the walk before found it hidden too.
// It counts for the copy in whose sockets it is found.

// hidden is sockets that no process has open.
type hidden struct {
	// netlink is the bytes queued for each netlink socket, by inode.
	netlink map[string]int64
	// ports are the hidden ones of a sample of the TCP ports in use.
	ports map[uint16]bool
}

// exceeds reports whether a pool of a machine has more hidden in it than a bound.
func (h hidden) exceeds(machine, bound sockets.Use) bool {
	return sum(h.netlink) > bound[sockets.NetlinkBytes] || h.estimate(machine) > bound[sockets.TCPPorts]
}

// estimate returns how many of a machine's ports are hidden.
func (h hidden) estimate(machine sockets.Use) int64 {
	return int64(len(h.ports)) * machine[sockets.TCPPorts] / portSamples
}

// hiddenFrom returns what a look shows that no process of a walk has open.
func (l *socketLook) hiddenFrom(open socketHolder) hidden {
	h := hidden{map[string]int64{}, map[uint16]bool{}}
	for inode, bytes := range l.unread {
		if !open.seen[socket(inode)] && bytes > 0 {
			h.netlink[inode] = bytes
		}
	}
	for _, port := range l.sample {
		if !open.bound[port] && !l.tcp.Ports[port] {
			h.ports[port] = true
		}
	}
	return h
}

// recheck removes what the kernel has no longer.
func (h hidden) recheck(networks []taskNetwork) {
	now := map[string]int64{}
	readNetlink("thread-self", now)
	for _, n := range networks {
		readNetlink(strconv.Itoa(n.pid), now)
	}
	for inode, bytes := range h.netlink {
		if h.netlink[inode] = min(bytes, now[inode]); now[inode] == 0 {
			delete(h.netlink, inode)
		}
	}
	var tcp sockets.Table
	if len(h.ports) > 0 {
		readTable("thread-self", "tcp", &tcp)
	}
	maps.DeleteFunc(h.ports, func(port uint16, _ bool) bool { return tcp.Ports[port] || bindable(port, false) })
}

// chargeHidden adds sockets that no process has open to what their copies hold. open is what
// the processes of copies have open. It reports whether the next walk can tell more.
func (r *Runtime) chargeHidden(look *socketLook, members map[borglet.ID][]int, held map[borglet.ID]sockets.Use, open socketHolder) (more bool) {
	w := &r.sockets
	one := w.machine.OfTask()
	now := look.hiddenFrom(open)
	if !now.exceeds(w.machine, one) && len(w.hidden.netlink) == 0 && len(w.hidden.ports) == 0 {
		return false
	}
	isOurs := map[int]bool{}
	for _, processes := range members {
		for _, pid := range processes {
			isOurs[pid] = true
		}
	}
	others := slices.DeleteFunc(pids(), func(pid int) bool { return isOurs[pid] })
	open.add(look.heldBy(others, w))
	now, before := look.hiddenFrom(open), w.hidden
	maps.DeleteFunc(before.netlink, func(inode string, _ int64) bool { return now.netlink[inode] == 0 })
	maps.DeleteFunc(before.ports, func(port uint16, _ bool) bool { return open.bound[port] })
	now.recheck(w.networks)
	before.recheck(w.networks)
	w.hidden = hidden{now.netlink, now.ports}
	if !look.crowded { // no ports were sampled this time
		w.hidden.ports = maps.Clone(before.ports)
	}
	if !w.hidden.exceeds(w.machine, one) {
		w.hidden = hidden{}
	}
	if !before.exceeds(w.machine, one) {
		return now.exceeds(w.machine, one)
	}
	r.chargeTo(members, held, before, others)
	return false
}

// chargeTo charges hidden sockets to the copies in whose sockets they are in flight. Those that
// cannot be looked at are charged if only one copy can have them; or, if they are more than all
// tasks together may hold, to the copy with the most files in flight of those that can.
func (r *Runtime) chargeTo(members map[borglet.ID][]int, held map[borglet.ID]sockets.Use, rest hidden, others []int) {
	w := &r.sockets
	var suspect borglet.ID
	suspects, most := 0, 0
	for id, processes := range members {
		s := r.sentBy(id, processes)
		u := held[id]
		for inode := range s.inodes {
			u[sockets.NetlinkBytes] += rest.netlink[inode]
			delete(rest.netlink, inode)
		}
		for port := range s.ports {
			delete(rest.ports, port)
		}
		u[sockets.TCPPorts] += int64(len(s.ports))
		held[id] = u
		if s.unseen {
			suspects++
			if s.files > most {
				suspect, most = id, s.files
			}
		}
	}
	if filesInFlight(others) > 0 {
		suspects++
	}
	if most > 0 && (suspects == 1 || rest.exceeds(w.machine, w.machine.OfTasks())) {
		u := held[suspect]
		u[sockets.NetlinkBytes] += sum(rest.netlink)
		u[sockets.TCPPorts] += rest.estimate(w.machine)
		held[suspect] = u
	}
}

// sent is the sockets in flight in the sockets of a copy.
type sent struct {
	inodes map[string]bool
	// ports are the TCP ports of them that the kernel gives out.
	ports map[uint16]bool
	// chosen are the other ones.
	chosen map[uint16]bool
	// files is the number of files in flight, without those in sockets that are in flight.
	files int
	// unseen: there are some that could not be looked at.
	unseen bool
}

// sentBy looks at the sockets in flight of a copy, which it freezes if that is needed.
func (r *Runtime) sentBy(id borglet.ID, processes []int) sent {
	files := filesInFlight(processes)
	if files == 0 {
		return sent{}
	}
	s := r.lookAtSent(processes, false)
	group := r.backend.cgroups(r.processes([]borglet.ID{id}))[id]
	if s.unseen && group.freezeDir() != "" {
		release, err := group.freeze()
		if err == nil {
			s = r.lookAtSent(processes, true)
		}
		if err := release(); err != nil {
			r.cfg.Log.Error("a task stays frozen, because it cannot be thawed", "machine", r.cfg.Name, "err", err)
		}
	}
	s.files = files
	return s
}

// lookAtSent looks at the sockets in flight of processes.
func (r *Runtime) lookAtSent(processes []int, frozen bool) sent {
	s := sent{inodes: map[string]bool{}, ports: map[uint16]bool{}, chosen: map[uint16]bool{}}
	network, networkErr := networkCookie()
	w := &heldWalk{root: true, counted: map[inode]bool{}, devices: map[uint64]bool{}, current: &heldCopy{frozen: frozen, bytes: map[string]int64{}}}
	w.sawSocket = func(fd int) {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil {
			s.inodes[strconv.FormatUint(st.Ino, 10)] = true
		}
		if networkErr != nil {
			return
		}
		if port := boundPort(fd, network); port >= r.sockets.first && port <= r.sockets.last {
			s.ports[port] = true
		} else if port != 0 {
			s.chosen[port] = true
		}
	}
	eachSocket(processes, func(tid, number int) { w.lookIntoSocket(tid, tid, strconv.Itoa(number)) })
	s.unseen = w.current.unseen
	return s
}

// filesInFlight returns the number of files in flight in the sockets of processes.
func filesInFlight(processes []int) (n int) {
	eachSocket(processes, func(tid, number int) {
		n += waitingFiles("/proc/" + strconv.Itoa(tid) + "/fdinfo/" + strconv.Itoa(number))
	})
	return n
}

// eachSocket calls see for each socket of processes once.
func eachSocket(processes []int, see func(tid, number int)) {
	seen := map[socket]bool{}
	for _, pid := range processes {
		visitSockets(pid, func(tid, number int, s socket) {
			if !seen[s] {
				seen[s] = true
				see(tid, number)
			}
		})
	}
}
