package door

import (
	"bytes"
	"io"
	mathrand "math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// idleFlood is a flood of frames that carry no message.
type idleFlood struct {
	name string
	// Sends what the flood needs before; nil for nothing.
	before func(*rawConn) error
	// A frame of it, which is sent again and again.
	frame []byte
}

// emptyMethodHead is the head of a call that gRPC refuses before it asks the door.
func emptyMethodHead() []byte {
	var head bytes.Buffer
	h := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", mutate}, {":authority", "master"}} {
		_ = h.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return head.Bytes()
}

// idleFloods are all kinds of frames that carry no message.
func idleFloods() []idleFlood {
	openCall := func(c *rawConn) error { return c.head(mutate) }
	openHead := func(c *rawConn) error {
		return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: emptyMethodHead()})
	}
	openMessage := func(c *rawConn) error {
		if err := openCall(c); err != nil {
			return err
		}
		return c.framer.WriteData(1, false, message(mutateBytes, 0))
	}
	window := []byte{0, 0, 0, 4, 0, 0, 255, 255}
	return []idleFlood{
		{"settings", nil, frame(4, 0, 0, []byte{0, 3, 0, 0, 0, 9})},
		{"settings with thousands of windows", nil, frame(4, 0, 0, bytes.Repeat(window[2:], 2*1365))},
		{"empty settings", nil, frame(4, 0, 0, nil)},
		{"acknowledged settings", nil, frame(4, 1, 0, nil)},
		{"pings", nil, frame(6, 0, 0, make([]byte, 8))},
		{"acknowledged pings", nil, frame(6, 1, 0, make([]byte, 8))},
		{"windows of the connection", nil, frame(8, 0, 0, []byte{0, 0, 0, 1})},
		{"windows of a call", openCall, frame(8, 0, 1, []byte{0, 0, 0, 1})},
		{"windows of no call", nil, frame(8, 0, 77, []byte{0, 0, 0, 1})},
		{"resets of one call", openCall, frame(3, 0, 1, []byte{0, 0, 0, 8})},
		{"priorities", nil, frame(2, 0, 5, make([]byte, 5))},
		{"goodbyes", nil, frame(7, 0, 0, make([]byte, 8))},
		{"frames of an unknown kind", nil, frame(0x42, 0, 1, make([]byte, 16<<10))},
		{"empty data of a call", openCall, frame(0, 0, 1, nil)},
		{"padded data of a call", openCall, frame(0, flagPadded, 1, []byte{8, 0, 0, 0, 0, 0, 0, 0, 0})},
		{"a message byte by byte", openMessage, frame(0, 0, 1, []byte{0})},
		{"a message byte by byte, each with padding", openMessage, frame(0, flagPadded, 1, append([]byte{smallDataBytes - 1}, make([]byte, smallDataBytes)...))},
		{"padding alone", openCall, frame(0, flagPadded, 1, append([]byte{smallDataBytes}, make([]byte, smallDataBytes)...))},
		{"empty data of no call", nil, frame(0, 0, 77, nil)},
		{"empty continuations", openHead, frame(9, 0, 1, nil)},
	}
}

// flooded sends a flood until the server closes the connection, and reports whether it does
// before most bytes.
func (c *rawConn) flooded(f idleFlood, most int) bool {
	go func() { _, _ = io.Copy(io.Discard, c.conn) }()
	if f.before != nil && f.before(c) != nil {
		return true
	}
	many := bytes.Repeat(f.frame, max(16<<10/len(f.frame), 1))
	for sent := 0; sent < most; sent += len(many) {
		if _, err := c.conn.Write(many); err != nil {
			return true
		}
	}
	return false
}

// TestIdleFloodsAreCutOff: a user and a task send frames of each kind that carry no message, as
// fast as they can. Their connections are closed, and another user is served.
func TestIdleFloodsAreCutOff(t *testing.T) {
	c := newWeighedCell(t)
	// What the sockets of both ends may hold, and more.
	const most = 64 << 20
	bob := c.dial(c.source(identity.User, "bob"))
	for i, f := range idleFloods() {
		who := []*identity.Source{c.alice, c.source(identity.Task, "alice/web/0")}[i%2]
		if raw := dialRaw(t, c.addr, who, c.master); !raw.flooded(f, most) {
			t.Errorf("%s of %s: the connection is still open after %d bytes", f.name, who.Name(), most)
		}
	}
	if err := bob.Invoke(t.Context(), mutate, &borgrpc.MutateRequest{Op: &borgpb.Op{}}, new(borgrpc.MutateResponse)); err != nil {
		t.Errorf("a call of another user: %v", err)
	}
}

// TestHeadsThatGRPCRefusesAreCutOff is the same for heads of calls that never reach the door.
func TestHeadsThatGRPCRefusesAreCutOff(t *testing.T) {
	c := newWeighedCell(t)
	raw := dialRaw(t, c.addr, c.alice, c.master)
	go func() { _, _ = io.Copy(io.Discard, raw.conn) }()
	head := emptyMethodHead()
	for n := range uint32(1 << 18) {
		if raw.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: head, EndHeaders: true, EndStream: true}) != nil {
			return
		}
	}
	t.Error("the connection is still open")
}

// TestCallsMayBeGivenUp: a client may make any number of calls, one after the other, and give
// each up, and may open the window by each frame that comes.
func TestCallsMayBeGivenUp(t *testing.T) {
	for seed := range uint64(4) {
		r := mathrand.New(mathrand.NewPCG(seed, 7))
		f := newInflow(newCrowd(), newPresentUser(""))
		f.preface = 0
		f.rest = func(time.Duration) { t.Errorf("seed %d: the user rests", seed) }
		feed := func(b []byte) {
			if err := f.feed(b); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		for n := range uint32(2 * maxIdleFrames) {
			stream := 2*n + 1
			feed(frame(1, 0, stream, make([]byte, r.IntN(500))))
			feed(frame(9, 4, stream, make([]byte, r.IntN(500))))
			f.called(plainRequestBytes)
			call := f.begin(plainRequestBytes, new(atomic.Int32))
			feed(frame(0, 1, stream, message(3, 3)))
			for range r.IntN(20) {
				f.out.feed(frame(0, 0, stream, message(1, 1)))
				feed(frame(8, 0, stream, make([]byte, 4)))
				feed(frame(8, 0, 0, make([]byte, 4)))
			}
			feed(frame(3, 0, stream, make([]byte, 4)))
			call.end()
		}
	}
}

// TestIdleFramesAreForgotten: a connection may always send as many in a second as are forgotten,
// and no burst above the bound. A user over the bound rests.
func TestIdleFramesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ping := frame(6, 0, 0, make([]byte, 8))
		conn := func(u *presentUser) *inflow {
			f := newInflow(newCrowd(), u)
			f.preface = 0
			return f
		}
		f := conn(newPresentUser(""))
		for n := range 100 * idleFramesPerS {
			if err := f.feed(ping); err != nil {
				t.Fatalf("ping %d: %v", n, err)
			}
			time.Sleep(time.Second / idleFramesPerS)
		}
		sent := 0
		for ; f.feed(ping) == nil; sent++ {
		}
		if sent > 2*maxIdleFrames+framesOfConn {
			t.Errorf("%d pings at once were taken", sent)
		}
		u := newPresentUser("")
		rested := 0
		for range 2 * maxIdleFramesOfUser / maxIdleFrames {
			f := conn(u)
			f.rest = func(time.Duration) { rested++ }
			for range maxIdleFrames {
				_ = f.feed(ping)
			}
		}
		if rested == 0 {
			t.Error("a user sends on many connections and none rests")
		}
	})
}
