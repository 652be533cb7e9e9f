package sim

import (
	"bytes"
	"context"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/replica"
	"borg/checkpoint"
)

// sendSnapshot sends a picture of the records. The sender hears of it when it
// was taken in, or of nothing within a while, which is a failure.
func (r *replicaNode) sendSnapshot(to *replicaNode, m *raftpb.Message) {
	r.flush()
	p, err := r.store.Picture()
	if err != nil {
		r.w.fail("replica %d has no picture to send: %v", r.id, err)
		return
	}
	defer p.Close()
	var file bytes.Buffer
	m = proto.CloneOf(m)
	if m.Snapshot, err = checkpoint.HeaderSnapshot(p.Header()); err == nil {
		err = p.WriteTo(context.Background(), &file)
	}
	if err != nil {
		r.w.fail("replica %d cannot write a checkpoint: %v", r.id, err)
		return
	}
	r.w.mark("checkpoint sent")
	r.w.say("replica %d sends a checkpoint of index %d to %d", r.id, p.Header().GetIndex(), to.id)
	ended := false
	end := func(failed bool) {
		if !ended {
			ended = true
			r.turn(replica.SnapshotSent{Member: to.id, Failed: failed})
		}
	}
	life := r.life
	r.after(2*second, func() { end(true) })
	r.w.send(replicaEnd(r.id), replicaEnd(to.id), func() {
		to.arrive(func() {
			to.receiveSnapshot(m, file.Bytes())
			r.w.send(replicaEnd(to.id), replicaEnd(r.id), func() { r.enter(life, func() { end(false) }) })
		})
	})
}

func (r *replicaNode) receiveSnapshot(m *raftpb.Message, file []byte) {
	if r.store.Received() != nil {
		return
	}
	in, err := r.store.Receive(bytes.NewReader(file))
	if err != nil {
		r.w.fail("replica %d cannot receive a checkpoint: %v", r.id, err)
		return
	}
	out := r.core.Step(replica.Receive{Message: m})
	wanted := false
	for _, a := range out.Append {
		wanted = wanted || a.Snapshot.GetMetadata().GetIndex() == in.Header().GetIndex()
	}
	r.handOut(out, in)
	if !wanted {
		r.w.mark("checkpoint not wanted")
		if err := r.store.Discard(in); err != nil {
			r.w.fail("replica %d cannot discard a checkpoint: %v", r.id, err)
		}
	}
}

// install puts a received checkpoint in the place of everything, after what was
// to be applied before it.
func (r *replicaNode) install(it appendItem) {
	for _, a := range r.applyQueue {
		r.apply(a)
	}
	r.applyQueue = nil
	hard := it.append.Hard
	if hard == nil {
		hard = r.store.HardState()
	}
	if it.received == nil {
		r.w.fail("replica %d is to install a checkpoint that it did not receive", r.id)
		return
	}
	if err := r.store.Install(it.received, hard); err != nil {
		r.w.fail("replica %d cannot install a checkpoint: %v", r.id, err)
		return
	}
	c, err := replica.LoadCell(r.store)
	if err != nil {
		r.w.fail("replica %d cannot load a received checkpoint: %v", r.id, err)
		return
	}
	if err := c.AsBuild(r.build); err != nil {
		r.tooOld(err)
		return
	}
	r.cell = c
	r.baseTerm, r.baseCellNs = c.Term(), c.TimeNs()
	r.w.mark("checkpoint installed")
	r.w.say("replica %d installs a checkpoint of index %d", r.id, c.Index())
	r.w.truth.loaded(r.id, c)
	r.answerReads()
	r.master.restored()
}
