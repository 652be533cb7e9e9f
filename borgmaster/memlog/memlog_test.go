package memlog_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/borgmaster/memlog"
	"borg/proto/borgpb"
)

// notes is a listener that remembers what it heard.
type notes struct {
	log     *memlog.Log
	heard   []uint64
	states  []borgmaster.LogState
	blinded bool
}

func (n *notes) Applied(e borgmaster.CommittedEntry, _ []*borgpb.Result, _ []cell.Event) {
	n.heard = append(n.heard, e.Index)
	n.log.View(func(c *cell.Cell) { n.blinded = n.blinded || c.Index() != e.Index })
}
func (n *notes) StateChanged(s borgmaster.LogState) { n.states = append(n.states, s) }
func (n *notes) Restored(uint64)                    {}

func newGroup(t *testing.T, replicas int) *memlog.Group {
	t.Helper()
	ns := int64(0)
	g, err := memlog.NewGroup(memlog.Config{CellID: "c", Epoch: 1, Replicas: replicas, Clock: func() (int64, int64) {
		ns += 1e9
		return ns, 1e18 + ns
	}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func submit(t *testing.T, n int) *borgpb.Op {
	t.Helper()
	spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200, Task: &borgpb.TaskSpec{
		Args: []string{"/bin/true"}, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}, GraceNs: 1e9,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &borgpb.Op{
		RequestId: fmt.Sprint("r", n), RequestWallNs: 1e18, Principal: &borgpb.Principal{User: "a", Role: borgpb.Role_ROLE_USER},
		Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "a", Name: fmt.Sprint("j", n), Spec: spec}},
	}
}

func TestEveryReplicaAppliesAndHears(t *testing.T) {
	g := newGroup(t, 3)
	var all []*notes
	for id := uint64(1); id <= 3; id++ {
		n := &notes{log: g.Replica(id)}
		g.Replica(id).Subscribe(n)
		all = append(all, n)
	}
	if _, err := g.Replica(1).Propose(t.Context(), submit(t, 0)); !errors.Is(err, borgmaster.ErrNotElected) {
		t.Errorf("Propose with nobody elected: %v, want ErrNotElected", err)
	}
	g.Elect(2)
	if s := g.Replica(2).State(); !s.Ready || s.Elected != 2 || s.Term != 1 || s.Applied != 1 {
		t.Errorf("after the election replica 2 stands as %+v", s)
	}
	if s := g.Replica(1).State(); s.Ready || s.Elected != 2 {
		t.Errorf("after the election replica 1 stands as %+v", s)
	}
	for n := range 5 {
		r, err := g.Replica(2).Propose(t.Context(), submit(t, n))
		if err != nil || r.Refusal != nil || r.Index != uint64(n+2) {
			t.Fatalf("Propose = %v, %v, want it done at index %d", r, err, n+2)
		}
	}
	var want cell.Digest
	for id := uint64(1); id <= 3; id++ {
		var got cell.Digest
		g.Replica(id).View(func(c *cell.Cell) { got = c.Digest() })
		if id == 1 {
			want = got
		}
		if n := all[id-1]; got != want || fmt.Sprint(n.heard) != "[1 2 3 4 5 6]" || n.blinded {
			t.Errorf("replica %d has digest %x (want %x), heard %v, saw another index: %v", id, got, want, n.heard, n.blinded)
		}
	}
}

func TestEntries(t *testing.T) {
	g := newGroup(t, 1)
	g.Elect(1)
	log := g.Replica(1)
	for n := range 9 {
		if _, err := log.Propose(t.Context(), submit(t, n)); err != nil {
			t.Fatal(err)
		}
	}
	copied := cell.New("c", 1)
	for after := uint64(0); ; after = copied.Index() {
		entries, ok := log.Entries(after, 4)
		if !ok || len(entries) > 4 {
			t.Fatalf("Entries(%d, 4) = %d entries, %v", after, len(entries), ok)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			copied.Apply(e.Index, e.Term, e.Data)
		}
	}
	log.View(func(c *cell.Cell) {
		if c.Index() != 10 || copied.Digest() != c.Digest() {
			t.Errorf("a copy fed with the entries is at %d with %x, the cell at %d with %x", copied.Index(), copied.Digest(), c.Index(), c.Digest())
		}
	})
}

func TestReadIndexWaitsForAnElection(t *testing.T) {
	g := newGroup(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.Replica(1).ReadIndex(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ReadIndex with nobody elected: %v, want it to wait", err)
	}
	done := make(chan error, 1)
	go func() { done <- g.Replica(1).ReadIndex(context.Background()) }()
	g.Elect(2)
	if err := <-done; err != nil {
		t.Errorf("ReadIndex after an election: %v", err)
	}
}
