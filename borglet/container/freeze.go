package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"borg/borglet"
)

// A copy can move an open file during a look: to a descriptor or a process that the look has
// already visited. A copy that used no processor time has moved nothing. Any other copy is
// frozen now and then for the duration of a look, sooner if something vanished in the looks
// before.

const (
	// freezeAt is the weight of unsure looks after which the next one freezes the copy: twelve
	// during which it used processor time, or three in which something vanished.
	freezeAt    = 12
	movedWeight = 4
	// freezeBound is how long the kernel may take to freeze a copy, and freezePause the time
	// between two checks. A thread that is still in a system call after that can finish it but
	// start no other.
	freezeBound = 200 * time.Millisecond
	freezePause = time.Millisecond
	// chargedLate is how late the kernel may add processor time to the cgroup's total.
	chargedLate = 20 * time.Millisecond
)

// heldPast is what earlier looks at a copy leave for the next one.
type heldPast struct {
	// Number of looks in a row with files in flight that could not be seen.
	unseen int
	// Weight of the unsure looks since the copy was last frozen.
	unsure int
}

// mustFreeze reports whether the next look freezes the copy.
func (p heldPast) mustFreeze() bool { return p.unsure >= freezeAt || p.unseen >= inFlightLooks-1 }

// groupByFreezer groups the copies that are frozen together, which are those of an alloc: they
// can send each other files. A copy that cannot be frozen is a group of its own.
func groupByFreezer(copies []*heldCopy, groups map[borglet.ID]paths) (list [][]*heldCopy) {
	at := map[string]int{}
	for _, c := range copies {
		dir := groups[c.id].freezeDir()
		i, known := at[dir]
		if dir == "" || !known {
			i = len(list)
			at[dir] = i
			list = append(list, nil)
		}
		list[i] = append(list[i], c)
	}
	return list
}

// lookAtGroup looks at the copies of a group. It freezes all of them if one must be frozen.
func (r *Runtime) lookAtGroup(w *heldWalk, together []*heldCopy, groups map[borglet.ID]paths) {
	still := false
	for _, c := range together {
		still = still || r.heldPast[c.id].mustFreeze()
		c.cpuNs = groups[c.id].cpuNs()
	}
	if group := groups[together[0].id]; still && group.freezeDir() != "" {
		release, err := group.freeze()
		if err != nil {
			r.cfg.Log.Warn("a task cannot be frozen to look at its open files", "machine", r.cfg.Name, "err", err)
		}
		defer func() {
			if err := release(); err != nil {
				r.cfg.Log.Error("a task stays frozen, because it cannot be thawed", "machine", r.cfg.Name, "err", err)
			}
		}()
		still = err == nil
	} else {
		still = false
	}
	for _, c := range together {
		c.frozen = still
		w.look(c, func() ([]int, error) {
			members, err := r.backend.members(map[borglet.ID]proc{c.id: c.run})
			return members[c.id], err
		})
	}
}

// heldResults returns what a pass found, and records in heldPast how sure that is.
func (r *Runtime) heldResults(w *heldWalk, groups map[borglet.ID]paths) map[borglet.ID]borglet.HeldOpen {
	time.Sleep(chargedLate)
	found, past := make(map[borglet.ID]borglet.HeldOpen, len(w.copies)), map[borglet.ID]heldPast{}
	for _, c := range w.copies {
		h, p := borglet.HeldOpen{Bytes: c.bytes}, r.heldPast[c.id]
		switch {
		case c.frozen:
			p.unsure = 0
		case c.moved:
			p.unsure += movedWeight
		case groups[c.id].cpuNs() != c.cpuNs:
			p.unsure++
		}
		if p.unseen++; !c.unseen {
			p.unseen = 0
		}
		switch {
		case c.failed != nil:
			h.Unmeasured = c.failed.Error()
		case p.unseen >= inFlightLooks:
			h.Unmeasured = "files that its processes sent over sockets wait there to be received"
		}
		found[c.id], past[c.id] = h, p
	}
	r.heldPast = past
	return found
}

// freezeDir returns the cgroup directory that freezes a copy and all others of its alloc;
// empty if it cannot be frozen.
func (p paths) freezeDir() string {
	dir := p["freezer"]
	if p.v2() {
		dir = p[""]
	}
	if above := filepath.Dir(dir); strings.HasPrefix(filepath.Base(above), allocPrefix) {
		return above
	}
	return dir
}

// freeze stops all processes of a copy, or of its alloc. The caller must call release to thaw
// them, also after an error.
func (p paths) freeze() (release func() error, err error) {
	file, stop, goOn, state, isStill := "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"
	if p.v2() {
		file, stop, goOn, state, isStill = "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"
	}
	dir := p.freezeDir()
	release = func() error { return thaw(dir, file, goOn) }
	if err := os.WriteFile(filepath.Join(dir, file), []byte(stop), 0o644); err != nil {
		return release, fmt.Errorf("freeze %s: %w", dir, err)
	}
	for end := time.Now().Add(freezeBound); time.Now().Before(end); time.Sleep(freezePause) {
		text, err := os.ReadFile(filepath.Join(dir, state))
		if err != nil || strings.Contains(string(text), isStill) {
			break
		}
	}
	return release, nil
}

// thaw lets the processes of a frozen cgroup go on.
func thaw(dir, file, goOn string) error {
	err := os.WriteFile(filepath.Join(dir, file), []byte(goOn), 0o644)
	if errors.Is(err, os.ErrNotExist) {
		return nil // its processes have exited
	}
	if err != nil {
		return fmt.Errorf("thaw %s: %w", dir, err)
	}
	return nil
}

// thawAll thaws what an earlier borglet froze before it was killed.
func thawAll(parent string) error {
	list, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range list {
		file, goOn := "freezer.state", "THAWED"
		if h.controllers == nil {
			file, goOn = "cgroup.freeze", "0"
		} else if !slices.Contains(h.controllers, "freezer") {
			continue
		}
		for _, dir := range cgroupTree(h, parent) {
			err = errors.Join(err, thaw(dir, file, goOn))
		}
	}
	return err
}
