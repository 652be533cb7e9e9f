package container

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// aGroup says that one copy is in a cgroup.
type aGroup struct {
	backend
	id    borglet.ID
	group paths
}

func (g *aGroup) members(map[borglet.ID]proc) (map[borglet.ID][]int, error) {
	return map[borglet.ID][]int{g.id: g.group.pids()}, nil
}

func (g *aGroup) cgroups(map[borglet.ID]proc) map[borglet.ID]paths {
	return map[borglet.ID]paths{g.id: g.group}
}

// inGroup runs a shell script in a cgroup of a test, with a removed file of 1 MiB as its
// open file 3.
func inGroup(t *testing.T, version, script string) (r *Runtime, dir string, id borglet.ID) {
	t.Helper()
	if err := cgroupsUsable(); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs root and cgroups: %v", err)
	}
	list, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	if version == "v2" {
		// A tree of version 2 beside those of version 1 can hold still and count what is used.
		if list = slices.DeleteFunc(list, func(h hierarchy) bool { return h.controllers != nil }); len(list) == 0 {
			t.Skip("no cgroups of version 2 are mounted here")
		}
	}
	parent := cgroupParent(fmt.Sprintf("still-%d", os.Getpid()))
	id = borglet.ID{JobUID: "1-2-0", Attempt: 1}
	at := filepath.Join(parent, id.String())
	dir = t.TempDir()
	f, err := os.Create(filepath.Join(dir, "removed"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "read line; "+script)
	cmd.ExtraFiles = []*os.File{f}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = thawAll(parent)
		if err := emptyCgroup(at); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		removeCgroup(parent)
		removeCgroup(cgroupTop)
	})
	for _, h := range list {
		if err := os.MkdirAll(filepath.Join(h.mount, at), 0o755); err != nil {
			t.Fatal(err)
		}
		// A cpuset takes nobody before it is set up; it is not needed.
		_ = os.WriteFile(filepath.Join(h.mount, at, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0o644)
	}
	if _, err := fmt.Fprintln(in, "go"); err != nil {
		t.Fatal(err)
	}
	task, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	r = &Runtime{
		cfg: Config{Log: slog.New(slog.DiscardHandler)}, backend: &aGroup{id: id, group: pathsIn(list, at)},
		runs: map[borglet.ID]*run{id: {id: id, task: task}},
	}
	return r, dir, id
}

// versions are those of cgroups: what the machine has, and the other one beside it.
var versions = []string{"", "v2"}

// TestHeldStill: what moves the only way to a file about is looked at while it stands
// still, and goes on afterwards.
func TestHeldStill(t *testing.T) {
	for name, script := range map[string]string{
		"numbers":   "while :; do exec 4<&3 3<&-; exec 3<&4 4<&-; done",
		"processes": `export HOP='/bin/sh -c "$HOP" &'; /bin/sh -c "$HOP"; exec 3<&-; sleep 3600`,
	} {
		for _, version := range versions {
			t.Run(name+version, func(t *testing.T) { holdStill(t, version, script) })
		}
	}
}

func holdStill(t *testing.T, version, script string) {
	r, dir, id := inGroup(t, version, script)
	group := r.backend.(*aGroup).group
	if group.freezeDir() == "" {
		t.Skip("no cgroup can be held still here")
	}
	for range 50 {
		r.heldPast = map[borglet.ID]heldPast{id: {unsure: freezeAt}}
		held := r.HeldOpen(dir, map[borglet.ID][]string{id: {}})[id]
		if held.Bytes[""] < 1<<20 || held.Unmeasured != "" {
			t.Fatalf("held open: %v, want the file", held)
		}
		if p := r.heldPast[id]; p != (heldPast{}) {
			t.Fatalf("after a look while it stood still: %+v, want nothing unsure", p)
		}
	}
	before := group.cpuNs()
	for began := time.Now(); group.cpuNs() == before; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("it does not go on")
		}
	}
	// It is seen to move or to work, until the next look has to be sure. It does neither in a
	// look in which the machine is too busy to let it run.
	for looks := 0; !r.heldPast[id].mustFreeze(); looks++ {
		if looks > 100*freezeAt {
			t.Fatalf("after %d looks: %+v, want held still by now", looks, r.heldPast[id])
		}
		r.HeldOpen(dir, map[borglet.ID][]string{id: {}})
	}
}

// TestIdleIsSure: what does nothing is never held still.
func TestIdleIsSure(t *testing.T) {
	r, dir, id := inGroup(t, "", "exec sleep 3600")
	group := r.backend.(*aGroup).group
	for before := int64(-1); before != group.cpuNs(); time.Sleep(100 * time.Millisecond) {
		before = group.cpuNs()
	}
	for range 5 {
		if held := r.HeldOpen(dir, map[borglet.ID][]string{id: {}})[id]; held.Bytes[""] < 1<<20 {
			t.Errorf("held open: %v, want the file", held)
		}
	}
	if p := r.heldPast[id]; p.unsure >= movedWeight {
		t.Errorf("after five looks: %+v, want all of them sure", p)
	}
}

// TestLetAllGo: a borglet lets go on what an earlier one held when it was killed.
func TestLetAllGo(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) { letGoAgain(t, version) })
	}
}

func letGoAgain(t *testing.T, version string) {
	r, _, _ := inGroup(t, version, "while :; do :; done")
	group := r.backend.(*aGroup).group
	if group.freezeDir() == "" {
		t.Skip("no cgroup can be held still here")
	}
	if _, err := group.freeze(); err != nil {
		t.Fatal(err)
	}
	before := group.cpuNs()
	time.Sleep(50 * time.Millisecond)
	if after := group.cpuNs(); after != before {
		t.Errorf("it worked for %d ns while it was held still", after-before)
	}
	if err := thawAll(cgroupParent(fmt.Sprintf("still-%d", os.Getpid()))); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); group.cpuNs() == before; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("it does not go on")
		}
	}
}

// TestWaitingFiles: all that waits in the sockets of a copy that stands still is seen, by
// whatever mark of its own, and stays there.
func TestWaitingFiles(t *testing.T) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
		for _, still := range []bool{false, true} {
			for _, mark := range []int{-1, 7} {
				t.Run(fmt.Sprintf("%d %v %d", kind, still, mark), func(t *testing.T) { waitInSocket(t, kind, still, mark) })
			}
		}
	}
}

func waitInSocket(t *testing.T, kind int, still bool, mark int) {
	dir := t.TempDir()
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	for i := range 3 {
		f, err := os.Create(filepath.Join(dir, "file"))
		if err == nil {
			_, err = f.Write(make([]byte, 1<<20))
		}
		if err == nil {
			err = os.Remove(f.Name())
		}
		if err == nil {
			err = unix.Sendmsg(pair[0], make([]byte, 1+i*100), unix.UnixRights(int(f.Fd()), int(f.Fd())), nil, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if err := unix.SetsockoptInt(pair[1], unix.SOL_SOCKET, unix.SO_PEEK_OFF, mark); err != nil {
		t.Fatal(err)
	}
	w, err := newHeldWalk(dir)
	if err != nil {
		t.Fatal(err)
	}
	w.current = &heldCopy{bytes: map[string]int64{}, frozen: still}
	w.peek(pair[1], waitingFiles(fmt.Sprintf("/proc/self/fdinfo/%d", pair[1])), 0)
	want := int64(3)
	if !still {
		if want = 1; mark >= 0 {
			want = 0
		}
	}
	if got := w.current.bytes[""] >> 20; got != want || w.current.unseen == still {
		t.Errorf("%d MiB, unseen %v: want %d MiB, unseen %v", got, w.current.unseen, want, !still)
	}
	if got, err := unix.GetsockoptInt(pair[1], unix.SOL_SOCKET, unix.SO_PEEK_OFF); got != mark || err != nil {
		t.Errorf("its mark is at %d, %v, want %d as before", got, err, mark)
	}
	for i := range 3 {
		oob := make([]byte, unix.CmsgSpace(8))
		n, oobn, _, _, err := unix.Recvmsg(pair[1], make([]byte, 1+i*100), oob, unix.MSG_CMSG_CLOEXEC)
		if n != 1+i*100 || oobn != len(oob) || err != nil {
			t.Errorf("message %d: %d bytes and %d of control, %v; want it whole", i, n, oobn, err)
		}
		messages, err := unix.ParseSocketControlMessage(oob)
		if err != nil {
			t.Fatal(err)
		}
		files, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			unix.Close(f)
		}
	}
}

// TestChargedToItsOwner: a file that somebody sent to another copy counts for the sender.
func TestChargedToItsOwner(t *testing.T) {
	a := &heldCopy{id: borglet.ID{JobUID: "1-1-0"}, uids: [2]uint32{0x7000_0000, 0x7000_ffff}}
	b := &heldCopy{id: borglet.ID{JobUID: "1-2-0"}, uids: [2]uint32{0x7001_0000, 0x7001_ffff}}
	relaxed := &heldCopy{id: borglet.ID{JobUID: "1-3-0"}}
	w := &heldWalk{copies: []*heldCopy{a, b, relaxed}}
	for _, c := range []struct {
		turn *heldCopy
		uid  uint32
		want *heldCopy
	}{
		{a, 0x7000_0005, a}, {a, 0x7001_ffff, b}, {b, 0x7000_0000, a},
		{a, 0x7002_0000, a}, // its owner has ended
		{relaxed, 0x7000_0000, relaxed},
	} {
		if w.current = c.turn; w.charged(c.uid) != c.want {
			t.Errorf("open in %s, of %#x: counts for %s, want %s", c.turn.id, c.uid, w.charged(c.uid).id, c.want.id)
		}
	}
}

// TestRemovedDirectoryHeld: a directory without a name takes its room as long as somebody
// works in it.
func TestRemovedDirectoryHeld(t *testing.T) {
	dir := t.TempDir()
	removed := filepath.Join(dir, "removed")
	if err := os.Mkdir(removed, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "3600")
	cmd.Dir = removed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if blocks, err := statBlocks(removed); err != nil || blocks == 0 {
		t.Skipf("directories take no room here: %d, %v", blocks, err)
	}
	if err := os.Remove(removed); err != nil {
		t.Fatal(err)
	}
	w, err := newHeldWalk(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := &heldCopy{bytes: map[string]int64{}}
	w.look(c, func() ([]int, error) { return []int{cmd.Process.Pid}, nil })
	if c.bytes[""] == 0 || c.failed != nil {
		t.Errorf("%v, %v: want the room of the directory", c.bytes, c.failed)
	}
}
