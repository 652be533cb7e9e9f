package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"borg/borglet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// soakTasks is how many tasks a soak starts: those of BORG_SOAK, or a few.
func soakTasks(t *testing.T) int {
	text := os.Getenv("BORG_SOAK")
	if text == "" {
		return 60
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("BORG_SOAK=%s: want a number of tasks", text)
	}
	return n
}

// The borglet is killed once in each round, while its tasks start: in at most so many
// rounds, of at least so many tasks.
const soakRounds, soakLeast = 100, 20

// TestSoak starts and forgets tasks, with the borglet killed in each round. Every end
// is told with its code, nobody runs twice, and nothing is left.
func TestSoak(t *testing.T) {
	m := newMachine(t, "container")
	all := soakTasks(t)
	round := max(all/soakRounds, soakLeast)
	var first atRest
	for done := 0; done < all; done += round {
		m.soakRound(done, round)
		if done == 0 {
			first = m.atRest()
		}
		if n := done/round + 1; n%10 == 0 || done+round >= all {
			t.Logf("%d tasks have come and gone, the borglet was killed %d times", done+round, n)
		}
	}
	m.left(first)
}

// atRest is what a borglet without copies takes of its machine.
type atRest struct{ openFiles, memMiB int }

func (m *machine) atRest() atRest {
	m.t.Helper()
	return atRest{openFiles: m.openFiles(), memMiB: m.memMiB()}
}

// memMiB is the memory of the borglet itself, without its program.
func (m *machine) memMiB() int {
	m.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
	if err != nil {
		m.t.Fatal(err)
	}
	kib := 0
	if _, err := fmt.Sscan(string(text[strings.Index(string(text), "RssAnon:")+len("RssAnon:"):]), &kib); err != nil {
		m.t.Fatal(err)
	}
	return kib >> 10
}

// soakRound has tasks end in every way while the borglet is killed among them.
func (m *machine) soakRound(first, tasks int) {
	m.t.Helper()
	var ends, stays []*borgrpc.CopyID
	for i := range tasks / 2 {
		ends = append(ends, m.batch("/bin/sh", "-c", fmt.Sprintf("echo once; exit %d", i%100)))
		stays = append(stays, m.service("sleep", "3600"))
	}
	m.poll()
	time.Sleep(time.Duration(first%7) * 20 * time.Millisecond)
	m.kill()
	m.start()
	for i, id := range ends {
		want := finished
		if i%100 > 0 {
			want = failed
		}
		if r := m.untilState(id, want); r.GetExit().GetCode() != int32(i%100) || r.GetExit().GetUnknown() {
			m.t.Errorf("exit of %v: %v, want code %d", id, r, i%100)
		}
		if got := m.logOf(id); got != "once\n" {
			m.t.Errorf("%v said %q, want to have run once", id, got)
		}
	}
	for _, id := range stays {
		m.untilState(id, running)
		m.stop(id, 0)
	}
	for _, id := range stays {
		m.untilState(id, stopped)
	}
	m.desired, m.stops, m.forget = nil, nil, append(ends, stays...)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		left := m.poll().GetTasks()
		if len(left) == 0 {
			break
		}
		// One that was forgotten in an earlier round, and its borglet killed before it
		// had removed it, is told of again: as one that has ended.
		for _, r := range left {
			switch borgpb.AttemptState(r.GetState()) {
			case finished, failed, stopped:
			default:
				m.t.Fatalf("a copy that has ended is told of as %v", r)
			}
			m.forget = append(m.forget, &borgrpc.CopyID{JobUid: r.GetJobUid(), Index: r.GetIndex(), Attempt: r.GetAttempt()})
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("forgotten copies are still told of: %v", left)
		}
	}
	// And it is forgotten in the next round, from its first poll on.
}

// shims lists the shims of this borglet.
func (m *machine) shims() (found []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(text), "borglet\x00shim\x00"+m.dir) {
			found = append(found, filepath.Dir(path))
		}
	}
	return found
}

// openFiles counts those of the borglet.
func (m *machine) openFiles() int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.cmd.Process.Pid))
	if err != nil {
		m.t.Fatal(err)
	}
	return len(entries)
}

// left looks for what forgotten copies may have left, until there is nothing; first is
// what a borglet takes that is at rest, and a little may come and go.
func (m *machine) left(first atRest) {
	m.t.Helper()
	const comeAndGo, memMiB = 8, 32
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		left = nil
		for _, pattern := range []string{
			filepath.Join(m.dir, "tasks", "*"), filepath.Join(m.dir, "trash", "*"), filepath.Join(m.runDir, "c", "*"),
			filepath.Join(borglet.PapersDir(m.runDir), "*"),
			"/sys/fs/cgroup/*/borg/" + m.name + "/1-*", "/sys/fs/cgroup/borg/" + m.name + "/1-*",
		} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				m.t.Fatal(err)
			}
			left = append(left, found...)
		}
		left = append(left, m.shims()...)
		now := m.atRest()
		if now.openFiles > first.openFiles+comeAndGo || now.memMiB > first.memMiB+memMiB {
			left = append(left, fmt.Sprintf("the borglet has %+v, after the first round %+v", now, first))
		}
		if mounts := mountsBelow(m.t, m.dir); mounts != "" {
			left = append(left, mounts)
		}
		if len(left) == 0 {
			m.t.Logf("nothing is left; the borglet has %+v, after the first round %+v", now, first)
			return
		}
	}
	m.t.Errorf("left: %q", left)
}
