package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"borg/borglet"
)

// nftBound is how long one change of the kernel's packet filter may take.
const nftBound = 10 * time.Second

// wall closes the ports of the machine that tasks use and were not granted, by a
// table of the kernel's packet filter. A copy is told by its user ids, which nobody
// else has: what leaves from its sockets passes if it leaves from a port that it was
// granted, and answers to nobody otherwise. What comes to a port is not yet anybody's
// by user id, so that ports that tasks were found to listen on are closed by number.
//
// The table is written as a whole, in one transaction, and stays when the borglet
// ends: the next one writes it anew.
type wall struct {
	table string
	// writing is held while the table is written. Taken before mu.
	writing sync.Mutex
	mu      sync.Mutex
	// granted is whom to tell apart. Guarded by mu, as is all that follows.
	granted map[borglet.ID]grant
	// found is what copies listen on and were not granted.
	found map[borglet.ID][]borglet.Listener
	// ids are the user ids that copies of this borglet have theirs of, and nobody else on
	// the machine, as ranges of first and last.
	ids [][2]uint32
	// written are the ports of each range in the table; nil: nothing was written yet.
	written map[uint32][]uint32
}

// grant is what a copy may use: by its range of user ids, its ports.
type grant struct {
	first uint32
	ports []uint32
}

func tableName(borglet string) string { return "borg-" + borglet }

// newWall says why there can be none.
func newWall(name string, ids [][2]uint32) (*wall, error) {
	w := &wall{table: tableName(name), ids: ids, granted: map[borglet.ID]grant{}}
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, errors.New("there is no nft; install nftables")
	}
	// What the kernel lacks is told by a rehearsal.
	if err := nft(w.text(), "--check"); err != nil {
		return nil, err
	}
	return w, nil
}

// cover names the user ids of this borglet's copies. The next grant writes the table if
// they are others than before.
func (w *wall) cover(ids [][2]uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.ids, ids) {
		w.ids, w.written = ids, nil
	}
}

// grant lets a copy use its ports, from before its run begins. Most copies have
// nothing to be written for: by default a range has no ports.
func (w *wall) grant(id borglet.ID, first uint32, ports []uint32) error {
	w.remember(id, first, ports)
	w.mu.Lock()
	same := w.written != nil && slices.Equal(w.written[first], ports)
	w.mu.Unlock()
	if same {
		return nil
	}
	return w.write(first, ports)
}

// remember is grant for a run of an earlier borglet, whose table is still there.
func (w *wall) remember(id borglet.ID, first uint32, ports []uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted[id] = grant{first, slices.Clone(ports)}
}

// free is for a copy of which nothing is left. Its range is nobody's until the table
// is written again.
func (w *wall) free(id borglet.ID) error {
	w.mu.Lock()
	closed := len(w.found[id]) > 0
	delete(w.granted, id)
	delete(w.found, id)
	w.mu.Unlock()
	if !closed {
		return nil
	}
	// Somebody else may have the port from now on.
	return w.write(0, nil)
}

// close closes what copies were found to listen on. It writes the table even if
// nothing has changed: others may have removed it.
func (w *wall) close(found map[borglet.ID][]borglet.Listener) error {
	w.mu.Lock()
	w.found = maps.Clone(found)
	w.written = nil
	w.mu.Unlock()
	return w.write(0, nil)
}

// write brings the table up to date, unless somebody has just done so with these
// ports of a range in it.
func (w *wall) write(first uint32, ports []uint32) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	if first != 0 && w.written != nil && slices.Equal(w.written[first], ports) {
		w.mu.Unlock()
		return nil
	}
	text, written := w.text(), w.ranges()
	w.mu.Unlock()
	if err := nft(text); err != nil {
		return err
	}
	w.mu.Lock()
	w.written = written
	w.mu.Unlock()
	return nil
}

// leave removes the table if nobody is left who needs it.
func (w *wall) leave() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.granted) > 0 {
		return nil
	}
	return removeWall(w.table)
}

// ranges are the ports of each range of user ids that has some. Call with mu held.
func (w *wall) ranges() map[uint32][]uint32 {
	by := make(map[uint32][]uint32, len(w.granted))
	for _, g := range w.granted {
		if len(g.ports) > 0 {
			by[g.first] = g.ports
		}
	}
	return by
}

// text is the table in nft's language. Call with mu held.
func (w *wall) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "add table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n", w.table)
	ranges := w.ranges()
	firsts := slices.Sorted(maps.Keys(ranges))
	jumps := make([]string, 0, len(firsts))
	for _, first := range firsts {
		fmt.Fprintf(&b, "\tchain copy-%d {\n\t\tth sport { %s } accept\n\t}\n", first, joined(ranges[first]))
		jumps = append(jumps, fmt.Sprintf("%d-%d : jump copy-%d", first, first+idsPerCopy-1, first))
	}
	fmt.Fprintf(&b, "\tmap copies {\n\t\ttype uid : verdict\n\t\tflags interval\n")
	if len(jumps) > 0 {
		fmt.Fprintf(&b, "\t\telements = { %s }\n", strings.Join(jumps, ", "))
	}
	b.WriteString("\t}\n")
	first, last := ephemeralPorts()
	fmt.Fprintf(&b, `	chain tasks {
		ip saddr 127.0.0.0/8 return
		ip6 saddr ::1 return
		meta l4proto != { tcp, udp, udplite, sctp, dccp } return
		meta skuid vmap @copies
		tcp flags & (syn | ack) == syn | ack counter drop
		th sport != %d-%d counter drop
	}
	chain leaves {
		type filter hook output priority filter; policy accept;
%s	}
	chain comes {
		type filter hook input priority filter; policy accept;
		ip daddr 127.0.0.0/8 accept
		ip6 daddr ::1 accept
`, first, last, w.users())
	for _, l := range w.closed() {
		fmt.Fprintf(&b, "\t\t%s%s dport %d counter drop\n", destination(l), l.Proto, l.Addr.Port())
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

// users is the rule for the user ids of tasks: those that are given now, and those that copies
// have from before they were moved. Call with mu held.
func (w *wall) users() string {
	var ids []string
	for _, r := range w.ids {
		ids = append(ids, fmt.Sprintf("%d-%d", r[0], r[1]))
	}
	for _, first := range slices.Sorted(maps.Keys(w.ranges())) {
		if !slices.ContainsFunc(w.ids, func(r [2]uint32) bool { return r[0] <= first && first <= r[1] }) {
			ids = append(ids, fmt.Sprintf("%d-%d", first, first+idsPerCopy-1))
		}
	}
	if len(ids) == 0 {
		return ""
	}
	return fmt.Sprintf("\t\tmeta skuid { %s } jump tasks\n", strings.Join(ids, ", "))
}

// closed is what copies were found to listen on and nobody was granted since, in
// order. Call with mu held.
func (w *wall) closed() []borglet.Listener {
	granted := map[uint32]bool{}
	for _, g := range w.granted {
		for _, p := range g.ports {
			granted[p] = true
		}
	}
	var list []borglet.Listener
	for _, listens := range w.found {
		for _, l := range listens {
			if !granted[uint32(l.Addr.Port())] && !slices.Contains(list, l) {
				list = append(list, l)
			}
		}
	}
	slices.SortFunc(list, func(a, b borglet.Listener) int { return strings.Compare(a.String(), b.String()) })
	return list
}

// destination is what a rule says of whom a packet is for that a listener takes.
func destination(l borglet.Listener) string {
	addr := l.Addr.Addr()
	switch {
	case addr.IsUnspecified() && addr.Is4():
		return "meta nfproto ipv4 "
	case addr.IsUnspecified():
		return "" // also those of IPv4
	case addr.Is4():
		return fmt.Sprintf("ip daddr %s ", addr)
	}
	return fmt.Sprintf("ip6 daddr %s ", addr.WithZone(""))
}

func joined(ports []uint32) string {
	var list []string
	for _, p := range ports {
		list = append(list, fmt.Sprint(p))
	}
	return strings.Join(list, ", ")
}

// removeWall removes a table; that there is none is no error.
func removeWall(table string) error {
	if err := exec.Command("nft", "list", "table", "inet", table).Run(); err != nil {
		return nil // and nobody who could have made it
	}
	return nft(fmt.Sprintf("delete table inet %s\n", table))
}

// nft has a text of its language take effect, all of it or nothing.
func nft(text string, flags ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), nftBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nft", append(flags, "-f", "-")...)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(text), &said
	if err := cmd.Run(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
		return fmt.Errorf("change the packet filter by nft: %w: %s", err, first)
	}
	return nil
}
