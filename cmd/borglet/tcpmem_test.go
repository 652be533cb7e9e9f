package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
)

// queueBytes has connections to this program itself take what is written to them and read
// nothing, prints how much the kernel has taken, and keeps them.
func queueBytes() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	var held []net.Conn
	queued := 0
	for range 60 {
		out, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			break
		}
		in, err := ln.Accept()
		if err != nil {
			break
		}
		held = append(held, in, out)
		_ = in.(*net.TCPConn).SetReadBuffer(16 << 20)
		_ = out.(*net.TCPConn).SetWriteBuffer(16 << 20)
		for {
			_ = out.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			n, err := out.Write(make([]byte, 64<<10))
			queued += n
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
		}
	}
	fmt.Printf("queued %d MiB in %d connections\n", queued>>20, len(held)/2)
	for {
		time.Sleep(time.Hour)
	}
}

// TestBuffersOfConnections: what a task has written to connections that nobody reads is memory of
// the machine, and bounded by the task's memory.
func TestBuffersOfConnections(t *testing.T) {
	m := newMachine(t, "container")
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	const limit = 64 << 20
	id := m.want(batch, &borgpb.TaskSpec{
		Args: []string{"/opt/take", takeArgument, "connections"}, Mounts: []*borgpb.Mount{{Source: self, Path: "/opt/take"}},
		Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: limit},
	})
	m.untilState(id, running)
	m.until(id, "queued", func(r *borgpb.TaskReport) bool {
		return r.GetExit().GetOom() || strings.Contains(m.logOf(id), "queued ")
	})
	t.Logf("the task says: %s", m.logOf(id))
	if m.untilState(id, running).GetExit().GetOom() {
		return
	}
	if got := m.groupNumber(id, "memory", "memory.kmem.tcp.limit_in_bytes", "memory.max"); got != limit {
		t.Errorf("the limit is %d, want %d", got, limit)
	}
	// The kernel charges in pages, and a little beyond the limit before it notices.
	if got := m.groupNumber(id, "memory", "memory.kmem.tcp.usage_in_bytes", "memory.current"); got > limit*5/4 {
		t.Errorf("the kernel holds %d MiB for its connections, want at most %d", got>>20, limit>>20)
	}
}
