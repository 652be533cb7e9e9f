package door

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	mathrand "math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// largeAnswers answers GetCell with 2 MiB.
type largeAnswers struct {
	borgrpc.UnimplementedMasterServiceServer
	text string
}

func (l *largeAnswers) GetCell(context.Context, *borgrpc.GetCellRequest) (*borgrpc.GetCellResponse, error) {
	return &borgrpc.GetCellResponse{Build: l.text}, nil
}

// call makes a whole call with an empty message.
func (c *rawConn) call(method string) uint32 {
	c.t.Helper()
	var head bytes.Buffer
	h := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", "master"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = h.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	stream := c.next
	c.next += 2
	if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: true}); err != nil {
		c.t.Fatal(err)
	}
	if err := c.framer.WriteData(stream, true, make([]byte, messageHeadBytes)); err != nil {
		c.t.Fatal(err)
	}
	return stream
}

// TestAnswersThatNoWindowTakes has a user ask for large answers and open no window for them,
// by a raw client. gRPC has ended these calls as soon as their answers wait, and they
// count all the same: beyond the bound the user's calls are refused, and when the user gives
// the calls up, they are served again.
func TestAnswersThatNoWindowTakes(t *testing.T) {
	const answerBytes, calls = 2 << 20, 100
	s := startDoor(t, func(s *Server) {
		borgrpc.RegisterMasterServiceServer(s, &largeAnswers{text: strings.Repeat("x", answerBytes)})
	})
	raw, streams := s.callUnread("/borgrpc.MasterService/GetCell", calls)
	// Of what is answered only the head comes, of what is refused the end as well.
	answered, refused := 0, 0
	_ = raw.conn.SetReadDeadline(time.Now().Add(time.Minute))
	for answered+refused < calls {
		f, err := raw.framer.ReadFrame()
		if err != nil {
			t.Fatalf("after %d answers and %d refusals: %v", answered, refused, err)
		}
		if h, ok := f.(*http2.HeadersFrame); ok {
			if h.StreamEnded() {
				refused++
			} else {
				answered++
			}
		}
	}
	if most := maxAnswersOfUser / answerBytes; answered > most || answered < most/2 {
		t.Errorf("%d answers of 2 MiB wait for a client that opens no window, want at most %d", answered, most)
	}
	s.servesAgainAfterReset(raw, streams)
}

// startedDoor is a server of a test with a caller.
type startedDoor struct {
	t         *testing.T
	authority *identity.Authority
	server    *Server
	addr      string
	alice     *identity.Source
	master    identity.Name
}

func startDoor(t *testing.T, register func(*Server)) *startedDoor {
	t.Helper()
	ca, err := identity.NewAuthority("test", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &startedDoor{t: t, authority: ca, addr: l.Addr().String(), master: identity.Name{Cell: "test", Role: identity.Master}}
	s.alice = s.source(identity.User, "alice")
	s.server = NewServer(Config{Identity: s.source(identity.Master, "1")})
	register(s.server)
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(l) }()
	t.Cleanup(func() { s.server.Stop(); <-served })
	return s
}

// source makes a certificate for somebody.
func (s *startedDoor) source(role identity.Role, id string) *identity.Source {
	s.t.Helper()
	who, err := s.authority.Source(identity.Name{Cell: "test", Role: role, ID: id}, time.Now(), time.Hour)
	if err != nil {
		s.t.Fatal(err)
	}
	return who
}

// callUnread makes calls on a connection that opens no window.
func (s *startedDoor) callUnread(method string, calls int) (raw *rawConn, streams []uint32) {
	s.t.Helper()
	raw = dialRaw(s.t, s.addr, s.alice, s.master)
	if err := raw.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		s.t.Fatal(err)
	}
	for range calls {
		streams = append(streams, raw.call(method))
	}
	return raw, streams
}

// servesAgainAfterReset checks that calls of the user are refused, until the client gives
// those up that it does not read.
func (s *startedDoor) servesAgainAfterReset(raw *rawConn, streams []uint32) {
	t := s.t
	t.Helper()
	conn, err := Dial(s.addr, s.alice, s.master)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	look := func() error {
		_, err := borgrpc.NewMasterServiceClient(conn).GetCell(t.Context(), &borgrpc.GetCellRequest{})
		return err
	}
	if err := look(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("with as many answers waiting another call of the same user: %v, want ResourceExhausted", err)
	}
	for _, stream := range streams {
		if err := raw.framer.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if err := look(); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("after the waiting calls were given up: %v", err)
		}
	}
}

// largeStream sends messages of 1 MiB on each stream of events until it fails.
type largeStream struct {
	largeAnswers
	sent, built atomic.Int64
	// Each handler that cannot go on tells so.
	stuck, refused chan struct{}
}

func (l *largeStream) Events(_ *borgrpc.EventsRequest, stream borgrpc.MasterService_EventsServer) error {
	for {
		l.built.Add(1)
		if err := stream.Send(&borgrpc.EventsResponse{Events: []*borgpb.Event{{Object: l.text}}}); err != nil {
			l.refused <- struct{}{}
			return err
		}
		l.sent.Add(1)
		select {
		case <-Written(stream.Context()):
			continue
		default:
		}
		l.stuck <- struct{}{}
		select {
		case <-Written(stream.Context()):
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// TestStreamsThatNoWindowTakes has a user open streams and no window for them, by a raw client.
// Each holds the first message that it was sent and builds no second one; that message
// counts, so that beyond the bound of the user's answers a stream is refused.
func TestStreamsThatNoWindowTakes(t *testing.T) {
	const messageBytes, calls = 1 << 20, 100
	l := &largeStream{largeAnswers: largeAnswers{text: strings.Repeat("x", messageBytes)}, stuck: make(chan struct{}, calls), refused: make(chan struct{}, calls)}
	s := startDoor(t, func(s *Server) { borgrpc.RegisterMasterServiceServer(s, l) })
	before := heapNow()
	raw, streams := s.callUnread("/borgrpc.MasterService/Events", calls)
	stuck := 0
	for range calls {
		select {
		case <-l.stuck:
			stuck++
		case <-l.refused:
		case <-time.After(time.Minute):
			t.Fatal("a stream neither waits nor is refused")
		}
	}
	if most := maxAnswersOfUser / messageBytes; stuck > most || stuck < most/2 || l.built.Load() != calls {
		t.Errorf("%d streams hold a message of 1 MiB, want at most %d; %d messages were built for %d streams", stuck, most, l.built.Load(), calls)
	}
	if grown := heapNow() - before; grown > maxAnswersOfUser*3/2 {
		t.Errorf("%d MiB are held for streams that are not read", grown>>20)
	}
	s.servesAgainAfterReset(raw, streams)
}

// TestUnreadMessagesTakeTheirSize: a message waits encoded in a buffer of its size, not in the
// next larger one of gRPC's pool.
func TestUnreadMessagesTakeTheirSize(t *testing.T) {
	const messageBytes, calls = 100 << 10, 90
	l := &largeStream{largeAnswers: largeAnswers{text: strings.Repeat("x", messageBytes)}, stuck: make(chan struct{}, calls), refused: make(chan struct{}, calls)}
	s := startDoor(t, func(s *Server) { borgrpc.RegisterMasterServiceServer(s, l) })
	before := heapNow()
	s.callUnread("/borgrpc.MasterService/Events", calls)
	for range calls {
		<-l.stuck
	}
	if grown := heapNow() - before; grown > 3*messageBytes*calls {
		t.Errorf("%d messages of 100 KiB that are not read hold %d KiB", calls, grown>>10)
	}
}

// TestAStreamThatIsRead goes on message by message, and nothing of it counts afterwards.
func TestAStreamThatIsRead(t *testing.T) {
	const messageBytes = 300 << 10
	l := &largeStream{largeAnswers: largeAnswers{text: strings.Repeat("x", messageBytes)}, stuck: make(chan struct{}, 10_000), refused: make(chan struct{}, 1)}
	s := startDoor(t, func(s *Server) { borgrpc.RegisterMasterServiceServer(s, l) })
	conn, err := Dial(s.addr, s.alice, s.master)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := borgrpc.NewMasterServiceClient(conn).Events(ctx, &borgrpc.EventsRequest{})
	// More than the user's answers may be at once.
	for range 2 * maxAnswersOfUser / messageBytes {
		if err == nil {
			_, err = stream.Recv()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func heapNow() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestOutflow writes frames of random sizes in random pieces: a call is released once, when
// its end is written and gRPC has reported it, in whichever order.
func TestOutflow(t *testing.T) {
	seed := mathrand.Uint64()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	r := mathrand.New(mathrand.NewPCG(seed, 1))
	o := newOutflow(func(int64) {})
	released := map[uint32]int{}
	written, ended := map[uint32]bool{}, map[uint32]bool{}
	calls := map[uint32]*answering{}
	frame := func(kind, flags byte, stream uint32, n int) []byte {
		b := append([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags}, binary.BigEndian.AppendUint32(nil, stream)...)
		return append(b, make([]byte, n)...)
	}
	for stream := uint32(1); stream < 200; stream += 2 {
		calls[stream] = o.begin(stream, func() {})
	}
	for len(written) < len(calls) || len(ended) < len(calls) {
		stream := uint32(2*r.IntN(100) + 1)
		var b []byte
		switch r.IntN(5) {
		case 0:
			b = frame(frameData, 0, stream, r.IntN(5000))
		case 1:
			b = frame(0x6, flagEndStream, 0, 8) // the answer to a PING
		case 2:
			if !written[stream] {
				b, written[stream] = frame(frameHeaders, flagEndStream|4, stream, r.IntN(100)), true
			}
		case 3:
			if !written[stream] {
				b, written[stream] = frame(frameReset, 0, stream, 4), true
			}
		case 4:
			if !ended[stream] {
				ended[stream] = true
				o.ended(calls[stream], func() { released[stream]++ })
			}
		}
		for len(b) > 0 {
			n := min(1+r.IntN(3000), len(b))
			o.feed(b[:n])
			b = b[n:]
		}
		for s := range calls {
			want := 0
			if written[s] && ended[s] {
				want = 1
			}
			if released[s] != want {
				t.Fatalf("call %d: written %t, ended %t, released %d times", s, written[s], ended[s], released[s])
			}
		}
	}
	if len(o.calls) != 0 {
		t.Errorf("%d calls are still followed", len(o.calls))
	}
	late := o.begin(999, func() {})
	n := 0
	o.ended(late, func() { n++ })
	o.close()
	o.ended(o.begin(1001, func() {}), func() { n++ })
	if n != 2 {
		t.Errorf("%d of 2 calls were released with the connection", n)
	}
}

// TestOutflowMessages writes messages of several streams in frames and pieces of random sizes: each
// counts until its last byte is written, and no longer.
func TestOutflowMessages(t *testing.T) {
	seed := mathrand.Uint64()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	r := mathrand.New(mathrand.NewPCG(seed, 2))
	o := newOutflow(func(int64) {})
	type stream struct {
		a *answering
		// Of the message that is being written.
		left  []byte
		held  int64
		count int
	}
	var all []*stream
	for i := range 5 {
		all = append(all, &stream{a: o.begin(uint32(2*i+1), func() {})})
	}
	for range 20_000 {
		i := r.IntN(len(all))
		s := all[i]
		if len(s.left) == 0 {
			n := []int{0, 1, r.IntN(100), r.IntN(70_000)}[r.IntN(4)]
			s.left = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(n)), make([]byte, n)...)
			s.held = int64(n) + 1
			o.send(s.a, s.held, func(bytes int64, _ bool) {
				s.held -= bytes
				s.count++
			})
			s.count--
		}
		// A frame has a part of one message, or nothing.
		n := min(len(s.left), r.IntN(20_000))
		b := append([]byte{byte(n >> 16), byte(n >> 8), byte(n), frameData, 0}, binary.BigEndian.AppendUint32(nil, uint32(2*i+1))...)
		b = append(b, s.left[:n]...)
		s.left = s.left[n:]
		for len(b) > 0 {
			k := min(1+r.IntN(3000), len(b))
			o.feed(b[:k])
			b = b[k:]
		}
		if waits := len(s.left) > 0; waits != (s.held > 0) || waits != (s.count < 0) {
			t.Fatalf("stream %d: %d bytes of a message are left, and %d are held", i, len(s.left), s.held)
		}
		select {
		case <-o.waiting(s.a):
			if len(s.left) > 0 {
				t.Fatalf("stream %d waits for nothing, and %d bytes are left", i, len(s.left))
			}
		default:
			if len(s.left) == 0 {
				t.Fatalf("stream %d waits, and its message is written", i)
			}
		}
	}
	// What is given up is not held either.
	s := all[0]
	o.unsend(s.a)
	o.send(s.a, 7, func(bytes int64, _ bool) { s.held = -bytes })
	if o.wrote(1); s.held != -7 {
		t.Error("a message of a call that was given up is held")
	}
	if o.send(s.a, 9, func(bytes int64, _ bool) { s.held = -bytes }); s.held != -9 {
		t.Error("a message for a call that was given up is held")
	}
}

// TestUnreadAnswersOfAll: of users who are each within their own bound, and together beyond
// that of all, the connection with most unread answers is closed, and nothing counts when the
// others have read theirs.
func TestUnreadAnswersOfAll(t *testing.T) {
	c := newCrowd()
	closed := make(chan string, 100)
	type call struct {
		*patience
		bytes int64
	}
	var calls []call
	hold := func(user string, bytes int64) {
		u := c.users[user]
		if u == nil {
			u = newPresentUser(user)
			c.users[user] = u
		}
		f := newInflow(c, u)
		f.hangUp = func() { closed <- user }
		c.mu.Lock()
		u.flows[f] = true
		c.mu.Unlock()
		p := &patience{flow: f}
		if !p.count(bytes) {
			t.Fatalf("%s may not have %d MiB", user, bytes>>20)
		}
		calls = append(calls, call{p, bytes})
	}
	hold("most", 50<<20)
	for n := 1; c.answers.Load()+(49<<20) <= maxAnswers; n++ {
		hold(fmt.Sprint("user", n), 49<<20)
	}
	select {
	case user := <-closed:
		t.Fatalf("the connection of %s is closed within the bound", user)
	default:
	}
	hold("last", 49<<20)
	if user := <-closed; user != "most" {
		t.Errorf("the connection of %s is closed, want that of the one with most", user)
	}
	for _, call := range calls {
		call.count(-call.bytes)
	}
	if c.answers.Load() != 0 || c.users["most"].answers.Load() != 0 {
		t.Errorf("%d bytes are left", c.answers.Load())
	}
}
