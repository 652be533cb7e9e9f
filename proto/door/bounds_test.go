package door

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"borg/identity"
)

// TestOneCallerKeepsNobodyOut: the connections of one caller are bounded, those from
// one address that have said nothing yet too, and others do not notice.
func TestOneCallerKeepsNobodyOut(t *testing.T) {
	c := newCrowd()
	alice, bob := identity.Name{Cell: "test", Role: identity.User, ID: "alice"}, identity.Name{Cell: "test", Role: identity.User, ID: "bob"}
	open := func(who identity.Name) (net.Conn, error) {
		near, far := net.Pipe()
		far.Close()
		conn, _, _, err := c.admit(reading(near, who), who)
		return conn, err
	}
	var conns []net.Conn
	for n := range maxConnsOfOne {
		conn, err := open(alice)
		if err != nil {
			t.Fatalf("connection %d of alice: %v", n+1, err)
		}
		conns = append(conns, conn)
	}
	if _, err := open(alice); err == nil {
		t.Errorf("alice has more than %d connections", maxConnsOfOne)
	}
	if _, err := open(bob); err != nil {
		t.Errorf("bob beside her: %v", err)
	}
	for range maxConnsOfOne + 1 {
		if _, err := open(identity.Name{Cell: "test", Role: identity.Master, ID: "1"}); err != nil {
			t.Fatalf("a master: %v", err)
		}
	}
	conns[0].Close()
	conns[0].Close() // Closed once is closed.
	if _, err := open(alice); err != nil {
		t.Errorf("after one of hers was closed: %v", err)
	}
	if _, err := open(alice); err == nil {
		t.Error("closing one twice makes room for two")
	}
	for _, conn := range conns {
		conn.Close()
	}
	if len(c.callers) != 2 || c.callers[alice].conns.Load() != 1 {
		t.Errorf("when hers were closed the door still counts %d callers, and of hers %d", len(c.callers), c.callers[alice].conns.Load())
	}
}

// TestCallsOfOneConnectionAreBounded, but for masters, who pass on those of others.
func TestCallsOfOneConnectionAreBounded(t *testing.T) {
	config := &Config{}
	on := func(role identity.Role, id string) (context.Context, *atomic.Int32) {
		info := infoOf(0, identity.Name{Cell: "test", Role: role, ID: id})
		info.calls = new(atomic.Int32)
		return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info}), info.calls
	}
	count := callCounter{}
	call := func(ctx context.Context, method string) error {
		_, err := config.tap(ctx, &tap.Info{FullMethodName: method})
		if err == nil {
			count.HandleRPC(ctx, &stats.Begin{})
		}
		return err
	}
	user, underWay := on(identity.User, "alice")
	for n := range maxCallsOfOne {
		if err := call(user, "/borgrpc.MasterService/GetCell"); err != nil {
			t.Fatalf("call %d of alice: %v", n+1, err)
		}
	}
	if err := call(user, "/borgrpc.MasterService/GetCell"); status.Code(err) != codes.ResourceExhausted || underWay.Load() != maxCallsOfOne {
		t.Errorf("one call more: %v with %d under way, want ResourceExhausted", err, underWay.Load())
	}
	count.HandleRPC(user, &stats.End{})
	if err := call(user, "/borgrpc.MasterService/GetCell"); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	other, _ := on(identity.User, "alice")
	if err := call(other, "/borgrpc.MasterService/GetCell"); err != nil {
		t.Errorf("on another connection: %v", err)
	}
	master, _ := on(identity.Master, "2")
	for n := range maxCallsOfOne + 1 {
		if err := call(master, "/borgrpc.RaftService/Send"); err != nil {
			t.Fatalf("call %d of a master: %v", n+1, err)
		}
	}
	if err := call(user, "/borgrpc.RaftService/Send"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("alice speaks raft: %v, want PermissionDenied", err)
	}
}
