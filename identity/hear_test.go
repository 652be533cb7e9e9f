package identity_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"borg/identity"
)

// TestBorgletsHearOfOtherAuthorities: who hears by a mark that the cell has other
// authorities has its next certificate, and believes them, within seconds instead
// of half a week; so do a thousand, and not in the same moment; when the next one
// issues, and when the old one is not believed any more, they hear again.
func TestBorgletsHearOfOtherAuthorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const machines = 1000
		ca := authority(t, "test")
		old := ca.Mark(time.Now())
		// Whoever has what the old one issued as long as he likes.
		thief := identity.NewSource(certify(t, ca, name(identity.Master, "1"), time.Now(), 24*time.Hour), nil, nil)
		var mu sync.Mutex
		perSecond := map[int64]int{}
		renewals := 0
		renew := func(_ context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
			mu.Lock()
			defer mu.Unlock()
			renewals++
			perSecond[time.Now().Unix()]++
			return ca.Issue(public, name(identity.Borglet, "m1"), time.Now(), identity.BorgletLife)
		}
		var sources []*identity.Source
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		first := certify(t, ca, name(identity.Borglet, "m1"), time.Now(), identity.BorgletLife)
		for range machines {
			s := identity.NewSource(first, renew, nil)
			sources = append(sources, s)
			running.Go(func() { s.Run(ctx) })
		}
		defer running.Wait()
		defer cancel()
		// polls are those of some seconds: each says the mark as it is then.
		polls := func(seconds int) {
			for range seconds {
				time.Sleep(time.Second)
				for _, s := range sources {
					s.TrustIs(ca.Mark(time.Now()))
				}
				synctest.Wait()
			}
		}
		all := func(what string, mark []byte) {
			t.Helper()
			for i, s := range sources {
				if !bytes.Equal(s.Current().Trust.Mark(), mark) {
					t.Fatalf("%s: machine %d has not heard of it", what, i)
				}
			}
		}
		// count is how many renewals a change took, and the most in one second.
		count := func(what string, want int) {
			t.Helper()
			most := 0
			for _, n := range perSecond {
				most = max(most, n)
			}
			if renewals != want || most > machines/4 {
				t.Errorf("%s: %d renewals, at most %d in a second; want %d, spread", what, renewals, most, want)
			}
			renewals, perSecond = 0, map[int64]int{}
		}
		if a, b := shake(thief.ClientTLS(name(identity.Borglet, "")), sources[0].ServerTLS()); a != nil || b != nil {
			t.Fatalf("a master calls: %v, %v", a, b)
		}
		polls(60)
		count("nothing has changed", 0)
		all("nothing has changed", old)

		next, err := ca.Replaced(time.Now(), 5*time.Minute, time.Hour)
		if err != nil || !ca.Adopt(next) {
			t.Fatalf("replace: %v", err)
		}
		polls(15)
		all("replaced", ca.Mark(time.Now()))
		count("replaced", machines)
		polls(5 * 60)
		all("the next one issues", ca.Mark(time.Now()))
		count("the next one issues", machines)
		if !ca.Adopt(ca.Alone()) {
			t.Fatal("drop was not taken")
		}
		polls(30)
		all("the old one was dropped", ca.Mark(time.Now()))
		count("the old one was dropped", machines)
		if a, b := shake(thief.ClientTLS(name(identity.Borglet, "")), sources[0].ServerTLS()); a == nil && b == nil {
			t.Error("what the old authority issued is believed after it was dropped")
		}
	})
}

// TestHearingIsBounded: whoever certifies may not have heard of other authorities
// himself; and what one master says another may contradict. Nobody renews more
// often than once in some seconds for it, and who hears that all is as before lets
// it be.
func TestHearingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := authority(t, "test")
		began, renewals := time.Now(), 0
		var mu sync.Mutex
		s := identity.NewSource(certify(t, ca, name(identity.Borglet, "m1"), time.Now(), identity.BorgletLife), func(_ context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
			mu.Lock()
			defer mu.Unlock()
			renewals++
			return ca.Issue(public, name(identity.Borglet, "m1"), time.Now(), identity.BorgletLife)
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		defer running.Wait()
		defer cancel()
		for time.Since(began) < 10*time.Minute {
			time.Sleep(time.Second)
			s.TrustIs([]byte("what another master says"))
		}
		mu.Lock()
		if renewals < 20 || renewals > 61 {
			t.Errorf("%d renewals in 10 minutes, with masters that are behind", renewals)
		}
		renewals = 0
		mu.Unlock()
		for n := range 600 {
			time.Sleep(time.Second)
			if mark := ca.Mark(time.Now()); n%2 == 0 {
				s.TrustIs(mark)
			} else {
				s.TrustIs([]byte("what another master says"))
			}
		}
		mu.Lock()
		if renewals > 61 {
			t.Errorf("%d renewals in 10 minutes, with masters that contradict each other", renewals)
		}
		mu.Unlock()
		s.TrustIs(ca.Mark(time.Now()))
		synctest.Wait()
		mu.Lock()
		renewals = 0
		mu.Unlock()
		time.Sleep(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if renewals != 0 {
			t.Errorf("%d renewals after all was as before", renewals)
		}
	})
}

// TestGoneReplicasAreNotAsked: who was told that a replica was taken out hangs up on
// it as on any stranger, though its certificate is good.
func TestGoneReplicasAreNotAsked(t *testing.T) {
	ca := authority(t, "test")
	borglet := source(t, ca, name(identity.Borglet, "m1"))
	borglet.Gone = func(who identity.Name) bool { return who == name(identity.Master, "3") }
	for replica, want := range map[string]bool{"1": true, "3": false} {
		err, _ := shake(borglet.ClientTLS(name(identity.Master, "")), source(t, ca, name(identity.Master, replica)).ServerTLS())
		if (err == nil) != want {
			t.Errorf("replica %s answers: %v, want believed: %v", replica, err, want)
		}
	}
}
