package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestDiskFiller: who keeps more on disk than his limit is ended and told so, and
// his files go; a quiet neighbour does not notice.
func TestDiskFiller(t *testing.T) {
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			quiet := m.service("sleep", "3600")
			pid := m.untilState(quiet, running).GetPid()
			limit := &borgpb.Resources{CpuMilli: 1000, MemBytes: 256 << 20, DiskBytes: 32 << 20}
			filler := m.want(batch, &borgpb.TaskSpec{Args: []string{"/bin/sh", "-c", "head -c 134217728 /dev/zero > file; sleep 3600"}, Resources: limit})
			r := m.untilState(filler, failed)
			if !strings.Contains(r.GetText(), "more on disk than its limit") || !strings.Contains(r.GetText(), "32.0 MiB") || r.GetExit().GetOom() {
				t.Errorf("the filler: got %v, want ended for its disk limit", r)
			}
			m.until(filler, "without its files", func(*borgpb.TaskReport) bool { return !exists(m.file(filler, "task/file")) })
			// A service starts again with nothing.
			service := m.want(service, &borgpb.TaskSpec{
				Args:      []string{"/bin/sh", "-c", "ls | wc -l; head -c 134217728 /dev/zero > file; sleep 3600"},
				Resources: limit,
			})
			m.until(service, "restarted", func(r *borgpb.TaskReport) bool { return r.GetRestarts() > 0 && r.GetState() == int32(running) })
			for deadline := time.Now().Add(patience); !strings.HasPrefix(m.logOf(service), "0\n0\n"); time.Sleep(50 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("it found files of its last run: %q", m.logOf(service))
				}
			}
			if r := m.untilState(quiet, running); r.GetPid() != pid || r.GetRestarts() != 0 {
				t.Errorf("the neighbour: %v, want as it was", r)
			}
		})
	}
}

// TestLogFlood: a task that writes without end keeps its bound on the disk while it
// runs, and what it wrote last can be read.
func TestLogFlood(t *testing.T) {
	const keep = 4 << 20
	m := newMachine(t, "container", "--log-keep", "4MiB")
	flood := m.want(service, &borgpb.TaskSpec{
		Args:      []string{"/bin/sh", "-c", "head -c 268435456 /dev/zero | tr '\\0' x; echo; echo the end; sleep 3600"},
		Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 64 << 20},
	})
	path := m.file(flood, "stdout")
	m.until(flood, "done writing", func(*borgpb.TaskReport) bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() > 256<<20
	})
	m.until(flood, "within its bound", func(*borgpb.TaskReport) bool { return diskOf(t, path) <= keep+keep/4 })
	stream, err := m.client.ReadLog(t.Context(), &borgrpc.ReadLogRequest{Copy: flood, TailBytes: 9})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || string(resp.GetData()) != "the end\n" && string(resp.GetData()) != "\nthe end\n" {
		t.Errorf("the end of the log: %q, %v", resp.GetData(), err)
	}
	if r := m.untilState(flood, running); r.GetRestarts() != 0 {
		t.Errorf("the flood: %v, want left alone", r)
	}
}

// diskOf is what a file takes of the disk.
func diskOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Clean(path))
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
