package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// A call is waited for so long by whoever makes it.
	openPatience = time.Second
	// Calls of one connection that are under way at most; a master lets it have 1,024.
	openUnderWay = 1000
	// Each connection asks so often for what came due meanwhile.
	openTick = 100 * time.Millisecond
	// What a connection may have written and not sent: what masters do not read shall be
	// noticed at this end soon.
	openSendBytes = 16 << 10
	// What ends a connection is told by a new one, after so long.
	openAgain = time.Second
)

// openFlood asks all masters for changes so often in a second, whatever they answer: a call
// that is due is made, over many connections, and given up when there is no answer in time.
// It is HTTP/2 by hand, with all calls of a connection that are due together in one write:
// a client library that asked as often would need more processors than there are.
type openFlood struct {
	who  *identity.Source
	perS float64
	// Between two calls of one connection.
	apart time.Duration
	began time.Time
	// Those that are there.
	conns atomic.Int64
	// Calls that were written.
	made atomic.Int64
	// What came of them in time; untold are refusals that do not say when to come back. late
	// are answers to calls that were given up.
	done, refused, untold, failed, late atomic.Int64
}

// begin begins to ask so often in a second, over so many connections to each master, until
// ctx ends.
func (f *openFlood) begin(ctx context.Context, addrs []string, each int, perS float64, running *sync.WaitGroup) {
	f.perS, f.began = perS, time.Now()
	f.apart = time.Duration(float64(time.Second) * float64(each*len(addrs)) / perS)
	for i := range each * len(addrs) {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := f.connected(ctx, addrs[i%len(addrs)]); err != nil && ctx.Err() == nil {
					f.failed.Add(1)
				}
				select {
				case <-ctx.Done():
				case <-time.After(openAgain):
				}
			}
		})
	}
}

// offered is how many calls came due so far.
func (f *openFlood) offered() int64 { return int64(f.perS * time.Since(f.began).Seconds()) }

// connected asks over one connection, until it or ctx ends.
func (f *openFlood) connected(ctx context.Context, addr string) error {
	c, err := f.connect(ctx, addr)
	if err != nil {
		return err
	}
	f.conns.Add(1)
	defer f.conns.Add(-1)
	defer c.raw.Close()
	defer context.AfterFunc(ctx, func() { c.raw.Close() })()
	heard := make(chan error, 1)
	go func() { heard <- c.hear() }()
	err = c.ask(ctx, heard)
	c.raw.Close()
	return err
}

// openConn is one connection of an open flood. One goroutine writes, and one reads.
type openConn struct {
	of  *openFlood
	raw net.Conn
	// What is to be written next.
	out   bytes.Buffer
	frame *http2.Framer
	// Heads of the first call, and of each one after it.
	first, head []byte
	next        uint32
	// Calls that were made, the oldest first, as long as they may have an answer.
	made []madeCall
	// Answers to what the master asked of this end.
	owes chan owed

	mu sync.Mutex
	// Calls under way, by stream. Guarded by mu.
	waiting map[uint32]bool
}

type madeCall struct {
	stream uint32
	at     time.Time
}

// owed is an answer to settings, or to a ping.
type owed struct {
	ping bool
	data [8]byte
}

func (f *openFlood) connect(ctx context.Context, addr string) (*openConn, error) {
	plain, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	end := tls.Client(plain, f.who.ClientTLS(door.AnyMaster(f.who)))
	if err = plain.(*net.TCPConn).SetWriteBuffer(openSendBytes); err == nil {
		err = end.HandshakeContext(ctx)
	}
	if err != nil {
		plain.Close()
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	c := &openConn{of: f, raw: end, next: 1, owes: make(chan owed, 8), waiting: map[uint32]bool{}}
	c.first, c.head = openHeads(addr)
	c.frame = http2.NewFramer(&c.out, end)
	c.frame.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.out.WriteString(http2.ClientPreface)
	// There is always room for answers. A buffer takes everything.
	_ = c.frame.WriteSettings()
	_ = c.frame.WriteWindowUpdate(0, 1<<30)
	return c, nil
}

// openHeads are the heads of the first call and of the next ones, which say of each field
// that it is as before.
func openHeads(addr string) (first, next []byte) {
	var block bytes.Buffer
	to := hpack.NewEncoder(&block)
	for _, head := range []*[]byte{&first, &next} {
		block.Reset()
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "https"}, {":path", borgrpc.MasterService_Mutate_FullMethodName}, {":authority", addr},
			{"content-type", "application/grpc"}, {"te", "trailers"}, {"grpc-timeout", fmt.Sprintf("%dm", openPatience.Milliseconds())},
		} {
			// A buffer takes everything.
			_ = to.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		*head = bytes.Clone(block.Bytes())
	}
	return first, next
}

// ask makes the calls that come due. Those for which the master reads too little come to
// their end unsent.
func (c *openConn) ask(ctx context.Context, heard <-chan error) error {
	tick := time.NewTicker(openTick)
	defer tick.Stop()
	for asked := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-heard:
			return err
		case <-tick.C:
		}
		now := time.Now()
		c.giveUp(now.Add(-openPatience))
		c.acknowledge()
		if late := now.Add(-openPatience); asked.Before(late) {
			asked = late
		}
		due := int(now.Sub(asked) / c.of.apart)
		asked = asked.Add(time.Duration(due) * c.of.apart)
		if err := c.make(now, due); err != nil {
			return err
		}
	}
}

// giveUp gives up the calls that were made before.
func (c *openConn) giveUp(before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(c.made) > 0 && c.made[0].at.Before(before); c.made = c.made[1:] {
		if stream := c.made[0].stream; c.waiting[stream] {
			delete(c.waiting, stream)
			_ = c.frame.WriteRSTStream(stream, http2.ErrCodeCancel)
		}
	}
}

func (c *openConn) acknowledge() {
	for len(c.owes) > 0 {
		if a := <-c.owes; a.ping {
			_ = c.frame.WritePing(true, a.data)
		} else {
			_ = c.frame.WriteSettingsAck()
		}
	}
}

// make makes so many calls in one write, as far as it may have as many under way.
func (c *openConn) make(now time.Time, due int) error {
	call, id := c.call(now)
	c.mu.Lock()
	due = max(min(due, openUnderWay-len(c.waiting)), 0)
	for n := range due {
		copy(call[id:], strconv.AppendInt(nil, int64(100_000+n), 10))
		_ = c.frame.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: c.first, EndHeaders: true})
		_ = c.frame.WriteData(c.next, true, call)
		c.first = c.head
		c.waiting[c.next] = true
		c.made = append(c.made, madeCall{c.next, now})
		c.next += 2
	}
	c.mu.Unlock()
	if c.out.Len() == 0 {
		return nil
	}
	_, err := c.raw.Write(c.out.Bytes())
	c.out.Reset()
	c.of.made.Add(int64(due))
	return err
}

// call is a message that kills a job which is not there, a change like any other, and where
// in it the last six characters of the request id are.
func (c *openConn) call(now time.Time) (call []byte, id int) {
	request, wallNs := client.NewRequestID(now)
	m, err := proto.Marshal(&borgrpc.MutateRequest{Op: &borgpb.Op{
		RequestId: request, RequestWallNs: wallNs, Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.of.who.Name().ID, Name: "none"}},
	}})
	if err != nil {
		panic(err)
	}
	call = binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m)))
	call = append(call, m...)
	return call, bytes.Index(call, []byte(request)) + len(request) - 6
}

// hear reads answers until the connection ends.
func (c *openConn) hear() error {
	for {
		f, err := c.frame.ReadFrame()
		if broken := (http2.StreamError{}); errors.As(err, &broken) {
			continue
		}
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				c.answered(f.StreamID, f)
			}
		case *http2.RSTStreamFrame:
			c.answered(f.StreamID, nil)
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.owe(owed{})
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				c.owe(owed{ping: true, data: f.Data})
			}
		case *http2.GoAwayFrame:
			return fmt.Errorf("the master ends the connection: %v %s", f.ErrCode, f.DebugData())
		}
	}
}

func (c *openConn) owe(a owed) {
	select {
	case c.owes <- a:
	default:
		// Whoever asks so often is not answered each time.
	}
}

// answered counts what came of a call, if it is not given up.
func (c *openConn) answered(stream uint32, trailers *http2.MetaHeadersFrame) {
	c.mu.Lock()
	waits := c.waiting[stream]
	delete(c.waiting, stream)
	c.mu.Unlock()
	if !waits {
		if trailers != nil {
			c.of.late.Add(1)
		}
		return
	}
	code, told := "", false
	if trailers != nil {
		for _, h := range trailers.Fields {
			switch h.Name {
			case "grpc-status":
				code = h.Value
			case "grpc-status-details-bin":
				told = h.Value != ""
			}
		}
	}
	switch {
	case code == "0":
		c.of.done.Add(1)
	case code != strconv.Itoa(int(codes.ResourceExhausted)):
		c.of.failed.Add(1)
	case !told:
		c.of.untold.Add(1)
	default:
		c.of.refused.Add(1)
	}
}
