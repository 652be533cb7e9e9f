package borgmaster_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// unreadStreams opens streams by a raw client that opens no window, and waits until each has
// been answered.
func (tc *testCell) unreadStreams(replica int, who string, streams int, method string, req proto.Message) {
	t := tc.t
	t.Helper()
	message, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	caller := source(t, identity.User, who)
	config := caller.ClientTLS(door.AnyMaster(caller))
	config.ServerName, config.NextProtos = "master", []string{"h2"}
	conn, err := tls.Dial("tcp", tc.addrs[replica-1], config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = conn.Write([]byte(http2.ClientPreface))
	must(err)
	framer := http2.NewFramer(conn, conn)
	must(framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	var head bytes.Buffer
	fields := hpack.NewEncoder(&head)
	must(conn.SetReadDeadline(time.Now().Add(time.Minute)))
	answered := 0
	await := func(want int) {
		t.Helper()
		for answered < want {
			f, err := framer.ReadFrame()
			must(err)
			if h, ok := f.(*http2.HeadersFrame); ok {
				if answered++; h.StreamEnded() {
					t.Fatalf("stream %d was refused, after %d of %d were answered", h.StreamID, answered, streams)
				}
			}
		}
	}
	for i := range streams {
		// Fewer than may wait for a turn at a time.
		await(i - 63)
		head.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", "master"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			must(fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
		}
		id := uint32(2*i + 1)
		must(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndHeaders: true}))
		must(framer.WriteData(id, true, append([]byte{0, 0, 0, 0, byte(len(message))}, message...)))
	}
	await(streams)
	// What a stream would build beside its first message is built by now.
	must(conn.SetReadDeadline(time.Now().Add(time.Second)))
	for {
		if _, err := framer.ReadFrame(); errors.Is(err, os.ErrDeadlineExceeded) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnreadStreamsHoldLittle has a user open as many watches as it may of 20,000 dead tasks, and
// streams of events, and read nothing, by a raw client. Each holds its first message.
func TestUnreadStreamsHoldLittle(t *testing.T) {
	tests := []struct {
		what, who, method string
		streams           int
		// What each stream takes with its goroutine and buffers.
		most int64
		req  proto.Message
	}{
		{"watches of tasks", "alice", "/borgrpc.WatchService/Watch", 256, 160 << 10, &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_TASK, User: "alice"}},
		{"watches of jobs", "bob", "/borgrpc.WatchService/Watch", 256, 160 << 10, &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_JOB}},
		{"events", "alice", "/borgrpc.MasterService/Events", 64, 512 << 10, &borgrpc.EventsRequest{Follow: true}},
	}
	tc := newCell(t, 1, nil)
	alice := tc.client(1, "alice")
	for i := range 4 {
		name := string(rune('a' + i))
		tc.must(alice, submit(t, "alice", name, 5_000))
		tc.must(alice, kill("alice", name))
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, tt := range tests {
		before := heap()
		tc.unreadStreams(1, tt.who, tt.streams, tt.method, tt.req)
		each := (heap() - before) / int64(tt.streams)
		t.Logf("%s: %d KiB each", tt.what, each>>10)
		if each > tt.most {
			t.Errorf("%d %s that nobody reads hold %d KiB each, want at most %d", tt.streams, tt.what, each>>10, tt.most>>10)
		}
	}
}
