package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/door"
)

// counts are the mutations and the streams of them that a master has seen.
func (m *fakeMaster) counts() (ops, streams int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ops), m.streams
}

func mutateTimes(t *testing.T, c *Client, n int) {
	t.Helper()
	for range n {
		if r, err := c.Mutate(t.Context(), killOp()); err != nil || r.Index != 7 {
			t.Fatalf("Mutate = %v, %v", r, err)
		}
	}
}

func wantCounts(t *testing.T, m *fakeMaster, wantOps, wantStreams int) {
	t.Helper()
	if ops, streams := m.counts(); ops != wantOps || streams != wantStreams {
		t.Errorf("%d mutations and %d streams, want %d and %d", ops, streams, wantOps, wantStreams)
	}
}

// The first mutation is a call, and those after it go over one stream.
func TestMutationsShareAStream(t *testing.T) {
	m := startMaster(t)
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	mutateTimes(t, c, 1)
	wantCounts(t, m, 1, 0)
	mutateTimes(t, c, 20)
	wantCounts(t, m, 21, 1)
	if m.callers[20] != "alice" || m.ops[19].RequestId == m.ops[20].RequestId {
		t.Errorf("the last one came from %q as request %s, after %s", m.callers[20], m.ops[20].RequestId, m.ops[19].RequestId)
	}
	// A stream that has grown old is not kept.
	s := c.replicas[0].mutations.kept[0]
	s.opened = s.opened.Add(-mutationsLife)
	mutateTimes(t, c, 1)
	if n := len(c.replicas[0].mutations.kept); n != 0 || s.stream.Context().Err() == nil {
		t.Errorf("%d streams are kept, and the old one has ended with %v", n, s.stream.Context().Err())
	}
	mutateTimes(t, c, 1)
	wantCounts(t, m, 23, 2)
}

// Mutations at once have a stream each, and no more than that.
func TestMutationsAtOnce(t *testing.T) {
	m := startMaster(t)
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	mutateTimes(t, c, 1)
	const workers, each = 8, 50
	var asking sync.WaitGroup
	for range workers {
		asking.Go(func() {
			for range each {
				if _, err := c.Mutate(t.Context(), killOp()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	asking.Wait()
	if ops, streams := m.counts(); ops != 1+workers*each || streams < 1 || streams > workers {
		t.Errorf("%d mutations over %d streams, want %d over at most %d", ops, streams, 1+workers*each, workers)
	}
}

// A stream that has ended while nobody used it costs its replica nothing.
func TestMutationsAfterTheirStreamHasEnded(t *testing.T) {
	m, other := startMaster(t), startMaster(t)
	m.end = make(chan struct{})
	c := newClient(t, Config{Masters: []string{m.addr, other.addr}, Identity: source(t, identity.User, "alice")})
	c.current = 0
	mutateTimes(t, c, 2)
	wantCounts(t, m, 2, 1)
	kept := c.replicas[0].mutations.kept[0]
	close(m.end)
	if _, err := kept.stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Fatalf("the stream ended with %v", err)
	}
	mutateTimes(t, c, 1)
	wantCounts(t, m, 3, 1)
	wantCounts(t, other, 0, 0)
}

// A master of an older version has no such streams.
func TestMutationsOfAnOldMaster(t *testing.T) {
	m := startMaster(t)
	m.old = true
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	mutateTimes(t, c, 5)
	wantCounts(t, m, 5, 1)
}

// What a master refuses on a stream is refused as by a call: with its error, its details,
// and the same request the next time.
func TestMutationsThatFail(t *testing.T) {
	m := startMaster(t)
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	mutateTimes(t, c, 2)
	tries := 0
	m.mutate = func(*borgpb.Op) (*borgpb.Result, error) {
		if tries++; tries < 3 {
			return nil, door.TooMuch("user alice asks for too much", 20*time.Millisecond)
		}
		return nil, status.Error(codes.InvalidArgument, fmt.Sprint("no, after ", tries))
	}
	_, err := c.Mutate(t.Context(), killOp())
	if err == nil || tries != 3 || !errors.As(err, new(*InvalidError)) {
		t.Errorf("after %d tries: %T %v, want that it is invalid, after 3", tries, err, err)
	}
	if m.ops[2].RequestId != m.ops[4].RequestId {
		t.Error("the request id did not stay the same")
	}
}

// Whoever gives up is not kept, and the master hears of it.
func TestMutationsGivenUp(t *testing.T) {
	m := startMaster(t)
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	mutateTimes(t, c, 2)
	m.mu.Lock()
	m.hung, m.asked = make(chan error, 1), make(chan struct{})
	m.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-m.asked; cancel() }()
	if _, err := c.Mutate(ctx, killOp()); !errors.Is(err, context.Canceled) {
		t.Errorf("a mutation that was cancelled: %v", err)
	}
	if err := <-m.hung; !errors.Is(err, context.Canceled) {
		t.Errorf("the master has heard %v", err)
	}
}
