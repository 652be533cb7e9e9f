package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// keeper writes a line into its volume with each start, and shows all of them.
const keeper = "echo run $BORG_ATTEMPT >> $BORG_VOLUME_DATA/log; cat {{volume.data}}/log; exec sleep 3600"

// volume is the one that keepers have.
var volume = &borgpb.VolumeName{User: "alice", Job: "web", Volume: "data"}

// keeps wants a keeper, of a task's next attempt if there was one.
func (m *machine) keeps(before *borgrpc.CopyID, diskBytes int64, script string) *borgrpc.CopyID {
	id := m.want(service, &borgpb.TaskSpec{
		Args: []string{"/bin/sh", "-c", script}, Volumes: []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: diskBytes}},
	})
	if before != nil {
		id.JobUid, id.Attempt = before.JobUid, before.Attempt+1
	}
	return id
}

// untilLog waits until a copy has written what is wanted.
func (m *machine) untilLog(id *borgrpc.CopyID, want string) {
	m.t.Helper()
	got := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = m.logOf(id); got == want {
			return
		}
	}
	m.t.Fatalf("copy %v wrote %q, want %q", id, got, want)
}

// TestVolume: what a task leaves in its volume is there for the next copy, although
// that has other user ids, the borglet was killed, and the first one is forgotten; until
// a master has it deleted, which waits for who works in it.
func TestVolume(t *testing.T) {
	alongside(t)
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			m.keepVolumes = []*borgpb.VolumeName{volume}
			first := m.keeps(nil, 1<<30, keeper)
			m.untilState(first, running)
			m.untilLog(first, "run 1\n")
			m.kill()
			m.start()
			m.untilState(first, running)
			m.stop(first, 0)
			m.untilState(first, stopped)
			m.stops, m.forget = nil, []*borgrpc.CopyID{first}
			m.poll()

			second := m.keeps(first, 1<<30, keeper)
			m.untilState(second, running)
			m.untilLog(second, "run 1\nrun 2\n")
			dir := filepath.Join(m.dir, "volumes", "alice.web.0.data")

			// One that no master names is told, and stays.
			m.keepVolumes = nil
			if r := m.poll(); len(r.GetVolumesFound()) != 1 || r.VolumesFound[0].GetName().GetVolume() != "data" || r.VolumesFound[0].GetDiskBytes() != 1<<30 {
				t.Errorf("found: %v, want the volume with 1 GiB", r.GetVolumesFound())
			}
			m.kill()
			m.start()
			if r := m.poll(); len(r.GetVolumesFound()) != 1 {
				t.Errorf("found by the next borglet: %v, want the volume", r.GetVolumesFound())
			}

			m.deleteVolumes = []*borgpb.VolumeName{volume}
			m.untilState(second, running)
			if r := m.poll(); len(r.GetVolumesGone())+len(r.GetVolumesFound()) != 0 || !exists(dir) {
				t.Errorf("gone while a task works in it: %v", r.GetVolumesGone())
			}
			m.stop(second, 0)
			m.untilState(second, stopped)
			for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
				if r := m.poll(); len(r.GetVolumesGone()) == 1 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the volume is not deleted")
				}
			}
			for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				if left, _ := filepath.Glob(filepath.Join(m.dir, "trash", "volume.*")); len(left) == 0 && !exists(dir) {
					return
				}
			}
			t.Error("something of the volume is left")
		})
	}
}

// TestVolumeOfAlloc: tasks in an alloc share the volume of the alloc, each at its own
// path, and the next ones in it find it.
func TestVolumeOfAlloc(t *testing.T) {
	m := newMachine(t, "container")
	inAlloc := func(path, script string) *borgrpc.CopyID {
		id := m.want(batch, &borgpb.TaskSpec{Args: []string{"/bin/sh", "-c", script}, Volumes: []*borgpb.Volume{{Name: "data", Path: path}}})
		d := m.desired[len(m.desired)-1]
		d.Alloc, d.AllocResources = "alice/pool/3", &borgpb.Resources{CpuMilli: 1000, MemBytes: 128 << 20}
		d.AllocVolumes = []*borgpb.Volume{{Name: "data", DiskBytes: 1 << 30}}
		return id
	}
	writes := inAlloc("/mine", "echo shared > /mine/file")
	m.untilState(writes, finished)
	reads := inAlloc("/theirs", "cat /theirs/file")
	m.untilState(reads, finished)
	if got := m.logOf(reads); got != "shared\n" {
		t.Errorf("read %q from the alloc's volume", got)
	}
	if !exists(filepath.Join(m.dir, "volumes", "alice.pool.3.data", "data", "file")) {
		t.Error("it is not the alloc's")
	}
}

// TestVolumeFull: who keeps more in a volume than it may is ended, and nothing is removed.
func TestVolumeFull(t *testing.T) {
	m := newMachine(t, "container")
	if m.poll().GetSpec().GetAttributes()["disk_limit"] == "refused" {
		t.Skip("the file system refuses what would be ended for: TestDiskLimit")
	}
	m.keepVolumes = []*borgpb.VolumeName{volume}
	fills := m.keeps(nil, 1<<20, "dd if=/dev/zero of=/data/file bs=1M count=4 2>/dev/null; sleep 3600")
	r := m.until(fills, "ended for its volume", func(r *borgpb.TaskReport) bool {
		return strings.Contains(r.GetText()+r.GetExit().GetError(), "its volume data keeps more")
	})
	if r.GetExit().GetOom() {
		t.Errorf("got %v, want no word of memory", r)
	}
	if !exists(filepath.Join(m.dir, "volumes", "alice.web.0.data", "data", "file")) {
		t.Error("the file is gone")
	}
}

// TestVolumeRefusals: a volume is not mounted over what is ours or the machine's.
func TestVolumeRefusals(t *testing.T) {
	m := newMachine(t, "container")
	for _, path := range []string{"/proc/x", "/task", "/usr/missing"} {
		id := m.want(batch, &borgpb.TaskSpec{Args: []string{"true"}, Volumes: []*borgpb.Volume{{Name: "data", Path: path, DiskBytes: 1 << 20}}})
		r := m.untilState(id, failed)
		if !slices.ContainsFunc([]string{"nothing may be mounted", "belongs to the task", "to mount on"}, func(s string) bool { return strings.Contains(r.GetExit().GetError(), s) }) {
			t.Errorf("at %s: got %v, want a refusal", path, r)
		}
	}
}
