package replica

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/checkpoint"
	"borg/proto/borgpb"
)

// TestCore plays the scenarios of testdata/core: cores without goroutines,
// clocks or disks, told what happens and asked what they do.
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		p := &play{t: t, cores: make(map[uint64]*actor)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			p.out.Reset()
			p.run(d)
			if p.out.Len() == 0 {
				return "ok\n"
			}
			return p.out.String()
		})
	})
}

// play is a cell of cores and what lies between them.
type play struct {
	t     *testing.T
	cores map[uint64]*actor
	// Messages under way, in the order in which they were sent.
	wire []*raftpb.Message
	out  strings.Builder
	// Of CoreConfig.
	uncommittedBytes uint64
}

// actor is a core, its disk and what it has still to do.
type actor struct {
	*Core
	disk    *raft.MemoryStorage
	header  *borgpb.CheckpointHeader
	appends []*Append
	applies []*Apply
	// stalled: appends do not end. slow: nothing is applied. cut: no messages come
	// or go.
	stalled, slow, cut bool
}

func (p *play) printf(format string, args ...any) { fmt.Fprintf(&p.out, format+"\n", args...) }

func (p *play) run(d *datadriven.TestData) {
	var id, n, member uint64
	d.MaybeScanArgs(p.t, "id", &id)
	d.MaybeScanArgs(p.t, "n", &n)
	d.MaybeScanArgs(p.t, "member", &member)
	a := p.cores[id]
	m := &borgpb.Member{Id: member, Addr: fmt.Sprintf("host-%d", member)}
	switch d.Cmd {
	case "cell":
		d.MaybeScanArgs(p.t, "uncommitted", &p.uncommittedBytes)
		p.cell(n)
	case "join":
		p.add(id, &borgpb.CheckpointHeader{})
	case "campaign":
		p.step(id, Campaign{})
	case "propose":
		p.step(id, Propose{Data: []byte(d.Input)})
	case "read":
		p.step(id, Read{ID: n})
	case "transfer":
		p.step(id, Transfer{To: member})
	case "add-learner":
		p.step(id, Change{ID: 1, Type: raftpb.ConfChangeAddLearnerNode, Member: m})
	case "promote":
		p.step(id, Change{ID: 2, Type: raftpb.ConfChangeAddNode, Member: m})
	case "remove":
		p.step(id, Change{ID: 3, Type: raftpb.ConfChangeRemoveNode, Member: m})
	case "tick":
		for range n {
			p.step(id, Tick{})
		}
	case "stall":
		a.stalled = true
	case "slow":
		a.slow = true
	case "resume":
		a.stalled, a.slow = false, false
	case "cut":
		a.cut = true
	case "mend":
		a.cut = false
	case "compact":
		p.compact(a)
	case "settle":
		p.settle()
	case "status":
		p.status()
	default:
		d.Fatalf(p.t, "unknown command %s", d.Cmd)
	}
}

func (p *play) cell(n uint64) {
	h := &borgpb.CheckpointHeader{Index: firstIndex, Term: firstTerm}
	for id := uint64(1); id <= n; id++ {
		h.Voters = append(h.Voters, id)
		h.Members = append(h.Members, &borgpb.Member{Id: id, Addr: fmt.Sprintf("host-%d", id)})
	}
	for id := uint64(1); id <= n; id++ {
		p.add(id, h)
	}
}

func (p *play) add(id uint64, h *borgpb.CheckpointHeader) {
	disk := raft.NewMemoryStorage()
	if h.GetIndex() > 0 {
		snap, err := checkpoint.HeaderSnapshot(h)
		if err == nil {
			err = disk.ApplySnapshot(snap)
		}
		if err != nil {
			p.t.Fatal(err)
		}
		_ = disk.SetHardState(&raftpb.HardState{Term: new(h.GetTerm()), Commit: new(h.GetIndex())})
	}
	p.cores[id] = &actor{disk: disk, header: h}
	p.begin(id, h)
}

func (p *play) begin(id uint64, h *borgpb.CheckpointHeader) {
	a := p.cores[id]
	c, err := NewCore(CoreConfig{ID: id, Nonce: 1, Storage: a.disk, Header: h, ElectionTicks: 10, HeartbeatTicks: 1, StallTicks: 25, UncommittedBytes: p.uncommittedBytes, Logger: silent{}})
	if err != nil {
		p.t.Fatal(err)
	}
	a.Core = c
}

// restart begins a core anew from what is on its disk, and what it has applied.
func (p *play) restart(id uint64) {
	a := p.cores[id]
	h := &borgpb.CheckpointHeader{Index: a.applied, Term: a.appliedTerm}
	a.Members().fill(h)
	a.appends, a.applies = nil, nil
	p.begin(id, h)
}

// silent drops raft's words: they are its own and change with it.
type silent struct{ raftLogger }

func (silent) Info(...any)             {}
func (silent) Infof(string, ...any)    {}
func (silent) Warning(...any)          {}
func (silent) Warningf(string, ...any) {}
func (silent) Error(...any)            {}
func (silent) Errorf(string, ...any)   {}

// step steps a core, and prints and keeps what it wants done.
func (p *play) step(id uint64, ev Event) {
	a := p.cores[id]
	out := a.Step(ev)
	for _, x := range out.Proposed {
		if x.Err != nil {
			p.printf("%d: refused: %v", id, x.Err)
		} else {
			p.printf("%d: taken in term %d", id, x.Term)
		}
	}
	for _, x := range out.Reads {
		p.printf("%d: read %d is answered by index %d", id, x.ID, x.Index)
	}
	if out.Changed {
		s := out.State
		p.printf("%d: term %d, elected %d, commit %d%s%s", id, s.Term, s.Elected, s.Commit, word(s.Leading, ", leading"), word(s.Settled, ", settled"))
	}
	for _, m := range out.Send {
		if !a.cut {
			p.wire = append(p.wire, m)
		}
	}
	a.appends = append(a.appends, out.Append...)
	a.applies = append(a.applies, out.Apply...)
}

func word(is bool, w string) string {
	if is {
		return w
	}
	return ""
}

// settle does all there is to do until there is nothing.
func (p *play) settle() {
	rounds := 0
	for busy := true; busy; {
		busy = false
		if rounds++; rounds > 1000 {
			p.t.Fatalf("this never settles:\n%.2000s", p.out.String())
		}
		for _, id := range slices.Sorted(maps.Keys(p.cores)) {
			a := p.cores[id]
			for len(a.appends) > 0 && !a.stalled {
				p.append(id, a)
				busy = true
			}
			for len(a.applies) > 0 && !a.slow {
				p.apply(id, a)
				busy = true
			}
		}
		wire := p.wire
		p.wire = nil
		for _, m := range wire {
			if to := p.cores[m.GetTo()]; to != nil && !to.cut {
				busy = true
				p.deliver(m)
			}
		}
	}
}

func (p *play) deliver(m *raftpb.Message) {
	if m.GetType() != raftpb.MsgSnap {
		p.step(m.GetTo(), Receive{Message: proto.CloneOf(m)})
		return
	}
	// What is sent is a picture of now, which may be newer than raft's wish.
	m = proto.CloneOf(m)
	m.Snapshot = p.picture(p.cores[m.GetFrom()])
	p.printf("%d: a checkpoint of index %d goes to %d", m.GetFrom(), m.GetSnapshot().GetMetadata().GetIndex(), m.GetTo())
	p.step(m.GetTo(), Receive{Message: m})
	p.step(m.GetFrom(), SnapshotSent{Member: m.GetTo()})
}

func (p *play) append(id uint64, a *actor) {
	x := a.appends[0]
	a.appends = a.appends[1:]
	hard, _, _ := a.disk.InitialState()
	switch voted := x.Hard.GetTerm() != hard.GetTerm() || x.Hard.GetVote() != hard.GetVote(); {
	case len(x.Entries) > 0 || x.Snapshot != nil || x.Hard != nil && voted:
		if !x.Sync {
			p.t.Errorf("replica %d answers before it is durable: entries %v, %v", id, x.Entries, x.Hard)
		}
	case x.Sync:
		p.printf("%d: syncs commit %d", id, x.Hard.GetCommit())
	}
	if x.Snapshot != nil {
		p.printf("%d: installs a checkpoint of index %d", id, x.Snapshot.GetMetadata().GetIndex())
		if err := a.disk.ApplySnapshot(x.Snapshot); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := a.disk.Append(x.Entries); err != nil {
		p.t.Fatal(err)
	}
	if x.Hard != nil {
		_ = a.disk.SetHardState(x.Hard)
	}
	if len(x.Entries) > 0 {
		p.printf("%d: appended%s", id, entries(x.Entries))
	}
	p.step(id, Appended{Append: x})
}

func (p *play) apply(id uint64, a *actor) {
	x := a.applies[0]
	a.applies = a.applies[1:]
	var es []*raftpb.Entry
	for _, e := range x.Entries {
		es = append(es, e.Entry)
		if e.Members != nil {
			p.printf("%d: members: voters %v, learners %v, removed %v", id, e.Members.Voters, e.Members.Learners, e.Members.Removed)
		}
		if e.Refused != nil {
			p.printf("%d: change refused: %v", id, e.Refused)
		}
	}
	p.printf("%d: applied%s", id, entries(es))
	p.step(id, Applied{Apply: x})
}

func entries(es []*raftpb.Entry) string {
	var b strings.Builder
	for _, e := range es {
		fmt.Fprintf(&b, " %d/%d", e.GetTerm(), e.GetIndex())
		switch {
		case e.GetType() != raftpb.EntryNormal:
			b.WriteString(":change")
		case len(e.GetData()) > 0:
			fmt.Fprintf(&b, ":%q", e.GetData())
		}
	}
	return b.String()
}

// compact drops a core's log up to what it has applied.
func (p *play) compact(a *actor) {
	snap := p.picture(a)
	meta := snap.GetMetadata()
	if _, err := a.disk.CreateSnapshot(meta.GetIndex(), meta.GetConfState(), snap.GetData()); err != nil {
		p.t.Fatal(err)
	}
	if err := a.disk.Compact(meta.GetIndex()); err != nil {
		p.t.Fatal(err)
	}
}

// picture is what a checkpoint of a core's applied state would stand for.
func (p *play) picture(a *actor) *raftpb.Snapshot {
	h := &borgpb.CheckpointHeader{Index: a.applied, Term: a.appliedTerm}
	a.Members().fill(h)
	snap, err := checkpoint.HeaderSnapshot(h)
	if err != nil {
		p.t.Fatal(err)
	}
	return snap
}

func (p *play) status() {
	for _, id := range slices.Sorted(maps.Keys(p.cores)) {
		a := p.cores[id]
		s := a.State()
		p.printf("%d: term %d, elected %d, commit %d, applied %d%s", id, s.Term, s.Elected, s.Commit, a.applied, word(s.Leading, ", leading"))
	}
}
