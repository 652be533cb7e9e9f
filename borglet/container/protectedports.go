package container

import (
	"bufio"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"borg/borglet"
)

// protectedEvery bounds the time between two walks over the sockets that tasks have bound to
// protected ports. A socket that only is bound is in no table, and keeps nobody from a port
// on which somebody listens.
const protectedEvery = 30 * time.Second

// protectedWatch finds out when a task may hold a protected port. To find out whose a socket is
// takes a walk over the descriptors of tasks.
type protectedWatch struct {
	// known are the sockets that listen there and are of programs that are no tasks of ours.
	known map[socket]bool
	// due is when the next walk is made at the latest, and rest is until when none is.
	due, rest time.Time
	// restTimes is how long the next rest is after a walk that finds nobody, in times of what
	// the walk took.
	restTimes time.Duration
}

// ProtectedHolders returns which copies have a TCP socket bound to one of ports, in the
// machine's network. Ports that the kernel gives out do not count. One call at a time, and none
// during SocketsHeld.
func (r *Runtime) ProtectedHolders(ports []uint16) (map[borglet.ID][]uint16, error) {
	first, last := ephemeralPorts()
	ports = slices.DeleteFunc(slices.Clone(ports), func(n uint16) bool { return n >= first && n <= last })
	w, now := &r.protected, time.Now()
	if w.known == nil {
		w.known, w.restTimes = map[socket]bool{}, 1
	}
	listening, err := listenersOn(ports)
	if err != nil || now.Before(w.rest) {
		return nil, err
	}
	maps.DeleteFunc(w.known, func(s socket, _ bool) bool { return listening[s] == 0 })
	walk := !now.Before(w.due)
	for s := range listening {
		walk = walk || !w.known[s]
	}
	listened := slices.Collect(maps.Values(listening))
	isBound := slices.ContainsFunc(ports, func(n uint16) bool { return !slices.Contains(listened, n) && !bindable(n, true) })
	if !walk && !isBound {
		w.restTimes = 1
		return nil, nil
	}
	found, err := r.walkProtected(ports, listening, isBound)
	w.due = time.Now().Add(max(protectedEvery, walkRest*time.Since(now)))
	if len(found) > 0 {
		w.restTimes = 1
	} else {
		w.rest = time.Now().Add(w.restTimes * time.Since(now))
		w.restTimes = min(2*w.restTimes, walkRest)
	}
	return found, err
}

// listenersOn returns the TCP sockets of the machine's network that listen on ports. The tables
// have those that listen before all others, so a machine with many connections costs no more.
func listenersOn(ports []uint16) (map[socket]uint16, error) {
	found := make(map[socket]uint16)
	for _, table := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join("/proc/thread-self/net", table))
		if os.IsNotExist(err) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(file)
		lines.Scan() // the heading
		for lines.Scan() {
			f := strings.Fields(lines.Text())
			if len(f) < 10 || f[3] != tcpListening {
				break
			}
			if addr, err := parseSocketAddr(f[1]); err == nil && slices.Contains(ports, addr.Port()) {
				found[socket(f[9])] = addr.Port()
			}
		}
		err = lines.Err()
		file.Close()
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// walkProtected looks at the sockets of all copies. A socket that no process has open is looked
// for among those in flight: one that listens, or, if isBound, one that only is bound.
func (r *Runtime) walkProtected(ports []uint16, listening map[socket]uint16, isBound bool) (map[borglet.ID][]uint16, error) {
	members, err := r.backend.members(r.processes(r.ids()))
	if err != nil {
		return nil, err
	}
	found := make(map[borglet.ID][]uint16)
	add := func(id borglet.ID, n uint16) {
		if slices.Contains(ports, n) && !slices.Contains(found[id], n) {
			found[id] = append(found[id], n)
		}
	}
	network, networkErr := networkCookie()
	ours := map[socket]bool{}
	for id, pids := range members {
		for _, pid := range pids {
			visitSockets(pid, func(tid, number int, s socket) {
				if n := listening[s]; n != 0 {
					ours[s] = true
					add(id, n)
				} else if networkErr == nil {
					n, _ := boundAt(tid, number, network)
					add(id, n)
				}
			})
		}
	}
	isUnknown := func(s socket) bool { return !ours[s] && !r.protected.known[s] }
	hidden := isBound && len(found) == 0
	if slices.ContainsFunc(slices.Collect(maps.Keys(listening)), isUnknown) {
		names := socketOwners(pids())
		for s := range listening {
			if isUnknown(s) && names[s] != "" {
				r.protected.known[s] = true
			}
			hidden = hidden || isUnknown(s)
		}
	}
	if hidden {
		for id, pids := range members {
			for n := range r.sentBy(id, pids).chosen {
				add(id, n)
			}
		}
	}
	return found, nil
}
