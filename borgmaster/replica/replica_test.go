package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

func machineOp(id string) *borgpb.Op {
	return &borgpb.Op{
		RequestId:     id,
		RequestWallNs: time.Now().UnixNano(),
		Principal:     &borgpb.Principal{User: "test", Role: borgpb.Role_ROLE_MASTER},
		Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{
			Name: id,
			Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:1", Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}},
		}},
	}
}

func TestElectProposeApply(t *testing.T) {
	tc := newTestCell(t, 5, nil)
	tc.elected()
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			for i := range 100 {
				id := fmt.Sprintf("m-%d-%d", w, i)
				if err := tc.submit(context.Background(), id); err != nil {
					t.Errorf("submit %s: %v", id, err)
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
		l.more(50)
		lost := tc.elected().identity.GetReplica()
		tc.stop(lost)
		l.more(50)
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
		if err := tc.submit(context.Background(), id); err != nil {
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

// TestHandOver stops the elected replica in order: it does not end before
// another stands for election. Without that the others would wait for a very
// long time.
func TestHandOver(t *testing.T) {
	tc := newTestCell(t, 3, func(c *Config) { c.ElectionTicks = 400 })
	tc.running[2].inbox.put(input{event: Campaign{}})
	leader := tc.elected()
	l := tc.load("a", 2)
	l.more(50)
	term := leader.State().Term
	tc.stop(leader.identity.GetReplica())
	if got := leader.State().Term; got <= term {
		t.Errorf("it ended in term %d, in which it was elected", got)
	}
	l.more(50)
	tc.start(leader.identity.GetReplica())
	l.finish()
}

// TestTransfer has each replica elected in turn, under load, and refuses what would
// stop the cell for a while.
func TestTransfer(t *testing.T) {
	tc := newTestCell(t, 3, nil)
	l := tc.load("a", 2)
	for to := uint64(1); to <= 3; to++ {
		leader := tc.elected()
		if leader.identity.GetReplica() == to {
			if _, _, err := leader.Transfer(context.Background(), to); err == nil {
				t.Errorf("replica %d hands over to itself", to)
			}
			continue
		}
		l.more(20)
		tc.wait("who was just elected hears the others", func() bool {
			elected, gap, err := leader.Transfer(context.Background(), to)
			if err == nil && (elected != to || gap <= 0) {
				t.Errorf("transfer to %d: elected %d, gap %v", to, elected, gap)
			}
			return err == nil
		})
		if got := tc.elected().identity.GetReplica(); got != to {
			t.Errorf("replica %d is elected, want %d", got, to)
		}
	}
	leader := tc.elected()
	gone := leader.identity.GetReplica()%3 + 1
	tc.crash(gone)
	tc.wait("a transfer to one that is gone is refused", func() bool {
		_, _, err := leader.Transfer(context.Background(), gone)
		return err != nil && strings.Contains(err.Error(), "was not heard just now")
	})
	other := tc.running[6-gone-leader.identity.GetReplica()]
	if _, _, err := other.Transfer(context.Background(), 0); !errors.Is(err, borgmaster.ErrNotElected) {
		t.Errorf("a follower hands over: %v", err)
	}
	tc.wait("the best one is elected", func() bool {
		elected, _, err := leader.Transfer(context.Background(), 0)
		return err == nil && elected == other.identity.GetReplica()
	})
	tc.start(gone)
	l.finish()
}

// slowDisk holds up syncs while it is stuck.
type slowDisk struct {
	mu    sync.Mutex
	stuck bool
	free  *sync.Cond
}

func newSlowDisk() *slowDisk {
	d := &slowDisk{}
	d.free = sync.NewCond(&d.mu)
	return d
}

func (d *slowDisk) set(stuck bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stuck = stuck
	d.free.Broadcast()
}

func (d *slowDisk) MaybeError(op errorfs.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.stuck && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
		d.free.Wait()
	}
	return nil
}

func (d *slowDisk) String() string { return "slow disk" }

// TestDiskHangs has the disk of the elected replica hang: it hands over, and
// the cell goes on.
func TestDiskHangs(t *testing.T) {
	disks := make(map[vfs.FS]*slowDisk)
	tc := newTestCell(t, 3, func(c *Config) {
		d := newSlowDisk()
		c.Store.FS = errorfs.Wrap(c.Store.FS, d)
		disks[c.Store.FS] = d
	})
	leader := tc.elected()
	l := tc.load("a", 4)
	l.more(50)
	disk := disks[leader.cfg.Store.FS]
	// Whatever happens, it must be able to end.
	defer disk.set(false)
	disk.set(true)
	tc.wait("another is elected", func() bool {
		for id, r := range tc.running {
			if s := r.State(); s.Ready && s.Elected == id && r != leader {
				return true
			}
		}
		return false
	})
	l.more(50)
	disk.set(false)
	l.finish()
}

// ended waits for a replica to end by itself.
func (tc *testCell) ended(r *runner) (err error) {
	tc.t.Helper()
	tc.wait("the replica ends", func() bool {
		select {
		case err = <-r.ended:
			return true
		default:
			return false
		}
	})
	return err
}

// TestDiskFails has a write fail on the elected replica: it ends, and says so;
// the others go on.
func TestDiskFails(t *testing.T) {
	var fail atomic.Pointer[vfs.FS]
	tc := newTestCell(t, 3, func(c *Config) {
		var fs vfs.FS
		fs = errorfs.Wrap(c.Store.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if p := fail.Load(); p != nil && *p == fs && op.Kind == errorfs.OpFileSyncData {
				return errorfs.ErrInjected
			}
			return nil
		}))
		c.Store.FS = fs
	})
	leader := tc.elected()
	l := tc.load("a", 2)
	l.more(20)
	fail.Store(&leader.cfg.Store.FS)
	err := tc.ended(leader)
	if err == nil || !strings.Contains(err.Error(), "the log cannot be written") {
		t.Errorf("the replica ended with %v, want to hear of its disk", err)
	}
	tc.forget(leader.identity.GetReplica())
	l.more(20)
	l.finish()
}

// saboteur changes its replica's cell behind everybody's back.
type saboteur struct {
	r    *Replica
	done bool
}

func (s *saboteur) StateChanged(borgmaster.LogState) {}
func (s *saboteur) Restored(uint64)                  {}

func (s *saboteur) Applied(e borgmaster.CommittedEntry, _ []*borgpb.Result, _ []cell.Event) {
	if s.done || e.Index < 10 {
		return
	}
	s.done = true
	twin := cell.New("test-0001", 1)
	for i := uint64(2); i <= e.Index; i++ {
		twin.Apply(i, e.Term, nil)
	}
	s.r.cellMu.Lock()
	s.r.cell = twin
	s.r.cellMu.Unlock()
}

// TestDigestDiffers has a follower with another cell: it stops when the elected
// replica logs its digest.
func TestDigestDiffers(t *testing.T) {
	tc := &testCell{t: t, net: newNetwork(), fs: make(map[uint64]*vfs.MemFS), running: make(map[uint64]*runner)}
	tc.opened = func(r *Replica) {
		if r.identity.GetReplica() == 3 {
			r.Subscribe(&saboteur{r: r})
		}
	}
	// Replica 3, which is started last, is never elected: its own digest would
	// stop the others.
	started := 0
	tc.tune = func(c *Config) {
		if started++; started == 3 {
			c.ElectionTicks = 100_000
		}
	}
	tc.begin(3)
	tc.elected()
	l := tc.load("a", 8)
	err := tc.ended(tc.running[3])
	if err == nil || !strings.Contains(err.Error(), "differs") {
		t.Errorf("the replica ended with %v, want to hear that its cell differs", err)
	}
	tc.forget(3)
	l.finish()
}

// follower follows the log as a scheduler's copy of the cell does.
type follower struct {
	t *testing.T
	r *Replica
	// What the apply goroutine told. Read when the replica has ended.
	copy   *cell.Cell
	states []borgmaster.LogState
}

func (f *follower) StateChanged(s borgmaster.LogState) { f.states = append(f.states, s) }

func (f *follower) Restored(index uint64) {
	f.t.Errorf("a checkpoint of index %d came to a replica that needs none", index)
}

func (f *follower) Applied(e borgmaster.CommittedEntry, results []*borgpb.Result, _ []cell.Event) {
	if got, ok := f.r.Entries(e.Index-1, 10); !ok || len(got) == 0 || got[0].Index != e.Index {
		f.t.Errorf("entry %d was told and is not among the entries held", e.Index)
	}
	mine, _ := f.copy.Apply(e.Index, e.Term, e.Data)
	if len(mine) != len(results) {
		f.t.Errorf("entry %d has %d results and %d on a copy", e.Index, len(results), len(mine))
	}
}

// TestListener shows that whoever applies what a listener hears has the same
// cell.
func TestListener(t *testing.T) {
	tc := &testCell{t: t, net: newNetwork(), fs: make(map[uint64]*vfs.MemFS), running: make(map[uint64]*runner)}
	followers := make(map[uint64]*follower)
	tc.opened = func(r *Replica) {
		f := &follower{t: t, r: r, copy: cell.New("test-0001", 1)}
		followers[r.identity.GetReplica()] = f
		r.Subscribe(f)
	}
	tc.begin(3)
	leader := tc.elected()
	l := tc.load("a", 4)
	l.more(100)
	l.finish()
	if got, ok := leader.Entries(1, 5); !ok || len(got) != 5 || got[0].Index != 2 || got[4].Index != 6 {
		t.Errorf("Entries(1, 5) = %v, %t", got, ok)
	}
	if got, ok := leader.Entries(leader.State().Applied, 5); !ok || len(got) != 0 {
		t.Errorf("Entries at the end = %v, %t", got, ok)
	}
	for id, r := range tc.running {
		tc.stop(id)
		f := followers[id]
		if got, want := f.copy.Digest(), r.cell.Digest(); got != want || f.copy.Index() != r.cell.Index() {
			t.Errorf("a copy of replica %d has digest %x at %d, the replica %x at %d", id, got, f.copy.Index(), want, r.cell.Index())
		}
		ready := slices.ContainsFunc(f.states, func(s borgmaster.LogState) bool { return s.Ready })
		if r == leader && !ready {
			t.Errorf("the elected replica never told that it was ready: %+v", f.states)
		}
	}
}
