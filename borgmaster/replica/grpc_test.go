package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// wireCell is replicas with the real transport, on the real disk.
type wireCell struct {
	t       testing.TB
	dir     string
	members []*borgpb.Member
	running map[uint64]*wireReplica
}

type wireReplica struct {
	*Replica
	server *door.Server
	cancel context.CancelFunc
	ended  chan error
}

func newWireCell(t testing.TB, n int) *wireCell {
	t.Helper()
	wc := &wireCell{t: t, dir: t.TempDir(), running: make(map[uint64]*wireReplica)}
	listeners := make([]net.Listener, n)
	for i := range n {
		listeners[i] = wc.listen("127.0.0.1:0")
		wc.members = append(wc.members, &borgpb.Member{Id: uint64(i + 1), Addr: listeners[i].Addr().String()})
	}
	for i, m := range wc.members {
		wc.init(m.GetId(), false)
		wc.start(m.GetId(), listeners[i])
	}
	t.Cleanup(func() {
		for id := range wc.running {
			if err := wc.stop(id); err != nil {
				t.Errorf("replica %d ended: %v", id, err)
			}
		}
	})
	return wc
}

func (wc *wireCell) listen(addr string) net.Listener {
	wc.t.Helper()
	l, err := door.Listen(addr)
	if err != nil {
		wc.t.Fatal(err)
	}
	return l
}

func (wc *wireCell) path(id uint64) string { return filepath.Join(wc.dir, fmt.Sprint(id)) }

func (wc *wireCell) init(id uint64, join bool) {
	wc.t.Helper()
	if err := Init(checkpoint.Config{Dir: wc.path(id)}, &borgpb.ReplicaIdentity{
		CellName: "test", CellId: "test-0001", Epoch: 1, Replica: id, Members: wc.members, Join: join,
	}); err != nil {
		wc.t.Fatal(err)
	}
}

func (wc *wireCell) start(id uint64, l net.Listener) *wireReplica {
	wc.t.Helper()
	own := source(wc.t, identity.Master, fmt.Sprint(id))
	r, err := Open(Config{Identity: own, Store: checkpoint.Config{Dir: wc.path(id), TailEntries: 64}, FlushInterval: 20 * time.Millisecond})
	if err != nil {
		wc.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &wireReplica{Replica: r, server: door.NewServer(door.Config{Identity: own}), cancel: cancel, ended: make(chan error, 2)}
	r.RegisterServices(w.server)
	wc.running[id] = w
	go func() { _ = w.server.Serve(l) }()
	go func() { w.ended <- r.Run(ctx) }()
	return w
}

func (wc *wireCell) stop(id uint64) error {
	w := wc.running[id]
	delete(wc.running, id)
	w.cancel()
	err := <-w.ended
	w.server.Stop()
	return err
}

func (wc *wireCell) wait(what string, ok func() bool) {
	wc.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			wc.t.Fatalf("%s: not after 30 s", what)
		}
	}
}

// ended waits for a replica to end by itself.
func (wc *wireCell) ended(w *wireReplica) (err error) {
	wc.t.Helper()
	wc.wait("the replica ends", func() bool {
		select {
		case err = <-w.ended:
			return true
		default:
			return false
		}
	})
	return err
}

func (wc *wireCell) elected() *wireReplica {
	wc.t.Helper()
	var found *wireReplica
	wc.wait("a replica is elected", func() bool {
		for id, r := range wc.running {
			if s := r.State(); s.Ready && s.Elected == id {
				found = r
			}
		}
		return found != nil
	})
	return found
}

func TestWire(t *testing.T) {
	wc := newWireCell(t, 3)
	leader := wc.elected()
	for i := range 300 {
		wc.wait("an op is done", func() bool {
			_, err := wc.elected().Propose(context.Background(), machineOp(fmt.Sprintf("m-%d", i)))
			return err == nil
		})
	}
	all := func(r *wireReplica) bool {
		n := 0
		r.View(func(c *cell.Cell) {
			for i := range 300 {
				if c.Machine(fmt.Sprintf("m-%d", i)) != nil {
					n++
				}
			}
		})
		return n == 300
	}
	for _, r := range wc.running {
		wc.wait("all have all", func() bool { return all(r) })
	}

	checkCheckpoint(t, leader)

	// A new replica is sent a checkpoint over the wire.
	l := wc.listen("127.0.0.1:0")
	me := &borgpb.Member{Id: 4, Addr: l.Addr().String()}
	leader = wc.elected()
	if err := leader.AddLearner(context.Background(), me); err != nil {
		t.Fatal(err)
	}
	wc.init(4, true)
	joined := wc.start(4, l)
	wc.wait("the new replica votes", func() bool { return len(joined.voters()) == 4 })
	if !all(joined) {
		t.Error("the new replica lacks something")
	}
	if err := joined.ReadIndex(context.Background()); err != nil {
		t.Error(err)
	}

	// One that is removed is told so and stops.
	leader = wc.elected()
	var gone uint64
	for id, r := range wc.running {
		if r != leader && id != 4 {
			gone = id
		}
	}
	if err := wc.elected().RemoveMember(context.Background(), gone); err != nil {
		t.Fatal(err)
	}
	if err := wc.ended(wc.running[gone]); !errors.Is(err, ErrRemoved) {
		t.Errorf("the removed replica ended with %v", err)
	}
	wc.running[gone].ended <- nil
	if err := wc.elected().AddLearner(context.Background(), wc.members[gone-1]); err == nil {
		t.Error("a removed number was taken in again")
	}
}

// checkCheckpoint takes a checkpoint of a replica at work and loads the cell
// from it.
func checkCheckpoint(t *testing.T, r *wireReplica) {
	t.Helper()
	var file bytes.Buffer
	index, err := r.Checkpoint(context.Background(), &file)
	if err != nil {
		t.Fatal(err)
	}
	cr, err := checkpoint.NewReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cell.Load(cr.Records())
	if err := errors.Join(err, cr.Err()); err != nil {
		t.Fatal(err)
	}
	if d := c.Digest(); c.Index() != index || cr.Header().GetIndex() != index || !bytes.Equal(d[:], cr.Header().GetDigest()) {
		t.Errorf("the checkpoint of index %d has a cell of %d with digest %x; its header is %v", index, c.Index(), d, cr.Header())
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}

// TestLostDisk has a replica come back under its old number with a new
// directory. It might break its old promises, so nobody lets it in.
func TestLostDisk(t *testing.T) {
	wc := newWireCell(t, 3)
	leader := wc.elected()
	known := func() bool {
		for _, m := range leader.Members() {
			if m.GetIncarnation() == 0 {
				return false
			}
		}
		return true
	}
	wc.wait("all directories are known", known)
	var lost uint64
	for id, r := range wc.running {
		if r != leader {
			lost = id
		}
	}
	if err := wc.stop(lost); err != nil {
		t.Fatal(err)
	}
	wc.dir = t.TempDir()
	wc.init(lost, false)
	w := wc.start(lost, wc.listen(wc.members[lost-1].GetAddr()))
	// Raft itself may be the first to notice, by a heartbeat that speaks of
	// entries that are gone.
	var raft raftPanic
	if err := wc.ended(w); !errors.Is(err, ErrIncarnation) && !errors.As(err, &raft) {
		t.Errorf("a replica that lost its disk ended with %v, want ErrIncarnation", err)
	}
	w.ended <- nil
}

// TestReplicasSpeakForThemselves: the messages of a stream count as those of the
// replica that the certificate names, or not at all.
func TestReplicasSpeakForThemselves(t *testing.T) {
	wc := newWireCell(t, 1)
	who := source(t, identity.Master, "3")
	conn, err := door.Dial(wc.members[0].GetAddr(), who, door.AnyMaster(who))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := borgrpc.NewRaftServiceClient(conn)
	send := func(from uint64) error {
		stream, err := client.Send(t.Context())
		if err != nil {
			return err
		}
		_ = stream.Send(&borgrpc.SendRequest{CellId: "test-0001", Epoch: 1, From: from, To: 1, Incarnation: 7})
		_, err = stream.CloseAndRecv()
		return err
	}
	if err := send(2); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "master 3 speaks as replica 2") {
		t.Errorf("replica 3 speaks as replica 2: %v, want PermissionDenied", err)
	}
	if err := send(3); err != nil {
		t.Errorf("replica 3 speaks as itself: %v", err)
	}
	snapshot, err := client.SendSnapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = snapshot.Send(&borgrpc.SendSnapshotRequest{CellId: "test-0001", Epoch: 1, From: 2, To: 1})
	if _, err := snapshot.CloseAndRecv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("replica 3 sends a checkpoint as replica 2: %v, want PermissionDenied", err)
	}
}
