package main

import (
	"errors"
	"fmt"
	"io"
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
	alongside(t)
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			if m.poll().GetSpec().GetAttributes()["disk_limit"] == "refused" {
				t.Skip("the file system refuses what would be ended for: TestDiskLimit")
			}
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
// runs and its borglet is killed again and again; what is kept is read as one stream,
// as it was written, and what is missing is told.
func TestLogFlood(t *testing.T) {
	const keep, lines = 4 << 20, 6_000_000
	m := newMachine(t, "container", "--log-keep", "4MiB")
	flood := m.want(service, &borgpb.TaskSpec{
		Args:      []string{"/bin/sh", "-c", fmt.Sprintf("seq -f '%%015.0f' 0 %d; sleep 3600", lines-1)},
		Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 64 << 20},
	})
	path := m.file(flood, "stdout")
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	for part := range int64(4) {
		m.until(flood, "writing", func(*borgpb.TaskReport) bool { return size() >= (1+4*part)<<20 })
		m.kill()
		m.start()
	}
	m.until(flood, "done writing", func(*borgpb.TaskReport) bool { return size() == 16*lines })
	m.until(flood, "in pieces", func(*borgpb.TaskReport) bool {
		pieces, err := filepath.Glob(path + ".*.gz")
		return err == nil && len(pieces) > 0
	})
	m.until(flood, "within its bound", func(*borgpb.TaskReport) bool { return outputOf(t, path) <= keep+keep/8 })
	stream, err := m.client.ReadLog(t.Context(), &borgrpc.ReadLogRequest{Copy: flood, Stream: borgrpc.LogStream_LOG_STREAM_STDOUT, Times: true})
	if err != nil {
		t.Fatal(err)
	}
	at, lost := int64(0), int64(0)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		at, lost = at+resp.GetLostBytes(), lost+resp.GetLostBytes()
		if want := countedLines(at, len(resp.GetData())); string(resp.GetData()) != want {
			t.Fatalf("from byte %d the log is %q, want %q", at, resp.GetData(), want)
		}
		at += int64(len(resp.GetData()))
	}
	if at != 16*lines || lost == 0 || lost == at {
		t.Errorf("%d bytes of %d were told of, %d as lost", at, 16*lines, lost)
	}
	if r := m.untilState(flood, running); r.GetRestarts() != 0 {
		t.Errorf("the flood: %v, want left alone", r)
	}
}

// countedLines returns n bytes from an offset on of the lines 000000000000000,
// 000000000000001, and so on.
func countedLines(offset int64, n int) string {
	var b strings.Builder
	for line := offset / 16; int64(b.Len()) < offset%16+int64(n); line++ {
		fmt.Fprintf(&b, "%015d\n", line)
	}
	return b.String()[offset%16:][:n]
}

// outputOf is what a stream takes of the disk, with its pieces.
func outputOf(t *testing.T, path string) int64 {
	t.Helper()
	pieces, err := filepath.Glob(path + ".*")
	if err != nil {
		t.Fatal(err)
	}
	sum := diskOf(t, path)
	for _, piece := range pieces {
		info, err := os.Stat(piece)
		if err != nil {
			// It made room for another one.
			continue
		}
		sum += info.Size()
	}
	return sum
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
