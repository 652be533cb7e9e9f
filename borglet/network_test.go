package borglet

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// fakeNetworks are networks without name spaces.
type fakeNetworks struct {
	mu sync.Mutex
	// there are those that are, with their addresses. Guarded by mu.
	there map[string]string
	// stuck cannot be removed. Guarded by mu.
	stuck map[string]bool
}

func (f *fakeNetworks) Make(key string) (Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.there[key] == "" {
		f.there[key] = "10.0.0." + string(rune('0'+len(f.there)))
	}
	return Network{"/net/" + key, f.there[key]}, nil
}

func (f *fakeNetworks) Find(key string) (Network, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	addr, ok := f.there[key]
	return Network{"/net/" + key, addr}, ok
}

func (f *fakeNetworks) Remove(key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stuck[key] {
		return errors.New("a plugin fails")
	}
	delete(f.there, key)
	return nil
}

func (f *fakeNetworks) Keys() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.there)), nil
}

// until waits until just these networks are there.
func (f *fakeNetworks) until(t *testing.T, want ...string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		keys, _ := f.Keys()
		if slices.Equal(keys, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there are %q, want %q", keys, want)
		}
	}
}

func newFakeNetworks(keys ...string) *fakeNetworks {
	f := &fakeNetworks{there: map[string]string{}, stuck: map[string]bool{}}
	for _, key := range keys {
		_, _ = f.Make(key)
	}
	return f
}

// networksOver returns the agent's part over a fake.
func networksOver(f *fakeNetworks) *networks {
	return newNetworks(Config{Networks: f, Name: "m1", Log: slog.New(slog.DiscardHandler)})
}

func own(id ID) Record {
	d := wanted(id)
	d.Spec.Network = borgpb.Network_NETWORK_OWN
	return Record{ID: id, Desired: d, Run: 1}
}

func inAlloc(id ID, network borgpb.Network) Record {
	d := wanted(id)
	d.Alloc, d.AllocNetwork = "ann/pool/0", network
	return Record{ID: id, Desired: d, Run: 1}
}

// A network stays for as long as somebody has it: a copy its own, an alloc what masters
// or a copy in it say.
func TestNetworksStay(t *testing.T) {
	a, b, c := ID{"1-5-0", 0, 1}, ID{"1-6-0", 0, 1}, ID{"1-7-0", 0, 1}
	f := newFakeNetworks()
	n := networksOver(f)
	begin := func(r Record) {
		t.Helper()
		if refused, err := n.before(r); refused != "" || err != nil {
			t.Fatalf("before %v: %q, %v", r.ID, refused, err)
		}
	}
	drop := func(id ID) {
		t.Helper()
		if err := n.drop(id); err != nil {
			t.Fatal(err)
		}
		n.removeUnused()
	}
	begin(own(a))
	begin(inAlloc(b, borgpb.Network_NETWORK_OWN))
	begin(inAlloc(c, borgpb.Network_NETWORK_OWN))
	begin(Record{ID: ID{"1-8-0", 0, 1}, Desired: wanted(ID{"1-8-0", 0, 1})})
	begin(inAlloc(ID{"1-9-0", 0, 1}, borgpb.Network_NETWORK_MACHINE))
	f.until(t, "1-5-0.0.1", "alloc.ann.pool.0")
	if n.of(b) != n.of(c) || n.of(b) == n.of(a) || n.of(b).Addr == "" {
		t.Errorf("networks of two in an alloc and one beside: %v %v %v", n.of(b), n.of(c), n.of(a))
	}
	drop(a)
	drop(b)
	drop(c)
	// Masters have not said yet whether the alloc is here.
	f.until(t, "alloc.ann.pool.0")
	n.hear([]string{"ann/pool/0"})
	n.removeUnused()
	f.until(t, "alloc.ann.pool.0")
	begin(inAlloc(b, borgpb.Network_NETWORK_OWN))
	n.hear(nil)
	n.removeUnused()
	f.until(t, "alloc.ann.pool.0")
	drop(b)
	f.until(t)
}

// What an earlier borglet left that is nobody's goes, also if it cannot at first.
func TestNetworksRecover(t *testing.T) {
	a, b := ID{"1-5-0", 0, 1}, ID{"1-6-0", 0, 1}
	f := newFakeNetworks("1-5-0.0.1", "1-6-0.0.1", "1-6-0.0.2", "alloc.ann.pool.0", "1-9-0.0.1")
	f.stuck["1-9-0.0.1"] = true
	n := networksOver(f)
	ended := own(b)
	ended.Ended = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
	if err := n.recover([]Record{own(a), ended}); err != nil {
		t.Fatal(err)
	}
	if n.removeUnused() {
		t.Error("nothing is to be removed any more, with one that could not be")
	}
	// That of a copy that has ended goes with what else is left of it.
	f.until(t, "1-5-0.0.1", "1-6-0.0.1", "1-9-0.0.1", "alloc.ann.pool.0")
	if n.of(a).Addr == "" {
		t.Error("a copy that runs has no address")
	}
	f.stuck = map[string]bool{}
	if !n.removeUnused() {
		t.Error("something is still to be removed")
	}
	f.until(t, "1-5-0.0.1", "1-6-0.0.1", "alloc.ann.pool.0")
}

// reaches polls until a copy is in a state.
func (a *agentUnderTest) reaches(req *borgrpc.PollRequest, state borgpb.AttemptState) (last *borgpb.TaskReport) {
	a.t.Helper()
	a.until(req, func(resp *borgrpc.PollResponse) bool {
		if len(resp.GetTasks()) != 1 {
			return false
		}
		last = resp.GetTasks()[0]
		return last.GetState() == int32(state)
	})
	return last
}

// An agent tells the address, gives the run its network, and lets it go.
func TestAgentNetworks(t *testing.T) {
	f := newFakeNetworks("1-9-0.0.1")
	a := startAgentWith(t, t.TempDir(), func(c *Config) { c.Networks = f })
	id := ID{"1-5-0", 0, 1}
	d := own(id).Desired
	r := a.reaches(&borgrpc.PollRequest{Fence: fence(1, 1, 1), Machine: "m1", Desired: []*borgrpc.Desired{d}}, borgpb.AttemptState_ATTEMPT_STATE_RUNNING)
	l := a.fake.Launched(id)
	if want := (Network{"/net/1-5-0.0.1", r.GetAddr()}); r.GetAddr() == "" || l.Network != want.Space || !slices.Contains(l.Env, "BORG_ADDR="+want.Addr) {
		t.Errorf("it is told of at %q, and started in %q with %q", r.GetAddr(), l.Network, l.Env)
	}
	f.until(t, "1-5-0.0.1")
	a.reaches(&borgrpc.PollRequest{Fence: fence(1, 1, 2), Machine: "m1", Stops: []*borgrpc.Stop{{Copy: id.wire()}}}, borgpb.AttemptState_ATTEMPT_STATE_STOPPED)
	f.until(t)
}

// Where there are none, it is said.
func TestAgentWithoutNetworks(t *testing.T) {
	a := startAgentWith(t, t.TempDir(), func(*Config) {})
	id := ID{"1-5-0", 0, 1}
	d := own(id).Desired
	d.Kind = borgpb.JobKind_JOB_KIND_BATCH
	req := &borgrpc.PollRequest{Fence: fence(1, 1, 1), Machine: "m1", Desired: []*borgrpc.Desired{d}}
	if r := a.reaches(req, borgpb.AttemptState_ATTEMPT_STATE_FAILED); !strings.Contains(r.GetText(), "add the constraint network=own") {
		t.Errorf("it failed: %q", r.GetText())
	}
}
