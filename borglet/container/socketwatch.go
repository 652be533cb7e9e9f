package container

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"borg/borglet"
	"borg/borglet/sockets"
)

const (
	// netlinkPart is the part of a machine's memory that netlink messages are taken to share,
	// and netlinkBytes is the most.
	netlinkPart  = 64
	netlinkBytes = 1 << 30
	// inetEvery is how often ports and UDP are looked at.
	inetEvery = time.Second
	// networkTables is how many networks of tasks are looked at in one call, by turns.
	networkTables = 20
	// walkRest is how long nobody walks over the descriptors of tasks after a walk that found
	// nothing, as a multiple of how long that took.
	walkRest = 20
)

// socketWatch finds out when the sockets of a machine hold so much that it must be known whose
// they are. To find that out takes a walk over the descriptors of all tasks.
type socketWatch struct {
	machine     sockets.Use
	first, last uint16

	// networks are the networks of tasks with their unread netlink messages, and at is whose
	// turn it is.
	networks []taskNetwork
	at       int

	// unreadThen is how much netlink messages took at the last walk, or less since.
	unreadThen int64
	// hidden is what the last walk found hidden.
	hidden                                      hidden
	networksDue, inetDue, walkDue, processesDue time.Time
	filters                                     filterWatch
}

// taskNetwork is a network that is not the machine's.
type taskNetwork struct {
	name   string
	pid    int
	unread map[string]int64
}

// socketLook is what the kernel's tables say.
type socketLook struct {
	// unread is the bytes queued for each netlink socket.
	unread map[string]int64
	// tcp and udp are of the machine's network, and udpElsewhere is of those of tasks.
	tcp, udp, udpElsewhere sockets.Table
	// crowded: many TCP ports are in use, and sample is some of those in use.
	crowded bool
	sample  []uint16
}

// SocketsHeld returns what each copy holds of what all tasks of the machine share. It returns
// false while no copy can hold more than its part.
func (r *Runtime) SocketsHeld() (borglet.SocketsHeld, bool) {
	w, now := &r.sockets, time.Now()
	if w.machine == (sockets.Use{}) {
		w.measure()
	}
	runs := r.runNumbers() // before the look: of a run that starts meanwhile nothing is known
	held := r.inSockets(now)
	for _, more := range []map[borglet.ID]sockets.Use{r.processesHeld(now), r.filtersHeld(time.Now())} {
		if held == nil {
			held = more
			continue
		}
		for id, u := range more {
			for p, n := range held[id] {
				u[p] += n
			}
			held[id] = u
		}
	}
	return borglet.SocketsHeld{Machine: w.machine, Copies: held, Runs: runs}, held != nil
}

// runNumbers returns the run of each copy.
func (r *Runtime) runNumbers() map[borglet.ID]uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	runs := make(map[borglet.ID]uint32, len(r.runs))
	for id, run := range r.runs {
		runs[id] = run.n
	}
	return runs
}

// inSockets returns what the sockets of each copy hold; nil while no copy can hold more than its
// part.
func (r *Runtime) inSockets(now time.Time) map[borglet.ID]sockets.Use {
	w := &r.sockets
	one := w.machine.OfTask()
	look := socketLook{unread: r.unreadNetlink(now)}
	unread := sum(look.unread)
	w.unreadThen = min(w.unreadThen, unread)
	walk := unread > one[sockets.NetlinkBytes]
	if !now.Before(w.inetDue) {
		w.inetDue = now.Add(inetEvery)
		walk = look.readInet(w) || walk
	}
	// Memory can be taken fast: if there is more of it, no walk rests.
	if grew := unread-w.unreadThen > one[sockets.NetlinkBytes]; !walk || !grew && now.Before(w.walkDue) {
		return nil
	}
	w.unreadThen = unread
	held, more, err := r.walkSockets(&look)
	if err != nil {
		return nil
	}
	isOver := func(u sockets.Use) bool { return u.Exceeds(one) }
	if !more && !slices.ContainsFunc(slices.Collect(maps.Values(held)), isOver) {
		w.walkDue = time.Now().Add(walkRest * time.Since(now))
	}
	return held
}

// measure reads what the machine's sockets share.
func (w *socketWatch) measure() {
	w.first, w.last = ephemeralPorts()
	var memoryKiB, low, pressure, high int64
	text, _ := os.ReadFile("/proc/meminfo")
	_, _ = fmt.Sscanf(string(text), "MemTotal: %d kB", &memoryKiB)
	text, _ = os.ReadFile("/proc/sys/net/ipv4/udp_mem")
	_, _ = fmt.Sscan(string(text), &low, &pressure, &high)
	ports := int64(w.last) - int64(w.first) + 1
	w.machine = sockets.Use{
		sockets.NetlinkBytes: min(memoryKiB<<10/netlinkPart, netlinkBytes), sockets.UDPBytes: high * int64(os.Getpagesize()),
		sockets.TCPPorts: ports, sockets.UDPPorts: ports,
	}
}

// unreadNetlink reads what is queued for netlink sockets in the machine's network, and in
// those of tasks by turns.
func (r *Runtime) unreadNetlink(now time.Time) map[string]int64 {
	w := &r.sockets
	if !now.Before(w.networksDue) {
		w.networksDue = now.Add(inetEvery)
		w.networks = r.taskNetworks(w.networks)
	}
	unread := map[string]int64{}
	readNetlink("thread-self", unread)
	for range min(networkTables, len(w.networks)) {
		w.at = (w.at + 1) % len(w.networks)
		n := &w.networks[w.at]
		n.unread = map[string]int64{}
		readNetlink(fmt.Sprint(n.pid), n.unread)
	}
	for _, n := range w.networks {
		maps.Copy(unread, n.unread)
	}
	return unread
}

// readNetlink adds what is queued in the network of a process.
func readNetlink(process string, unread map[string]int64) {
	text, _ := os.ReadFile(filepath.Join("/proc", process, "net/netlink"))
	sockets.Netlink(string(text), unread)
}

// taskNetworks lists the networks of tasks, with what was known of them.
func (r *Runtime) taskNetworks(known []taskNetwork) (found []taskNetwork) {
	byName := map[string]taskNetwork{}
	for _, n := range known {
		byName[n.name] = n
	}
	machine, _ := os.Readlink("/proc/thread-self/ns/net")
	seen := map[string]bool{machine: true}
	for _, run := range r.processes(r.ids()) {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", run.Pid))
		if err == nil && !seen[name] {
			seen[name] = true
			found = append(found, taskNetwork{name, run.Pid, byName[name].unread})
		}
	}
	slices.SortFunc(found, func(a, b taskNetwork) int { return strings.Compare(a.name, b.name) })
	return found
}

// readInet reads the tables of TCP and UDP. It reports whether a task may hold too much.
func (l *socketLook) readInet(w *socketWatch) bool {
	one := w.machine.OfTask()
	readTable("thread-self", "udp", &l.udp)
	l.sample = busyPorts(w.first, w.last)
	l.crowded = len(l.sample) > portSamples*int(one[sockets.TCPPorts])/int(w.machine[sockets.TCPPorts])
	if l.crowded {
		readTable("thread-self", "tcp", &l.tcp)
	}
	text, _ := os.ReadFile("/proc/thread-self/net/sockstat")
	manyBytes := sockets.UDPPages(string(text))*int64(os.Getpagesize()) > one[sockets.UDPBytes]
	if manyBytes {
		for _, n := range w.networks {
			readTable(fmt.Sprint(n.pid), "udp", &l.udpElsewhere)
		}
	}
	return l.crowded || manyBytes || int64(len(l.udp.Ports)) > one[sockets.UDPPorts]
}

// readTable adds the IPv4 and IPv6 sockets of a protocol in the network of a process.
func readTable(process, protocol string, t *sockets.Table) {
	for _, version := range []string{"", "6"} {
		text, _ := os.ReadFile(filepath.Join("/proc", process, "net", protocol+version))
		t.Add(string(text))
	}
}

func sum(unread map[string]int64) (n int64) {
	for _, bytes := range unread {
		n += bytes
	}
	return n
}
