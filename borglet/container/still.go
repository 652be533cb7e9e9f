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

// A copy may move what it holds while it is looked at: from one number to another that was
// read already, or to a process whose turn is over. What did no work meanwhile moved nothing.
// Others are held still now and then, for as long as a look takes: those that were seen to
// move sooner than those that only work.

const (
	// stillAt is the weight of looks that are not sure, at which a copy is held still for
	// the next: after twelve in which it worked, or three in which something was gone.
	stillAt     = 12
	movedWeight = 4
	// stillBound is how long a copy may take to stand still, and stillPause how long is
	// waited between two questions whether it does. What stands in a call of the kernel for
	// longer does no other meanwhile.
	stillBound = 200 * time.Millisecond
	stillPause = time.Millisecond
	// chargedLate is after what time the kernel has counted the work of a process.
	chargedLate = 20 * time.Millisecond
)

// heldPast is what earlier looks at a copy have told.
type heldPast struct {
	// unseen is in how many looks in turn files were on their way that could not be seen.
	unseen int
	// unsure is the weight of looks since it was held still.
	unsure int
}

// due: the next look finds the copy still.
func (p heldPast) due() bool { return p.unsure >= stillAt || p.unseen >= inFlightLooks-1 }

// heldTogether puts the copies of an alloc together: they can hand each other files.
func heldTogether(copies []*heldCopy, groups map[borglet.ID]paths) (list [][]*heldCopy) {
	at := map[string]int{}
	for _, c := range copies {
		dir := groups[c.id].holdable()
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

// lookAt looks at copies that are held still together, if it is due for one of them.
func (r *Runtime) lookAt(w *heldWalk, together []*heldCopy, groups map[borglet.ID]paths) {
	still := false
	for _, c := range together {
		still = still || r.heldPast[c.id].due()
		c.cpuNs = groups[c.id].cpuNs()
	}
	if group := groups[together[0].id]; still && group.holdable() != "" {
		release, err := group.hold()
		if err != nil {
			r.cfg.Log.Warn("a task cannot be held still to look at what it has open", "machine", r.cfg.Name, "err", err)
		}
		defer func() {
			if err := release(); err != nil {
				r.cfg.Log.Error("a task stands still and cannot be let go on", "machine", r.cfg.Name, "err", err)
			}
		}()
		still = err == nil
	} else {
		still = false
	}
	for _, c := range together {
		c.still = still
		w.look(c, func() ([]int, error) {
			members, err := r.backend.members(map[borglet.ID]proc{c.id: c.run})
			return members[c.id], err
		})
	}
}

// judgeHeld says what was found, and notes how sure that is.
func (r *Runtime) judgeHeld(w *heldWalk, groups map[borglet.ID]paths) map[borglet.ID]borglet.HeldOpen {
	time.Sleep(chargedLate)
	found, past := make(map[borglet.ID]borglet.HeldOpen, len(w.copies)), map[borglet.ID]heldPast{}
	for _, c := range w.copies {
		h, p := borglet.HeldOpen{Bytes: c.bytes}, r.heldPast[c.id]
		switch {
		case c.still:
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

// holdable is the directory by which a copy can be held still, with all in its alloc; empty:
// it cannot.
func (p paths) holdable() string {
	dir := p["freezer"]
	if p.v2() {
		dir = p[""]
	}
	if above := filepath.Dir(dir); strings.HasPrefix(filepath.Base(above), allocPrefix) {
		return above
	}
	return dir
}

// hold has all processes of a copy, or of its alloc, stand still until release is called,
// also after an error.
func (p paths) hold() (release func() error, err error) {
	file, stop, goOn, state, isStill := "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"
	if p.v2() {
		file, stop, goOn, state, isStill = "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"
	}
	dir := p.holdable()
	release = func() error { return letGo(dir, file, goOn) }
	if err := os.WriteFile(filepath.Join(dir, file), []byte(stop), 0o644); err != nil {
		return release, fmt.Errorf("hold %s still: %w", dir, err)
	}
	for end := time.Now().Add(stillBound); time.Now().Before(end); time.Sleep(stillPause) {
		text, err := os.ReadFile(filepath.Join(dir, state))
		if err != nil || strings.Contains(string(text), isStill) {
			break
		}
	}
	return release, nil
}

func letGo(dir, file, goOn string) error {
	err := os.WriteFile(filepath.Join(dir, file), []byte(goOn), 0o644)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has ended
	}
	if err != nil {
		return fmt.Errorf("let %s go on: %w", dir, err)
	}
	return nil
}

// letAllGo lets go on what a borglet that was killed held still.
func letAllGo(parent string) error {
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
			err = errors.Join(err, letGo(dir, file, goOn))
		}
	}
	return err
}
