package borgmaster

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"borg/identity"
)

// TestStreamConns: streams of one caller to one machine share a connection, also a moment after the
// last one; others have their own. Beyond the bound nothing is kept.
func TestStreamConns(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	go server.Serve(l)
	defer server.Stop()
	dialed := 0
	dial := func() (*grpc.ClientConn, error) {
		dialed++
		return grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	s := newStreamConns()
	key := func(user, machine string) streamConnKey {
		return streamConnKey{caller: identity.Name{Role: identity.User, ID: user}, machine: machine}
	}
	take := func(k streamConnKey) (*grpc.ClientConn, func()) {
		t.Helper()
		conn, leave, err := s.to(k, dial)
		if err != nil {
			t.Fatal(err)
		}
		return conn, leave
	}
	ready := func(conn *grpc.ClientConn) {
		t.Helper()
		for conn.Connect(); conn.GetState() != connectivity.Ready; {
			if !conn.WaitForStateChange(t.Context(), conn.GetState()) {
				t.Fatal("the connection is not made")
			}
		}
	}
	first, leaveFirst := take(key("ann", "m1"))
	ready(first)
	second, leaveSecond := take(key("ann", "m1"))
	if second != first || dialed != 1 {
		t.Errorf("a second stream of the same caller has another connection; %d were made", dialed)
	}
	leaveFirst()
	leaveFirst()
	leaveSecond()
	third, leaveThird := take(key("ann", "m1"))
	if third != first || third.GetState() != connectivity.Ready {
		t.Errorf("a stream after the last one has another connection, in state %v", third.GetState())
	}
	for _, k := range []streamConnKey{key("bob", "m1"), key("ann", "m2")} {
		if conn, leave := take(k); conn == first {
			t.Errorf("%v shares a connection of ann to m1", k)
		} else if leave(); conn.GetState() != connectivity.Shutdown {
			t.Errorf("a connection that was never made is kept, in state %v", conn.GetState())
		}
	}
	for n := len(s.kept); n < maxStreamConns; n++ {
		s.kept[streamConnKey{addr: string(rune(n))}] = &streamConn{conn: third}
	}
	beyond, leaveBeyond := take(key("ann", "m3"))
	ready(beyond)
	if leaveBeyond(); beyond.GetState() != connectivity.Shutdown || len(s.kept) != maxStreamConns {
		t.Errorf("beyond the bound a connection is %v after its stream, of %d kept", beyond.GetState(), len(s.kept))
	}
	// A machine that has come back is called anew.
	server.Stop()
	for state := third.GetState(); state != connectivity.TransientFailure; state = third.GetState() {
		third.Connect()
		third.WaitForStateChange(t.Context(), state)
	}
	if conn, leave := take(key("ann", "m1")); conn == third {
		t.Error("a connection that failed is taken again")
	} else {
		leave()
	}
	if leaveThird(); third.GetState() != connectivity.Shutdown {
		t.Errorf("the one that failed is %v after its last stream", third.GetState())
	}
	s.close()
	if after, leave := take(key("ann", "m1")); after == nil {
		t.Error("no connection after the end")
	} else if leave(); len(s.kept) != 0 {
		t.Errorf("%d are kept after the end", len(s.kept))
	}
}

// TestIdleStreamConnsAreClosed after streamConnIdle, counted from the last stream.
func TestIdleStreamConnsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamConns()
		conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		c, key := &streamConn{conn: conn}, streamConnKey{machine: "m1"}
		s.kept[key] = c
		s.rest(key, c)
		time.Sleep(streamConnIdle - 1)
		synctest.Wait()
		if s.kept[key] == nil {
			t.Error("it is closed too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if s.kept[key] != nil || conn.GetState() != connectivity.Shutdown {
			t.Errorf("after %v it is %v", streamConnIdle, conn.GetState())
		}
	})
}
