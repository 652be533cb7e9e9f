package door

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const mutate = "/borgrpc.MasterService/Mutate"

// frame writes one HTTP/2 frame.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// message writes a gRPC message of n bytes that says it has so many.
func message(says uint32, n int) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, says), make([]byte, n)...)
}

// TestInflowFollowsFrames feeds random streams in random pieces: what is counted is
// what the frames carry, wherever the pieces end, and nothing of it is changed.
func TestInflowFollowsFrames(t *testing.T) {
	for seed := range uint64(500) {
		r := mathrand.New(mathrand.NewPCG(seed, 1))
		c := newCrowd()
		user := newPresentUser("")
		f := newInflow(c, user)
		f.hangUp = func() { t.Errorf("seed %d: hung up", seed) }
		user.flows[f] = true
		wire := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		want := map[uint32]int64{}
		begun := map[uint32]*receiving{}
		// Where the head of each stream ends on the wire.
		heads := map[int]uint32{}
		var rest [8][]byte
		for range 60 {
			stream := uint32(2*r.IntN(len(rest)) + 1)
			switch i := stream / 2; {
			case want[stream] == 0 && rest[i] == nil:
				wire = append(wire, frame(1, 4, stream, make([]byte, r.IntN(50)))...)
				heads[len(wire)] = stream
				for range 1 + r.IntN(3) {
					n := r.IntN(300)
					rest[i] = append(rest[i], message(uint32(n), n)...)
				}
			case len(rest[i]) > 0:
				n := 1 + r.IntN(len(rest[i]))
				want[stream] += int64(n)
				if r.IntN(3) == 0 {
					pad := r.IntN(20)
					padded := append([]byte{byte(pad)}, rest[i][:n]...)
					wire = append(wire, frame(0, flagPadded, stream, append(padded, make([]byte, pad)...))...)
				} else {
					wire = append(wire, frame(0, 0, stream, rest[i][:n])...)
				}
				rest[i] = rest[i][n:]
			default:
				// Of no call, and of no stream: a ping, a window.
				wire = append(wire, frame(6, 0, 0, make([]byte, 8))...)
				wire = append(wire, frame(0, 0, 99, make([]byte, r.IntN(40)))...)
			}
		}
		sent := bytes.Clone(wire)
		for at := 0; at < len(wire); {
			end := min(len(wire), at+1+r.IntN(60))
			for head := range heads {
				// gRPC reads up to the end of a head before it says that a call begins.
				if head > at && head < end {
					end = head
				}
			}
			if err := f.feed(wire[at:end]); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			at = end
			if stream, ok := heads[at]; ok {
				begun[stream] = f.begin(1000, new(atomic.Int32))
			}
		}
		if !bytes.Equal(wire, sent) {
			t.Errorf("seed %d: what was read was changed", seed)
		}
		var all int64
		for stream, n := range want {
			if got := begun[stream].held.Load(); got != n {
				t.Errorf("seed %d: %d bytes of stream %d are held, want %d", seed, got, stream, n)
			}
			if partial := len(rest[stream/2]) > 0 && (begun[stream].left > 0 || begun[stream].headN > 0); partial != (begun[stream].late != nil) {
				t.Errorf("seed %d: stream %d is partial: %t, and has a timer: %t", seed, stream, partial, !partial)
			}
			all += n
		}
		if f.held.Load() != all || user.receiving.Load() != all || c.receiving.Load() != all {
			t.Errorf("seed %d: %d, %d, %d bytes are held, want %d", seed, f.held.Load(), user.receiving.Load(), c.receiving.Load(), all)
		}
		for _, one := range begun {
			one.end()
			one.add(7) // What comes behind the end of a call is nobody's.
		}
		if f.held.Load() != 0 || user.receiving.Load() != 0 || c.receiving.Load() != 0 {
			t.Errorf("seed %d: when all calls have ended, %d, %d, %d bytes are held", seed, f.held.Load(), user.receiving.Load(), c.receiving.Load())
		}
	}
}

// TestLargeMessageIsRefused holds that a message over the limit of its call becomes one
// that gRPC refuses, or closes the connection where its length comes in pieces.
func TestLargeMessageIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		pieces [][]byte
		closes bool
		says   uint32
	}{
		{"within", [][]byte{message(100, 100)}, false, 100},
		{"over", [][]byte{message(101, 50)}, false, 1<<32 - 1},
		{"over in pieces", [][]byte{message(101, 0)[:3], message(101, 50)[3:]}, true, 0},
		{"over in two frames of one byte and the rest", [][]byte{{0}, message(101, 50)[1:]}, false, 1<<32 - 1},
	} {
		f := newInflow(newCrowd(), newPresentUser(""))
		f.preface, f.hangUp = 0, func() {}
		if err := f.feed(frame(1, 4, 1, nil)); err != nil {
			t.Fatal(err)
		}
		f.begin(100, new(atomic.Int32))
		var passed []byte
		var err error
		for _, p := range c.pieces {
			b := frame(0, 0, 1, p)
			if err = f.feed(b); err != nil {
				break
			}
			passed = append(passed, b[frameHeadBytes:]...)
		}
		if (err != nil) != c.closes {
			t.Errorf("%s: %v, want the connection closed: %t", c.name, err, c.closes)
		}
		if !c.closes && binary.BigEndian.Uint32(passed[1:]) != c.says {
			t.Errorf("%s: gRPC reads a length of %d, want %d", c.name, binary.BigEndian.Uint32(passed[1:]), c.says)
		}
	}
}

// timedCall begins a call, and returns what feeds its connection and whether that was closed.
func timedCall(t *testing.T) (feed func([]byte), hung *atomic.Bool) {
	f := newInflow(newCrowd(), newPresentUser(""))
	hung = new(atomic.Bool)
	f.preface, f.hangUp = 0, func() { hung.Store(true) }
	feed = func(b []byte) {
		t.Helper()
		if err := f.feed(b); err != nil {
			t.Fatal(err)
		}
	}
	feed(frame(1, 4, 1, nil))
	f.begin(100, new(atomic.Int32))
	return feed, hung
}

// TestLateMessageEndsItsConnection holds that a message has bodyTimeout to come, and
// that an idle stream has any time.
func TestLateMessageEndsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed, hung := timedCall(t)
		feed(frame(0, 0, 1, message(10, 10)))
		time.Sleep(time.Hour)
		feed(frame(0, 0, 1, message(10, 9)))
		time.Sleep(bodyTimeout - time.Second)
		feed(frame(0, 0, 1, []byte{0}))
		time.Sleep(time.Hour)
		if hung.Load() {
			t.Error("hung up on a caller whose messages came in time")
		}
		feed(frame(0, 0, 1, message(10, 9)))
		time.Sleep(bodyTimeout + time.Second)
		synctest.Wait()
		if !hung.Load() {
			t.Error("did not hang up on a message that does not come")
		}
	})
}

// mutator answers mutations of which it notes the sizes.
type mutator struct {
	borgrpc.UnimplementedMasterServiceServer
	got atomic.Int64
}

func (m *mutator) Mutate(_ context.Context, req *borgrpc.MutateRequest) (*borgrpc.MutateResponse, error) {
	m.got.Add(1)
	return &borgrpc.MutateResponse{}, nil
}

// rawConn is a connection to a server of ours without gRPC at this end.
type rawConn struct {
	// Headers of its calls beside the usual ones.
	more   [][2]string
	t      *testing.T
	conn   *tls.Conn
	framer *http2.Framer
	next   uint32
}

func dialRaw(t *testing.T, addr string, who *identity.Source, want identity.Name) *rawConn {
	t.Helper()
	config := who.ClientTLS(want)
	config.ServerName, config.NextProtos = "master", []string{"h2"}
	conn, err := tls.Dial("tcp", addr, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	c := &rawConn{t: t, conn: conn, framer: http2.NewFramer(conn, conn), next: 1}
	if err := c.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return c
}

// stall begins a call with a message that says it has so many bytes, and sends all but
// the last one.
func (c *rawConn) stall(method string, n int) error {
	if err := c.head(method); err != nil {
		return err
	}
	stream := c.next - 2
	body := message(uint32(n), n-1)
	for len(body) > 0 {
		k := min(16<<10, len(body))
		if err := c.framer.WriteData(stream, false, body[:k]); err != nil {
			return err
		}
		body = body[k:]
	}
	return nil
}

// head begins a call.
func (c *rawConn) head(method string) error {
	var head bytes.Buffer
	h := hpack.NewEncoder(&head)
	for _, f := range append([][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", "master"}, {"content-type", "application/grpc"}, {"te", "trailers"}}, c.more...) {
		_ = h.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	stream := c.next
	c.next += 2
	return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: true})
}

// closed reports whether the other end closes the connection within a while.
func (c *rawConn) closed() bool {
	_ = c.conn.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := io.Copy(io.Discard, c.conn)
	var failed net.Error
	return !errors.As(err, &failed) || !failed.Timeout()
}

// TestHalfSentCallsAreBounded has one user begin calls on many connections whose messages
// never end, by a raw client: what the door holds of them stays within its bound, the
// connections that hold most are closed, and a small call of the same user and one of
// another are served.
func TestHalfSentCallsAreBounded(t *testing.T) {
	ca, err := identity.NewAuthority("test", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	source := func(role identity.Role, id string) *identity.Source {
		s, err := ca.Source(identity.Name{Cell: "test", Role: role, ID: id}, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	master := identity.Name{Cell: "test", Role: identity.Master}
	s := NewServer(Config{Identity: source(identity.Master, "1")})
	m := new(mutator)
	borgrpc.RegisterMasterServiceServer(s, m)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() { s.Stop(); <-served }()
	addr := l.Addr().String()

	small := func(who *identity.Source) error {
		conn, err := Dial(addr, who, master)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = borgrpc.NewMasterServiceClient(conn).Mutate(ctx, &borgrpc.MutateRequest{Op: &borgpb.Op{}})
		return err
	}
	// A message over the limit is refused by its length, and the connection goes on.
	alice := source(identity.User, "alice")
	conn, err := Dial(addr, alice, master, grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := borgrpc.NewMasterServiceClient(conn)
	large := &borgrpc.MutateRequest{Op: &borgpb.Op{Command: strings.Repeat("x", int(requestBytes[mutate]))}}
	if _, err := client.Mutate(t.Context(), large); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of %d bytes: %v, want ResourceExhausted", requestBytes[mutate], err)
	}
	large.Op.Command = large.Op.Command[:len(large.Op.Command)-100]
	if _, err := client.Mutate(t.Context(), large); err != nil {
		t.Errorf("one within the limit: %v", err)
	}

	before := HungUp()
	const conns, calls = 8, 12
	n := int(requestBytes[mutate])
	var raw []*rawConn
	for i := range conns {
		// The user's task is the user.
		who := alice
		if i%2 == 1 {
			who = source(identity.Task, "alice/web/0")
		}
		c := dialRaw(t, addr, who, master)
		raw = append(raw, c)
		// Those that were closed meanwhile take no more.
		for range calls {
			if c.stall(mutate, n) != nil {
				break
			}
		}
	}
	if conns*calls*n <= maxReceivingOfUser {
		t.Fatalf("%d bytes are no flood", conns*calls*n)
	}
	for _, who := range []*identity.Source{alice, source(identity.User, "bob")} {
		if err := small(who); err != nil {
			t.Errorf("beside them, a call of %s: %v", who.Name(), err)
		}
	}
	for i, c := range raw {
		if !c.closed() {
			t.Errorf("connection %d with messages that never end stays open", i)
		}
	}
	if HungUp() == before {
		t.Error("no connection was counted as closed for what it held")
	}
	if m.got.Load() != 3 {
		t.Errorf("%d mutations reached their handler, want 3", m.got.Load())
	}
}

// TestAbandonedCallsCountNoMore: calls whose end gRPC never reports, since their time is over
// when they come, leave nothing that counts, whatever was sent of them.
func TestAbandonedCallsCountNoMore(t *testing.T) {
	c := newWeighedCell(t)
	crowd := c.server.crowd
	for range 20 {
		raw := dialRaw(t, c.addr, c.alice, c.master)
		raw.more = [][2]string{{"grpc-timeout", "1n"}}
		for range 50 {
			// The server may close the connection meanwhile, which is as good.
			if raw.stall(mutate, mutateBytes/4) != nil {
				break
			}
		}
		raw.conn.Close()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		crowd.mu.Lock()
		users := len(crowd.users)
		crowd.mu.Unlock()
		held := crowd.receiving.Load()
		if held == 0 && users == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of %d users are left of calls that are over", held, users)
		}
	}
}

// TestCallsOnManyConnectionsAreBounded: a user's calls are counted before anything is done for
// them, so that no number of connections passes the bound.
func TestCallsOnManyConnectionsAreBounded(t *testing.T) {
	c := newWeighedCell(t)
	most := int64(0)
	look := func() {
		c.server.crowd.mu.Lock()
		defer c.server.crowd.mu.Unlock()
		for _, u := range c.server.crowd.users {
			most = max(most, u.calls.Load())
		}
	}
	for range 8 {
		raw := dialRaw(t, c.addr, c.alice, c.master)
		for range maxCallsOfOne + 100 {
			if raw.head("/borgrpc.MasterService/Mutations") != nil {
				break
			}
		}
		look()
	}
	for range 1000 {
		look()
		time.Sleep(time.Millisecond)
	}
	// A refused one is counted for a moment.
	if most > maxCallsOfUser+8 || most < maxCallsOfOne {
		t.Errorf("%d calls of one user were under way, want at most %d", most, maxCallsOfUser)
	}
}

// TestOnlyOneIsClosed: when all users together hold too much, the connection that holds most is
// closed, and no other one for what the first still holds while it is being closed.
func TestOnlyOneIsClosed(t *testing.T) {
	c := newCrowd()
	var closed []string
	var flows []*inflow
	for n := range 60 {
		u := newPresentUser(fmt.Sprint("user", n))
		c.users[u.key] = u
		f := newInflow(c, u)
		done := make(chan struct{}, 1)
		f.hangUp = func() { done <- struct{}{} }
		u.flows[f] = true
		flows = append(flows, f)
	}
	hold := func(f *inflow, n int64) {
		f.preface = 0
		if err := f.feed(frame(1, 4, 1, nil)); err != nil {
			t.Fatal(err)
		}
		f.begin(1<<30, new(atomic.Int32)).add(n)
	}
	for _, f := range flows[:8] {
		hold(f, 31<<20)
	}
	hold(flows[8], 20<<20)
	for _, f := range flows[9:] {
		hold(f, 100)
	}
	for n, f := range flows {
		if f.closing.Load() {
			closed = append(closed, fmt.Sprint("user", n))
		}
	}
	if len(closed) != 1 || flows[8].closing.Load() {
		t.Errorf("closed are %v, want one of those with most", closed)
	}
}

// TestMessagesBackToBack: a frame that ends one message and begins the next restarts the timer,
// so a client that sends steadily keeps its connection.
func TestMessagesBackToBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed, hung := timedCall(t)
		feed(frame(0, 0, 1, message(10, 5)))
		for range 20 {
			time.Sleep(bodyTimeout / 2)
			feed(frame(0, 0, 1, append(make([]byte, 5), message(10, 5)...)))
		}
		synctest.Wait()
		if hung.Load() {
			t.Error("hung up on a client that sends one message after the other")
		}
	})
}
