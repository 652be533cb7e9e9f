package sim

import (
	"bytes"
	"context"
	"slices"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/borgmaster/linkshard"
	"borg/borgmaster/replica"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// The cell is without masters for so long.
	restoreGapNs = 2 * second
	// So often an operator looks at what runs unknown.
	operateNs = 500 * millisecond
)

// restore is a run's loss of all disks, and the checkpoint of before with which it
// goes on; aim "restored". It comes instead of healing, which follows: clients have
// been told things that the cell does not know any more, so what they were told is
// judged before it.
type restore struct {
	file []byte
	// The cell as it was lost; nil: it was not yet.
	lost *cell.Cell
	// An op of the operator is under way.
	asking bool
}

// takeCheckpoint keeps a checkpoint of any replica, once all machines are there.
func (w *World) takeCheckpoint() {
	x := w.leader()
	if x == nil || x.cell.NumMachines() < len(w.machines) || x.cell.NumAdmins() == 0 {
		w.after(100*millisecond, w.takeCheckpoint)
		return
	}
	var file bytes.Buffer
	x.flush()
	p, err := x.store.Picture()
	if err == nil {
		err = p.WriteTo(context.Background(), &file)
		_ = p.Close()
	}
	if err != nil {
		w.fail("a checkpoint cannot be taken: %v", err)
	}
	w.say("a checkpoint is taken of index %d", x.cell.Index())
	w.restore.file = file.Bytes()
}

// loseDisks ends all replicas and takes their disks away.
func (w *World) loseDisks() {
	w.say("the disks of all replicas are lost at index %d", w.truth.index)
	w.mark("all disks lost")
	// What is asked and not answered may be done all the same.
	for _, c := range w.clients {
		if c.op != nil && c.asked.Kind != 0 {
			w.story.turned = append(w.story.turned, turned{c.op.RequestId, c.asked})
		}
		if c.op != nil && c.files.asked.Kind != 0 {
			w.story.addFile(c.files.asked, c.op.RequestId, true)
		}
	}
	w.judge()
	w.story = story{rand: w.story.rand}
	w.restore.lost = w.truth.cell
	w.truth.ackedIndex = 0
	for _, x := range w.replicas {
		x.mend()
		x.resume()
		x.crash(keepAll, false)
		x.life++
		x.disk = newDisk()
	}
	for _, c := range append(w.clients, w.operator.client) {
		c.op, c.first, c.idle = nil, nil, true
	}
	w.after(restoreGapNs, w.restoreAll)
}

// restoreAll makes the directories anew, as the operator of docs/restore.md does,
// and lets the second phase begin.
func (w *World) restoreAll() {
	w.restoreDamaged()
	var first *cell.Cell
	for _, x := range w.replicas {
		c, h, err := replica.ReadCheckpoint(bytes.NewReader(w.restore.file))
		if err == nil {
			err = c.Restore(h.GetEpoch() + 1)
		}
		if err != nil {
			w.fail("S14: the checkpoint cannot be restored: %v", err)
			return
		}
		x.ident.Epoch, x.ident.BeganDigest = h.GetEpoch()+1, nil
		x.ident.Incarnation += replicas
		x.build, x.steppedBack = cell.BuildFormat, false
		if err := replica.Restore(x.storeConfig(), x.ident, h, c); err != nil {
			w.fail("S14: replica %d cannot be restored: %v", x.id, err)
			return
		}
		if first == nil {
			first = c
		}
	}
	w.truth.restored(first)
	w.mark("old checkpoint restored")
	w.heal()
	w.operate()
}

// restoreDamaged: S14, of a file with a wrong byte nothing is made.
func (w *World) restoreDamaged() {
	bad := bytes.Clone(w.restore.file)
	bad[w.rand.IntN(len(bad))] ^= 1 << w.rand.IntN(8)
	if _, _, err := replica.ReadCheckpoint(bytes.NewReader(bad)); err == nil {
		w.fail("S14: a checkpoint with a wrong byte can be restored")
	}
}

// restored forgets what was done after the checkpoint.
func (t *truth) restored(c *cell.Cell) {
	again, err := copyCell(c)
	if err != nil {
		t.w.fail("S14: the restored cell cannot be loaded: %v", err)
		return
	}
	t.cell, t.index = again, again.Index()
	t.entries = map[uint64]committed{t.index: {term: again.Term(), digest: again.Digest()}}
	t.leaders, t.downs = map[uint64]uint64{}, nil
	for id, d := range t.done {
		if d.index > t.index {
			delete(t.done, id)
			delete(t.acked, id)
			t.w.mark("acknowledged and lost with the disks")
		}
	}
	if t.keepsRefusals == 0 || t.keepsRefusals > t.index {
		t.keepsRefusals = t.index
	}
}

// fromBefore tells whether a copy runs that was assigned before the disks were lost
// and that the restored cell does not have: nobody may stop it.
func (t *truth) fromBefore(id borglet.ID) bool {
	_, assigned := t.assigned[id]
	return t.w.restore.lost != nil && assigned
}

// stopsUnknown: S10, what the restored cell does not know is left alone, unless it was
// being stopped when the disks were lost.
func (t *truth) stopsUnknown(m *machine, id borglet.ID) {
	if !t.fromBefore(id) {
		return
	}
	uid, _ := cell.ParseUID(id.JobUID)
	x := t.w.restore.lost.Machine(m.name)
	if x == nil {
		return
	}
	if p := x.Copy(cell.CopyID{Job: uid, Index: id.Index, Attempt: id.Attempt}); p != nil && p.Cause() == borgpb.StopCause_STOP_CAUSE_UNSPECIFIED {
		t.w.fail("S10: copy %s on %s is stopped, and the restored cell does not know it", id, m.name)
	}
}

// startsTwice: S7, after a restore no task is started while another copy of it may run
// on a machine that has not told yet what it runs.
func (t *truth) startsTwice(m *machine, r borglet.Record) {
	if t.w.restore.lost == nil || r.Run != 1 {
		return
	}
	for _, other := range t.w.machines {
		x := t.cell.Machine(other.name)
		if x == nil || !x.Up() || !x.Unheard() {
			continue
		}
		for _, id := range other.Running() {
			if id.JobUID == r.ID.JobUID && id.Index == r.ID.Index && id.Attempt != r.ID.Attempt {
				t.w.fail("S7: copy %s starts on %s while %s runs on %s, which was not heard", r.ID, m.name, id, other.name)
			}
		}
	}
}

// operate is an operator who adopts what runs unknown, or has it stopped.
func (w *World) operate() {
	w.after(operateNs, func() {
		if r := w.leader(); r != nil && r.up && !w.restore.asking {
			w.adoptUnknown(r)
		}
		w.operate()
	})
}

// adoptUnknown asks each machine with unknown copies what they are, and does about
// one job what can be done.
func (w *World) adoptUnknown(r *replicaNode) {
	var all []*borgrpc.Unknown
	for x := range r.cell.Machines() {
		if m := w.machineNamed(x.Name()); x.Unknown() > 0 && m.Up() && m.Agent() {
			all = append(all, w.describeUnknown(r, x, m)...)
		}
	}
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b *borgrpc.Unknown) int {
		return bytes.Compare([]byte(a.Report.JobUid), []byte(b.Report.JobUid))
	})
	group := all[:1]
	for len(group) < len(all) && all[len(group)].Report.JobUid == all[0].Report.JobUid {
		group = all[:len(group)+1]
	}
	op := &borgpb.Op{Principal: ownOp()}
	adopt, why := borgmaster.Adoption(r.cell.Format(), group)
	if why == "" && !chance(w.rand, 300) {
		op.Op = &borgpb.Op_AdoptJob{AdoptJob: adopt}
	} else {
		op.Op = &borgpb.Op_StopUnknown{StopUnknown: &borgpb.StopUnknown{Machine: group[0].Machine, Copies: []*borgpb.UnknownCopy{borgmaster.UnknownCopy(group[0])}}}
	}
	w.restore.asking = true
	r.propose(op, w.now+2*second, func(res *borgpb.Result, err error) {
		w.restore.asking = false
		w.say("the operator is answered: %v, %v", res.GetRefusal().GetMessage(), err)
		switch {
		case err != nil || res.GetRefusal() != nil:
		case op.GetAdoptJob() != nil:
			w.mark("unknown job adopted")
		default:
			w.mark("unknown copy stopped by an operator")
		}
	})
	w.after(3*second, func() { w.restore.asking = false })
}

func (w *World) describeUnknown(r *replicaNode, x *cell.Machine, m *machine) (found []*borgrpc.Unknown) {
	req := linkshard.Build(r.cell, x, cellName, r.id, &linkshard.Known{})
	resp, err := m.Answer(req)
	if err != nil || resp.GetFenced() {
		return nil
	}
	req = linkshard.Build(r.cell, x, cellName, r.id, &linkshard.Known{})
	for _, t := range linkshard.Unknown(r.cell, x, resp.Tasks) {
		if s := borgpb.AttemptState(t.State); s > borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE {
			continue
		}
		found = append(found, &borgrpc.Unknown{Machine: m.name, Report: t})
		req.Describe = append(req.Describe, &borgrpc.CopyID{JobUid: t.JobUid, Index: t.Index, Attempt: t.Attempt})
	}
	if resp, err = m.Answer(req); err != nil {
		return nil
	}
	for _, u := range found {
		for _, d := range resp.Described {
			if d.Copy.GetJobUid() == u.Report.JobUid && d.Copy.GetIndex() == u.Report.Index && d.Copy.GetAttempt() == u.Report.Attempt {
				u.Runs = d
			}
		}
		u.WhyNot = borgmaster.WhyNotAdopted(r.cell, u)
	}
	return slices.DeleteFunc(found, func(u *borgrpc.Unknown) bool { return u.Runs == nil })
}
