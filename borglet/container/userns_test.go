package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// TestIDRanges: no two copies that live have the same ids, also when some of them
// are an earlier borglet's, and what was given back is not given again at once.
func TestIDRanges(t *testing.T) {
	const first = 1 << 20
	r := newIDRanges([2]uint32{first, first + 4*idsPerCopy - 1}, func(uint32) (bool, error) { return true, nil })
	copyOf := func(n uint32) borglet.ID { return borglet.ID{JobUID: "1-1-0", Index: n, Attempt: 1} }
	keep := func(id borglet.ID, first uint32) {
		if err := r.keep(id, first); err != nil {
			t.Error(err)
		}
	}
	keep(copyOf(1), first+idsPerCopy)
	// Of other ranges than ours: in nobody's way.
	keep(copyOf(8), 0)
	keep(copyOf(9), first+4*idsPerCopy)
	owner := map[uint32]uint32{first + idsPerCopy: 1}
	for _, n := range []uint32{2, 3, 4} {
		at, err := r.take(copyOf(n))
		if err != nil {
			t.Fatal(err)
		}
		if was, used := owner[at]; used || at < first || at >= first+4*idsPerCopy || (at-first)%idsPerCopy != 0 {
			t.Errorf("copy %d got %d, which is copy %d's", n, at, was)
		}
		owner[at] = n
		if again, err := r.take(copyOf(n)); err != nil || again != at {
			t.Errorf("copy %d asked again and got %d, %v", n, again, err)
		}
	}
	if at, err := r.take(copyOf(5)); err == nil {
		t.Errorf("a fifth copy of four got %d", at)
	}
	r.free(copyOf(1))
	r.free(copyOf(1))
	if at, err := r.take(copyOf(5)); err != nil || at != first+idsPerCopy {
		t.Errorf("after one was given back: %d, %v", at, err)
	}
	r.free(copyOf(2))
	r.free(copyOf(3))
	a, _ := r.take(copyOf(2))
	r.free(copyOf(2))
	if b, err := r.take(copyOf(2)); err != nil || b == a {
		t.Errorf("what was just given back is given again: %d, %v", b, err)
	}
}

// TestIDsOfTwoBorglets: borglets of one machine never give the same ids to tasks, whatever
// cell they are of. What a borglet leaves that is gone and runs nothing can be had again.
func TestIDsOfTwoBorglets(t *testing.T) {
	dir := t.TempDir()
	state := func(name string) string { return filepath.Join(dir, name, "c") }
	ids := [2]uint32{DefaultTaskIDs[0], DefaultTaskIDs[0] + 3*idsPerBlock - 1}
	open := func(name string) (*idRanges, *idClaims) {
		t.Helper()
		c, err := newIDClaims(filepath.Join(dir, "task-ids"), state(name))
		if err != nil {
			t.Fatal(err)
		}
		own, err := c.own()
		if err != nil {
			t.Fatal(err)
		}
		r := newIDRanges(ids, c.claim)
		if err := r.begin(own); err != nil {
			t.Fatal(err)
		}
		return r, c
	}
	a, _ := open("a")
	b, claimsB := open("b")
	owner := map[uint32]string{}
	take := func(r *idRanges, name string, n int) (given int) {
		for i := range n {
			first, err := r.take(borglet.ID{JobUID: "1-1-0", Index: uint32(i), Attempt: 1})
			if err != nil {
				break
			}
			if was := owner[first]; was != "" && was != name {
				t.Fatalf("%s got %d, which is %s's", name, first, was)
			}
			owner[first] = name
			given++
		}
		return given
	}
	if n := take(a, "a", 17); n != 17 {
		t.Errorf("a got %d ranges, want 17: a second block is free", n)
	}
	if n := take(b, "b", 17); n != 16 {
		t.Errorf("b got %d ranges, want the 16 of its block: all others are a's", n)
	}
	if got, want := b.users(), [][2]uint32{{ids[0] + idsPerBlock, ids[0] + 2*idsPerBlock - 1}}; len(got) != 1 || got[0] != want[0] {
		t.Errorf("b has the user ids %v, want %v", got, want)
	}
	// b is started again: what it had claimed is its own still.
	again, _ := open("b")
	if got := again.users(); len(got) != 1 || got[0] != b.users()[0] {
		t.Errorf("b had %v, and has %v after a restart", b.users(), got)
	}
	// b is killed, its containers run on.
	if err := os.MkdirAll(filepath.Join(state("b"), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	claimsB.owner.Borglet.StartTicks++
	if ok, err := claimsB.claim(ids[0]/idsPerBlock + 1); !ok || err != nil {
		t.Fatalf("b cannot claim its own block: %v, %v", ok, err)
	}
	block := ids[0]/idsPerBlock + 1
	if ok, err := a.claim(block); ok || err != nil {
		t.Errorf("a claims the ids of tasks that run: %v, %v", ok, err)
	}
	if err := os.Remove(filepath.Join(state("b"), "x")); err != nil {
		t.Fatal(err)
	}
	if ok, err := a.claim(block); !ok || err != nil {
		t.Errorf("a cannot have what nobody uses: %v, %v", ok, err)
	}
	if err := releaseIDs(filepath.Join(dir, "task-ids"), state("a")); err != nil {
		t.Fatal(err)
	}
	if c, _ := open("c"); len(c.users()) != 1 {
		t.Errorf("c got %v after a was swept", c.users())
	}
}

// TestOwnerOfUsers: a user name space is owned by the first of its ids, and the thread
// that made it is root again.
func TestOwnerOfUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	shared, err := sharedCounts(DefaultTaskIDs[0])
	if err != nil {
		t.Skipf("no user name spaces here: %v", err)
	}
	if info, err := os.Stat("/proc/self/exe"); err == nil && info.Mode().Perm()&0o001 != 0 && shared {
		t.Error("root owns the user name space of a task")
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 1 {
		t.Errorf("nobody may look into this process any more: %d %v", dumpable, err)
	}
	threads, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if !strings.Contains(string(text), "Uid:\t0\t0\t0\t0\n") {
			t.Errorf("%s is not root's:\n%s", path, text)
		}
	}
}
