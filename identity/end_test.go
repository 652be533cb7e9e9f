package identity_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"borg/identity"
)

const (
	day = 24 * time.Hour
	// What an authority lives, and a little more.
	tenYears = 10*365*day + time.Minute
)

// TestAMachineThatSlept: timers stand still while a machine sleeps and while a clock is
// set ahead. A master that can certify itself is believed seconds after it wakes up,
// however long it slept; who must ask others and slept longer than his certificate
// lives is told that it expired, again and again.
func TestAMachineThatSlept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := authority(t, "test")
		var slept time.Duration
		clock := func() time.Time { return time.Now().Add(slept) }
		master := source(t, ca, name(identity.Master, "1"))
		master.Clock = clock
		var server *identity.Source
		machine := name(identity.Borglet, "m1")
		ask := func(_ context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
			// What every call begins with: both ends look at each other.
			if err, err2 := shake(server.ClientTLS(name(identity.Master, "")), master.ServerTLS()); err != nil || err2 != nil {
				return nil, errors.Join(err, err2)
			}
			return ca.Issue(public, machine, clock(), identity.BorgletLife)
		}
		server = identity.NewSource(certify(t, ca, machine, time.Now(), identity.BorgletLife), ask, nil)
		server.Clock = clock
		var mu sync.Mutex
		var told error
		server.OnRenew = func(_ *identity.Credential, err error) {
			mu.Lock()
			defer mu.Unlock()
			told = err
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { master.Run(ctx) })
		running.Go(func() { server.Run(ctx) })
		defer running.Wait()
		defer cancel()
		call := func() error {
			synctest.Wait()
			err, err2 := shake(master.ClientTLS(machine), server.ServerTLS())
			return errors.Join(err, err2)
		}
		for _, test := range []struct {
			sleeps time.Duration
			works  bool
		}{{2 * time.Hour, true}, {4 * day, true}, {3 * day, true}, {8 * day, false}} {
			slept += test.sleeps
			time.Sleep(20 * time.Second)
			if err := call(); (err == nil) != test.works {
				t.Errorf("20 seconds after a sleep of %v the master calls the machine: %v, want it to work: %v", test.sleeps, err, test.works)
			}
			if master.Current().Expired(clock()) {
				t.Errorf("20 seconds after a sleep of %v the master's certificate has expired", test.sleeps)
			}
			// A machine that woke up before the master could not renew, and tries again.
			time.Sleep(time.Hour)
		}
		mu.Lock()
		defer mu.Unlock()
		if told == nil || !strings.Contains(told.Error(), "runs out at") {
			t.Errorf("the machine is told %v", told)
		}
	})
}

// TestTheAuthorityEnds: what an authority issued ends with it, whatever it says itself;
// after that it issues nothing, and says so. Renewed, it is another one, that believes
// nothing of what was.
func TestTheAuthorityEnds(t *testing.T) {
	now := time.Now()
	ca, err := identity.NewAuthority("test", now.Add(-tenYears+2*day+time.Minute), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	end := ca.Ends()
	if left := end.Sub(now); left > 2*day || left < 2*day-time.Minute {
		t.Fatalf("it ends in %v, want two days", left)
	}
	machine := certify(t, ca, name(identity.Borglet, "m1"), now, identity.BorgletLife)
	if !machine.Expires().Equal(end) || machine.Expired(end) || !machine.Expired(end.Add(time.Second)) {
		t.Errorf("a machine's certificate runs out at %v, and its authority at %v", machine.Expires(), end)
	}
	if _, err := ca.Renewed(now); err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("renewed before its end: %v", err)
	}
	// The wait does not go on until nobody believes anybody.
	next, err := ca.Replaced(now, 4*day, 8*day)
	if err != nil {
		t.Fatal(err)
	}
	keys := next.Signers(now)
	if from := keys[1].From; from.After(now.Add(day)) || from.Before(now.Add(day-time.Minute)) || !keys[0].Until.Equal(end) {
		t.Errorf("the next key issues from %v on, the present one is believed until %v; it is %v and that ends at %v", from, keys[0].Until, now, end)
	}
	// Two days later.
	now = end.Add(time.Hour)
	public, _, _ := ed25519.GenerateKey(rand.Reader)
	var ended *identity.EndedError
	if _, err := ca.Issue(public, machine.Name, now, time.Hour); !errors.As(err, &ended) || !ended.Ended.Equal(end) {
		t.Errorf("it issues after its end: %v", err)
	}
	if _, err := ca.Replaced(now, 0, 0); !errors.As(err, &ended) {
		t.Errorf("it is replaced after its end: %v", err)
	}
	if _, err := machine.Trust.Verify(leafs(t, machine), identity.ToCall, now); err == nil || !strings.Contains(err.Error(), "authority of cell test that ended at") {
		t.Errorf("a certificate of it is shown after its end: %v", err)
	}
	renewed, err := ca.Renewed(now)
	if err != nil {
		t.Fatal(err)
	}
	if !renewed.Later(ca) || len(renewed.Signers(now)) != 1 || renewed.Ends().Before(now.Add(tenYears-time.Hour)) {
		t.Errorf("renewed, it is %v until %v", renewed.Signers(now), renewed.Ends())
	}
	again := certify(t, renewed, machine.Name, now, identity.BorgletLife)
	if _, err := again.Trust.Verify(leafs(t, again), identity.ToCall, now); err != nil {
		t.Errorf("a certificate of the renewed one: %v", err)
	}
	if _, err := again.Trust.Verify(leafs(t, machine), identity.ToCall, now); err == nil {
		t.Error("the renewed one believes what the one before issued")
	}
}

// leafs are what the holder of a credential shows.
func leafs(t *testing.T, c *identity.Credential) []*x509.Certificate {
	t.Helper()
	return []*x509.Certificate{c.TLS().Leaf}
}
