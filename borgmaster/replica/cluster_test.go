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
	if n.cut[from] || n.cut[to] {
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
}

type runner struct {
	*Replica
	cancel context.CancelFunc
	ended  chan error
}

func newTestCell(t testing.TB, n int, tune func(*Config)) *testCell {
	tc := &testCell{t: t, net: newNetwork(), fs: make(map[uint64]*vfs.MemFS), running: make(map[uint64]*runner), tune: tune}
	for id := uint64(1); id <= uint64(n); id++ {
		tc.members = append(tc.members, &borgpb.Member{Id: id, Addr: fmt.Sprintf("replica-%d:7000", id)})
	}
	for _, m := range tc.members {
		tc.init(m.GetId(), false)
		tc.start(m.GetId())
	}
	t.Cleanup(func() {
		for id := range tc.running {
			tc.stop(id)
		}
	})
	return tc
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
	tc.end(id)
	x := tc.running[id]
	delete(tc.running, id)
	if err := <-x.ended; err != nil {
		tc.t.Errorf("replica %d ended: %v", id, err)
	}
}

func (tc *testCell) end(id uint64) {
	tc.net.mu.Lock()
	delete(tc.net.replicas, id)
	tc.net.mu.Unlock()
	tc.running[id].cancel()
}

// crash stops a replica as a machine without power does: what was not synced
// is gone.
func (tc *testCell) crash(id uint64) {
	tc.t.Helper()
	clone := tc.fs[id].CrashClone(vfs.CrashCloneCfg{})
	tc.end(id)
	<-tc.running[id].ended
	delete(tc.running, id)
	tc.fs[id] = clone
}

// wait waits until ok, which a machine that is very busy may take long to be.
func (tc *testCell) wait(what string, ok func() bool) {
	tc.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
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
			_, err := r.Propose(ctx, machineOp(id))
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
// that it is the same.
func (tc *testCell) settle() {
	tc.t.Helper()
	tc.wait("all replicas apply the same", func() bool {
		var index uint64
		for _, r := range tc.running {
			s := r.State()
			if index == 0 {
				index = s.Applied
			}
			if s.Applied != index || s.Commit != index {
				return false
			}
		}
		return true
	})
	var want cell.Digest
	for id, r := range tc.running {
		r.cellMu.Lock()
		got := r.cell.Digest()
		r.cellMu.Unlock()
		if want == (cell.Digest{}) {
			want = got
		}
		if got != want {
			tc.t.Errorf("replica %d has digest %x, another %x", id, got, want)
		}
	}
}

var _ borgmaster.Log = (*runner)(nil)
