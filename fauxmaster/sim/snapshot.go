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
	ended, life := false, r.life
	end := func(failed bool) {
		if !ended {
			ended = true
			r.after(r.holds.Ended(to.id, !failed, r.monoNs()), func() { r.turn(replica.SnapshotSent{Member: to.id, Failed: failed}) })
		}
	}
	r.sends(to)
	r.holds.Sending(to.id, m.GetSnapshot().GetMetadata().GetIndex())
	if r.flush(); !r.up {
		return
	}
	p, err := r.store.Picture()
	if err != nil {
		r.cannot("take a picture", err)
		r.after(0, func() { end(true) })
		return
	}
	defer p.Close()
	var file bytes.Buffer
	m = proto.CloneOf(m)
	if m.Snapshot, err = checkpoint.HeaderSnapshot(p.Header()); err == nil {
		if replica.CheckMember(m.Snapshot, to.id) != nil {
			r.w.mark("checkpoint too old for a new member")
			r.after(0, func() { end(true) })
			return
		}
		err = p.WriteTo(context.Background(), &file)
	}
	if err != nil {
		r.cannot("write a checkpoint", err)
		r.after(0, func() { end(true) })
		return
	}
	r.w.mark("checkpoint sent")
	r.w.say("replica %d sends a checkpoint of index %d to %d", r.id, p.Header().GetIndex(), to.id)
	late := int64(0)
	if most := r.w.swarm.checkpointLateNs; most > 0 && !r.w.healed {
		late = between(r.rand, most/2, most)
	}
	r.after(late+2*second, func() { end(true) })
	r.w.after(late, func() {
		r.w.send(replicaEnd(r.id), replicaEnd(to.id), func() {
			to.arrive(func() {
				taken := to.receiveSnapshot(m, file.Bytes())
				r.w.send(replicaEnd(to.id), replicaEnd(r.id), func() { r.enter(life, func() { end(!taken) }) })
			})
		})
	})
}

// cannot: something went wrong that does not end a process, but only the fault
// of its disk excuses it.
func (r *replicaNode) cannot(what string, err error) {
	if r.disk.failure() == (failure{}) {
		r.w.fail("replica %d cannot %s: %v", r.id, what, err)
	}
	r.w.say("replica %d cannot %s", r.id, what)
}

func (r *replicaNode) receiveSnapshot(m *raftpb.Message, file []byte) (taken bool) {
	if r.store.Received() != nil {
		return false
	}
	if r.w.now < r.refusesUntilNs {
		r.w.mark("checkpoint refused")
		return false
	}
	if r.drawFailure(); !r.counts() {
		return false
	}
	if r.disk.failure().err != nil {
		// Its first file does not fit, wherever the room ends.
		r.disk.fail(failure{err: r.disk.failure().err})
	}
	in, err := r.store.Receive(bytes.NewReader(file))
	if err != nil {
		r.cannot("receive a checkpoint", err)
		r.w.mark("no room for a checkpoint")
		return false
	}
	r.reaches(duringInstall)
	out, ok := r.step(replica.Receive{Message: m})
	if !ok {
		return false
	}
	wanted := false
	for _, a := range out.Append {
		wanted = wanted || a.Snapshot.GetMetadata().GetIndex() == in.Header().GetIndex()
	}
	r.handOut(out, in)
	if !wanted {
		r.w.mark("checkpoint not wanted")
		if err := r.store.Discard(in); err != nil {
			r.cannot("discard a checkpoint", err)
		}
	}
	return true
}

// install puts a received checkpoint in the place of everything, after what was
// to be applied before it.
func (r *replicaNode) install(it appendItem) bool {
	for _, a := range r.applyQueue {
		if r.apply(a); !r.up {
			return false
		}
	}
	r.applyQueue = nil
	hard := it.append.Hard
	if hard == nil {
		hard = r.store.HardState()
	}
	if it.received == nil {
		r.w.fail("replica %d is to install a checkpoint that it did not receive", r.id)
		return false
	}
	if !r.write("cannot install a checkpoint", func() error { return r.store.Install(it.received, hard) }) {
		return false
	}
	c, err := replica.LoadCell(r.store)
	if err != nil {
		r.exit("cannot load a received checkpoint", err)
		return false
	}
	if err := c.AsBuild(r.build); err != nil {
		r.tooOld(err)
		return false
	}
	r.cell = c
	if r.inRow++; r.inRow > mostInRow {
		r.w.fail("L7: replica %d was sent %d checkpoints in a row and never caught up", r.id, r.inRow)
	}
	r.baseTerm, r.baseCellNs = c.Term(), c.TimeNs()
	r.reaches(duringInstall)
	r.w.mark("checkpoint installed")
	r.w.say("replica %d installs a checkpoint of index %d", r.id, c.Index())
	r.w.truth.loaded(r.id, c)
	// As in production, a read is answered when all who listen were told.
	r.master.restored()
	r.answerReads()
	return true
}
