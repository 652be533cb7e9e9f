package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is a transport in memory between the replicas of one test.
type network struct {
	mu sync.Mutex
	// Guarded by mu, as is all that follows.
	replicas map[uint64]*Replica
	// cut replicas neither send nor receive.
	cut map[uint64]bool
}

func newNetwork() *network {
	return &network{replicas: make(map[uint64]*Replica), cut: make(map[uint64]bool)}
}

func (n *network) reach(from, to uint64) *Replica {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut[from] || n.cut[to] || n.replicas[from] == nil {
		return nil
	}
	return n.replicas[to]
}

func (n *network) setCut(id uint64, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[id] = cut
}

// link is one replica's end of the network.
type link struct {
	n    *network
	self uint64
	in   Inbound
	id   *borgpb.ReplicaIdentity
}

func (l *link) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		to := l.n.reach(l.self, m.GetTo())
		if to == nil {
			l.in.Unreachable(m.GetTo())
			continue
		}
		to.Seen(l.self, l.id.GetIncarnation())
		to.Deliver(proto.CloneOf(m))
	}
}

func (l *link) SendSnapshot(ctx context.Context, m *raftpb.Message, write func(io.Writer) error) error {
	to := l.n.reach(l.self, m.GetTo())
	if to == nil {
		return errors.New("not reached")
	}
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := to.DeliverSnapshot(ctx, proto.CloneOf(m), pr)
		pr.CloseWithError(errors.New("the receiver has ended"))
		done <- err
	}()
	pw.CloseWithError(write(pw))
	return <-done
}

func (l *link) SetMembers(Membership) {}

func (l *link) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// testCell is a cell of replicas that can be stopped and started one by one.
type testCell struct {
	t       testing.TB
	net     *network
	members []*borgpb.Member
	fs      map[uint64]*vfs.MemFS
	running map[uint64]*runner
	tune    func(*Config)
	// Told of each replica before it runs; may be nil.
	opened func(*Replica)
}

type runner struct {
	*Replica
	cancel context.CancelFunc
	ended  chan error
}

func newTestCell(t testing.TB, n int, tune func(*Config)) *testCell {
	tc := &testCell{t: t, net: newNetwork(), fs: make(map[uint64]*vfs.MemFS), running: make(map[uint64]*runner), tune: tune}
	tc.begin(n)
	return tc
}

func (tc *testCell) begin(n int) {
	tc.t.Helper()
	for id := uint64(1); id <= uint64(n); id++ {
		tc.members = append(tc.members, &borgpb.Member{Id: id, Addr: fmt.Sprintf("replica-%d:7000", id)})
	}
	for _, m := range tc.members {
		tc.init(m.GetId(), false)
		tc.start(m.GetId())
	}
	tc.t.Cleanup(func() {
		for id := range tc.running {
			tc.stop(id)
		}
	})
}

func (tc *testCell) init(id uint64, join bool) {
	tc.t.Helper()
	tc.fs[id] = vfs.NewCrashableMem()
	if err := Init(tc.store(id), &borgpb.ReplicaIdentity{
		CellName: "test", CellId: "test-0001", Epoch: 1, Replica: id, Members: tc.members, Join: join,
	}); err != nil {
		tc.t.Fatalf("init %d: %v", id, err)
	}
}

func (tc *testCell) store(id uint64) checkpoint.Config {
	return checkpoint.Config{Dir: "/cell/replica", FS: tc.fs[id]}
}

func (tc *testCell) start(id uint64) *runner {
	tc.t.Helper()
	cfg := Config{
		Store: tc.store(id),
		Tick:  5 * time.Millisecond,
		// Machines that run tests are often busy with something else.
		ElectionTicks: 20,
		Transport: func(in Inbound, x *borgpb.ReplicaIdentity, _ *slog.Logger) Transport {
			return &link{n: tc.net, self: id, in: in, id: x}
		},
	}
	if os.Getenv("BORG_TEST_LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if tc.tune != nil {
		tc.tune(&cfg)
	}
	r, err := Open(cfg)
	if err != nil {
		tc.t.Fatalf("open %d: %v", id, err)
	}
	if tc.opened != nil {
		tc.opened(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &runner{Replica: r, cancel: cancel, ended: make(chan error, 1)}
	tc.running[id] = x
	tc.net.mu.Lock()
	tc.net.replicas[id] = r
	tc.net.mu.Unlock()
	go func() { x.ended <- r.Run(ctx) }()
	return x
}

// stop stops a replica in order.
func (tc *testCell) stop(id uint64) {
	tc.t.Helper()
	x := tc.running[id]
	x.cancel()
	if err := <-x.ended; err != nil {
		tc.t.Errorf("replica %d ended: %v", id, err)
	}
	tc.forget(id)
}

// forget takes a replica that has ended out of the cell's network.
func (tc *testCell) forget(id uint64) {
	tc.net.mu.Lock()
	delete(tc.net.replicas, id)
	tc.net.mu.Unlock()
	delete(tc.running, id)
}

// crash stops a replica as a machine without power does: what was not synced
// is gone.
func (tc *testCell) crash(id uint64) {
	tc.t.Helper()
	// First nobody hears of it any more: what it makes durable after the power
	// is gone, it must not tell.
	x := tc.running[id]
	tc.forget(id)
	clone := tc.fs[id].CrashClone(vfs.CrashCloneCfg{})
	x.cancel()
	<-x.ended
	tc.fs[id] = clone
}

// wait waits until ok, which a machine that is very busy may take long to be.
func (tc *testCell) wait(what string, ok func() bool) {
	tc.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			for id, r := range tc.running {
				tc.t.Logf("replica %d: %+v", id, r.State())
			}
			tc.t.Fatalf("%s: not after 30 s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// elected waits for the elected replica to be ready.
func (tc *testCell) elected() *runner {
	tc.t.Helper()
	var found *runner
	tc.wait("a replica is elected", func() bool {
		for id, r := range tc.running {
			if s := r.State(); s.Ready && s.Elected == id && !tc.net.isCut(id) {
				found = r
				return true
			}
		}
		return false
	})
	return found
}

func (n *network) isCut(id uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut[id]
}

// submit proposes an op at whoever is elected until it is done.
func (tc *testCell) submit(ctx context.Context, id string) error {
	for {
		for _, r := range tc.snapshotRunning() {
			res, err := r.Propose(ctx, machineOp(id))
			if err == nil && res.GetRefusal() != nil {
				return fmt.Errorf("refused: %v", res.GetRefusal())
			}
			if err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func (tc *testCell) snapshotRunning() []*Replica {
	tc.net.mu.Lock()
	defer tc.net.mu.Unlock()
	var rs []*Replica
	for _, r := range tc.net.replicas {
		rs = append(rs, r)
	}
	return rs
}

// settle waits until all replicas that run have applied the same, and checks
// that their cells are the same. What the elected replica does by itself may go
// on meanwhile.
func (tc *testCell) settle() {
	tc.t.Helper()
	digests := make(map[uint64]cell.Digest)
	tc.wait("all replicas apply the same", func() bool {
		var index uint64
		for id, r := range tc.running {
			s := r.State()
			r.cellMu.Lock()
			at, d := r.cell.Index(), r.cell.Digest()
			r.cellMu.Unlock()
			if index == 0 {
				index = at
			}
			if at != index || s.Commit > index {
				return false
			}
			digests[id] = d
		}
		return true
	})
	var want cell.Digest
	for id := range tc.running {
		if want == (cell.Digest{}) {
			want = digests[id]
		}
		if digests[id] != want {
			tc.t.Errorf("replica %d has digest %x, another %x", id, digests[id], want)
		}
	}
}

var _ borgmaster.Log = (*runner)(nil)
