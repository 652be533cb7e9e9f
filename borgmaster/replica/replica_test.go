package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

func machineOp(id string) *borgpb.Op {
	return &borgpb.Op{
		RequestId: id,
		Principal: &borgpb.Principal{User: "test", Role: borgpb.Role_ROLE_MASTER},
		Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{
			Name: id,
			Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:1", Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}},
		}},
	}
}

func TestElectProposeApply(t *testing.T) {
	tc := newTestCell(t, 5, nil)
	leader := tc.elected()
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			for i := range 100 {
				id := fmt.Sprintf("m-%d-%d", w, i)
				res, err := leader.Propose(context.Background(), machineOp(id))
				if err != nil || res.GetRefusal() != nil {
					t.Errorf("propose %s: %v, %v", id, res.GetRefusal(), err)
				}
			}
		})
	}
	wg.Wait()
	tc.settle()
}

// load submits ops until stopped, and remembers what was acknowledged.
type load struct {
	tc     *testCell
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// Guarded by mu.
	acknowledged []string
}

func (tc *testCell) load(name string, workers int) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{tc: tc, cancel: cancel}
	for w := range workers {
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("%s-%d-%d", name, w, i)
				if tc.submit(ctx, id) == nil {
					l.mu.Lock()
					l.acknowledged = append(l.acknowledged, id)
					l.mu.Unlock()
				}
			}
		})
	}
	return l
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acknowledged)
}

// more waits for n more acknowledged ops.
func (l *load) more(n int) {
	l.tc.t.Helper()
	want := l.count() + n
	l.tc.wait(fmt.Sprintf("%d more ops", n), func() bool { return l.count() >= want })
}

// finish stops the load and checks that every replica has all that was
// acknowledged.
func (l *load) finish() {
	l.tc.t.Helper()
	l.cancel()
	l.wg.Wait()
	l.tc.elected()
	l.tc.settle()
	for id, r := range l.tc.running {
		lost := 0
		r.View(func(c *cell.Cell) {
			for _, name := range l.acknowledged {
				if c.Machine(name) == nil {
					lost++
				}
			}
		})
		if lost > 0 {
			l.tc.t.Errorf("replica %d lost %d of %d acknowledged ops", id, lost, len(l.acknowledged))
		}
	}
}

func TestElectedReplicaIsLost(t *testing.T) {
	tc := newTestCell(t, 5, nil)
	tc.elected()
	l := tc.load("a", 4)
	for range 3 {
		l.more(200)
		lost := tc.elected().identity.GetReplica()
		tc.stop(lost)
		l.more(200)
		tc.start(lost)
	}
	l.finish()
}

// TestCrash takes the power from one replica after the other, and then from
// all at once: what was acknowledged was synced by a majority.
func TestCrash(t *testing.T) {
	tc := newTestCell(t, 5, nil)
	tc.elected()
	l := tc.load("a", 4)
	for id := range uint64(5) {
		l.more(100)
		tc.crash(id + 1)
		l.more(100)
		tc.start(id + 1)
	}
	for range 2 {
		l.more(100)
		for id := range uint64(5) {
			tc.crash(id + 1)
		}
		for id := range uint64(5) {
			tc.start(id + 1)
		}
	}
	l.more(100)
	l.finish()
}

// TestSnapshot has a follower miss more than the log keeps, so that it needs a
// checkpoint; and then a replica join that has nothing.
func TestSnapshot(t *testing.T) {
	tc := newTestCell(t, 3, func(c *Config) {
		c.Store.TailEntries, c.Store.TailBytes = 16, 1<<20
		c.FlushInterval = 5 * time.Millisecond
	})
	leader := tc.elected()
	var cut uint64
	for id := range tc.running {
		if id != leader.identity.GetReplica() {
			cut = id
		}
	}
	tc.net.setCut(cut, true)
	l := tc.load("a", 2)
	last, _ := tc.running[cut].store.LastIndex()
	tc.wait("the log is compacted past the follower", func() bool {
		first, _ := leader.store.FirstIndex()
		return first > last+1
	})
	restored := tc.running[cut].store.Header().GetIndex()
	tc.net.setCut(cut, false)
	tc.wait("the follower gets a checkpoint", func() bool {
		first, _ := tc.running[cut].store.FirstIndex()
		return first > last+1 && tc.running[cut].State().Applied > restored
	})

	tc.init(4, true)
	joined := tc.start(4)
	if err := tc.elected().AddLearner(context.Background(), &borgpb.Member{Id: 4, Addr: "replica-4:7000"}); err != nil {
		t.Fatalf("add a learner: %v", err)
	}
	tc.wait("the new replica gets its vote", func() bool { return slices.Contains(joined.voters(), 4) })
	l.finish()

	// It is still a member, with all it had, after a crash.
	tc.crash(4)
	joined = tc.start(4)
	tc.settle()
	if got := joined.voters(); !slices.Equal(got, []uint64{1, 2, 3, 4}) {
		t.Errorf("voters are %v after a crash, want 1 to 4", got)
	}
}

func (r *Replica) voters() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members.Voters
}

func TestReadIndex(t *testing.T) {
	tc := newTestCell(t, 3, nil)
	leader := tc.elected()
	for i := range 50 {
		id := fmt.Sprintf("m-%d", i)
		if _, err := leader.Propose(context.Background(), machineOp(id)); err != nil {
			t.Fatal(err)
		}
		for n, r := range tc.running {
			if err := r.ReadIndex(context.Background()); err != nil {
				t.Fatal(err)
			}
			r.View(func(c *cell.Cell) {
				if c.Machine(id) == nil {
					t.Errorf("replica %d does not know %s after ReadIndex", n, id)
				}
			})
		}
	}
	for id := range tc.running {
		if id != leader.identity.GetReplica() {
			tc.net.setCut(id, true)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := leader.ReadIndex(ctx); err == nil {
		t.Error("a replica without a majority answers a read")
	}
}

func TestProposeWithoutMajority(t *testing.T) {
	tc := newTestCell(t, 3, nil)
	leader := tc.elected()
	for id := range tc.running {
		if id != leader.identity.GetReplica() {
			tc.net.setCut(id, true)
			if _, err := tc.running[id].Propose(context.Background(), machineOp("x")); !errors.Is(err, borgmaster.ErrNotElected) {
				t.Errorf("a follower answers %v, want ErrNotElected", err)
			}
		}
	}
	if _, err := leader.Propose(context.Background(), machineOp("m")); !errors.Is(err, borgmaster.ErrUnknownOutcome) {
		t.Errorf("without a majority: %v, want ErrUnknownOutcome", err)
	}
}
