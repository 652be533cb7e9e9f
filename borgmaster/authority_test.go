package borgmaster_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster"
	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// TestTheAuthorityIsReplaced under calls: all masters take the next one, those who
// were asked and those who were not, nobody's call fails, and what the one before
// issued is worth nothing in the end.
func TestTheAuthorityIsReplaced(t *testing.T) {
	first, err := identity.NewAuthority("test", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	copies := make([]*identity.Authority, 4)
	for i := range copies {
		data, err := first.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if copies[i], err = identity.DecodeAuthority("test", data, rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	kept := make(map[int][]byte)
	tc := newCell(t, 3, func(replica int, c *borgmaster.Config) {
		c.Authority = copies[replica]
		if c.Identity, err = c.Authority.Source(identity.Name{Cell: "test", Role: identity.Master, ID: fmt.Sprint(replica)}, time.Now(), identity.Life); err != nil {
			t.Fatal(err)
		}
		c.KeepAuthority = func(data []byte) error {
			mu.Lock()
			defer mu.Unlock()
			kept[replica] = data
			return nil
		}
	})
	// Users who renew through what the masters have by then.
	user := func(a *identity.Authority, name string) *identity.Source {
		t.Helper()
		s, err := a.Source(identity.Name{Cell: "test", Role: identity.User, ID: name}, time.Now(), identity.UserLife)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	authorities := func(replica int, who *identity.Source) borgrpc.AuthorityServiceClient {
		t.Helper()
		conn, err := door.Dial(tc.addrs[replica-1], who, door.AnyMaster(who))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return borgrpc.NewAuthorityServiceClient(conn)
	}
	root := user(copies[2], "root")
	// Kept: a new connection for each of many looks would be a flood of handshakes.
	lookers := map[int]borgrpc.AuthorityServiceClient{}
	list := func(replica int) *borgrpc.ListAuthoritiesResponse {
		t.Helper()
		if lookers[replica] == nil {
			lookers[replica] = authorities(replica, root)
		}
		is, err := lookers[replica].ListAuthorities(t.Context(), &borgrpc.ListAuthoritiesRequest{})
		if err != nil {
			t.Fatalf("replica %d: %v", replica, err)
		}
		return is
	}
	if is := list(1); is.Replica != 1 || is.Generation != 1 || len(is.Keys) != 1 || !is.Keys[0].Issues {
		t.Errorf("the first authority is %v", is)
	}
	if _, err := authorities(1, user(first, "bob")).ReplaceAuthority(t.Context(), &borgrpc.ReplaceAuthorityRequest{}); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "needs the capability admin") {
		t.Errorf("bob replaces the authority: %v", err)
	}
	// Alice calls all the time, each time on a connection of its own. More often than this would
	// be a flood of handshakes, which may be refused.
	alice := user(copies[0], "alice")
	var calls, failed atomic.Int64
	stop := make(chan struct{})
	var calling sync.WaitGroup
	stopCalling := sync.OnceFunc(func() {
		close(stop)
		calling.Wait()
	})
	defer stopCalling()
	calling.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			conn, err := door.Dial(tc.addrs[n%3], alice, door.AnyMaster(alice))
			if err == nil {
				_, err = borgrpc.NewMasterServiceClient(conn).GetCell(t.Context(), &borgrpc.GetCellRequest{})
				conn.Close()
			}
			if calls.Add(1); err != nil {
				failed.Add(1)
				t.Errorf("a call while the authority is replaced: %v", err)
			}
			// What she hears when she renews.
			copies[0].Adopt(copies[1+n%3])
			if _, err := alice.RenewNow(t.Context()); err != nil {
				t.Errorf("a renewal while the authority is replaced: %v", err)
			}
		}
	})
	// Certificates of masters would outlive the key that issued them.
	if _, err := authorities(3, root).ReplaceAuthority(t.Context(), &borgrpc.ReplaceAuthorityRequest{WaitNs: int64(2 * time.Second), OverlapNs: int64(time.Hour - 1)}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "too short") {
		t.Errorf("a short overlap: %v, want FailedPrecondition", err)
	}
	// Through a replica that is not elected.
	resp, err := authorities(3, root).ReplaceAuthority(t.Context(), &borgrpc.ReplaceAuthorityRequest{WaitNs: int64(2 * time.Second), OverlapNs: int64(time.Hour)})
	if err != nil || resp.Authority.Generation != 2 || len(resp.Authority.Keys) != 2 || len(resp.Behind) != 0 {
		t.Fatalf("ReplaceAuthority = %v, %v, want two keys and nobody behind", resp, err)
	}
	if _, err := authorities(1, root).ReplaceAuthority(t.Context(), &borgrpc.ReplaceAuthorityRequest{OverlapNs: int64(time.Hour)}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "being replaced already") {
		t.Errorf("it is replaced again at once: %v, want FailedPrecondition", err)
	}
	until(t, "the next authority issues everywhere", func() bool {
		for replica := 1; replica <= 3; replica++ {
			if is := list(replica); is.Generation != 2 || !is.Keys[1].Issues {
				return false
			}
		}
		return true
	})
	// What the first one issued is still believed, until it is dropped.
	old := user(first, "carol")
	if _, err := authorities(2, old).ListAuthorities(t.Context(), &borgrpc.ListAuthoritiesRequest{}); err != nil {
		t.Errorf("a certificate of the one before, during the overlap: %v", err)
	}
	seen := calls.Load()
	until(t, "alice has called with the next authority", func() bool { return calls.Load() > seen+10 })
	stopCalling()
	if _, err := root.RenewNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The masters' own certificates are of the next one from their next renewal on,
	// which takes half an hour here: dropping renews them at once.
	dropped, err := authorities(2, root).DropAuthorities(t.Context(), &borgrpc.DropAuthoritiesRequest{})
	if err != nil || dropped.Authority.Generation != 3 || len(dropped.Authority.Keys) != 1 || len(dropped.Behind) != 0 {
		t.Fatalf("DropAuthorities = %v, %v", dropped, err)
	}
	if _, err := authorities(2, old).ListAuthorities(t.Context(), &borgrpc.ListAuthoritiesRequest{}); !door.Distrusted(err) {
		t.Errorf("a certificate of the one before, after the drop: %v, want that it is not believed", err)
	}
	if is := list(1); len(is.Keys) != 1 {
		t.Errorf("after the drop replica 1 has %v", is)
	}
	mu.Lock()
	defer mu.Unlock()
	for replica := 1; replica <= 3; replica++ {
		if a, err := identity.DecodeAuthority("test", kept[replica], rand.Reader); err != nil || a.Version().Generation != 3 {
			t.Errorf("replica %d has kept %v, %v, want generation 3", replica, a, err)
		}
	}
	t.Logf("%d calls, of which %d failed", calls.Load(), failed.Load())
}

// TestAReplicaThatWasAwayTakesTheAuthority when it is there again.
func TestAReplicaThatWasAwayTakesTheAuthority(t *testing.T) {
	data, err := ca.Encode()
	if err != nil {
		t.Fatal(err)
	}
	tc := newCell(t, 2, func(replica int, c *borgmaster.Config) {
		if c.Authority, err = identity.DecodeAuthority("test", data, rand.Reader); err != nil {
			t.Fatal(err)
		}
		if replica == 1 {
			// As if it had been replaced while replica 2 was away.
			if c.Authority, err = c.Authority.Replaced(time.Now(), time.Hour, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
	})
	root := source(t, identity.User, "root")
	conn, err := door.Dial(tc.addrs[1], root, door.AnyMaster(root))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	until(t, "replica 2 has the later authority", func() bool {
		is, err := borgrpc.NewAuthorityServiceClient(conn).ListAuthorities(t.Context(), &borgrpc.ListAuthoritiesRequest{})
		return err == nil && is.Generation == 2 && len(is.Keys) == 2
	})
}
