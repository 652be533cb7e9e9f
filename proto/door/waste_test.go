package door

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestWaste: some bytes may be thrown away at once, and wastedPerS on top of that.
func TestWaste(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := new(waste)
		rests := func(what string, want time.Duration) {
			t.Helper()
			if got := w.rest(); got != want {
				t.Errorf("%s: nothing is read for %v, want %v", what, got, want)
			}
		}
		w.add(wastedAtOnce)
		rests("what may be at once", 0)
		w.add(wastedPerS)
		rests("a second's more", time.Second)
		time.Sleep(400 * time.Millisecond)
		rests("later", 600*time.Millisecond)
		w.add(1 << 40)
		rests("very much", restLimit)
		time.Sleep(restLimit)
		rests("after it", 0)
		if got := w.owed(); got != timeOf(wastedAtOnce) {
			t.Errorf("after it %v are owed, want %v", got, timeOf(wastedAtOnce))
		}
		time.Sleep(timeOf(wastedAtOnce))
		w.add(wastedAtOnce)
		rests("as much again when all is paid for", 0)
	})
}

// TestFailedCallsAreWaste: the message of a call that fails counts as thrown away if it is large, one
// that is refused as too much counts wastedByRefusal at least, and one that is served does not count.
func TestFailedCallsAreWaste(t *testing.T) {
	for _, tt := range []struct {
		what string
		wire int64
		err  error
		want int64
	}{
		{"served", 1 << 20, nil, 0},
		{"small and wrong", turnBytes, status.Error(codes.InvalidArgument, ""), 0},
		{"large and wrong", 1 << 20, status.Error(codes.InvalidArgument, ""), 1 << 20},
		{"small and refused", 100, TooMuch("", time.Second), wastedByRefusal},
		{"large and refused", 1 << 20, TooMuch("", time.Second), 1 << 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			user := newPresentUser("alice")
			(&receiving{flow: &inflow{user: user}, wire: tt.wire}).wasted(tt.err)
			if got := user.waste.owed(); got != timeOf(tt.want) {
				t.Errorf("%s: %v are owed, want %v", tt.what, got, timeOf(tt.want))
			}
		})
	}
}

// TestWhoWastesRests: a user whose connections are closed with messages that never end, by
// whoever, or whose calls are reset with them, is not read for a while, new connections included; another
// user is.
func TestWhoWastesRests(t *testing.T) {
	for _, tt := range []struct {
		what  string
		waste func(t *testing.T, c *rawConn)
	}{
		{"closed", func(_ *testing.T, c *rawConn) { c.conn.Close() }},
		{"reset", func(t *testing.T, c *rawConn) {
			for stream := uint32(1); stream < c.next; stream += 2 {
				if err := c.framer.WriteRSTStream(stream, 8); err != nil {
					t.Fatal(err)
				}
			}
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			s := startDoor(t, func(s *Server) { borgrpc.RegisterMasterServiceServer(s, new(mutator)) })
			rest := func(key string) time.Duration {
				s.server.crowd.mu.Lock()
				defer s.server.crowd.mu.Unlock()
				if u := s.server.crowd.users[key]; u != nil {
					return u.waste.rest()
				}
				return 0
			}
			n := int(requestBytes[mutate])
			rested := false
			for deadline := time.Now().Add(time.Minute); !rested && time.Now().Before(deadline); {
				c := dialRaw(t, s.addr, s.alice, s.master)
				for range maxReceivingOfUser / 2 / n {
					if c.stall(mutate, n) != nil {
						break
					}
				}
				tt.waste(t, c)
				for range 100 {
					rested = rested || rest("alice") > 0
					time.Sleep(time.Millisecond)
				}
				c.conn.Close()
			}
			if !rested {
				t.Error("alice never rests")
			}
			for _, who := range []string{"bob", "alice"} {
				conn, err := Dial(s.addr, s.source(identity.User, who), s.master)
				if err != nil {
					t.Fatal(err)
				}
				_, err = borgrpc.NewMasterServiceClient(conn).Mutate(t.Context(), &borgrpc.MutateRequest{Op: &borgpb.Op{}})
				if conn.Close(); err != nil {
					t.Errorf("a call of %s: %v", who, err)
				}
				if got := rest("bob"); got != 0 {
					t.Errorf("bob rests for %v", got)
				}
			}
		})
	}
}
