package fauxmaster

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// Check is one place at which a replay was compared with what the live masters
// wrote down.
type Check struct {
	Epoch, Index uint64
	// What it was compared with: "checkpoint" or "logged digest".
	With string
	// Not empty: they differ, or why they could not be compared.
	Differs, Skipped string
}

// Report is what a replay came to.
type Report struct {
	Checks []Check
	// Entries that were applied, and ops in them that were refused.
	Entries, Refused uint64
	// Places at which the change log has no entries; the replay went on from the
	// next checkpoint.
	Gaps []string
	// Decisions of schedulers, when they were made again.
	Decisions Decisions
}

// Compared counts the checks that were made, and those of them that failed.
func (r *Report) Compared() (made, differ int) {
	for _, c := range r.Checks {
		if c.Skipped == "" {
			made++
		}
		if c.Differs != "" {
			differ++
		}
	}
	return made, differ
}

// Replay says what a replay does besides comparing digests.
type Replay struct {
	// Not nil: the decisions of schedulers with that configuration are made again.
	Decide *scheduler.Config
	// Nil: nobody is told how far it is.
	Progress func(epoch, index uint64)
}

// Verify applies the whole change log again, from the first checkpoint, and
// compares digests with those that elected masters logged and those in the
// headers of later checkpoints.
func (p *Past) Verify(with Replay) (*Report, error) {
	r := new(Report)
	for i := 0; i < len(p.kept); {
		t, err := p.play(p.kept[i])
		if err != nil {
			return r, err
		}
		if with.Decide != nil {
			d, err := p.decide(t, *with.Decide)
			if err != nil {
				t.Close()
				return r, err
			}
			t.follow(d)
		}
		i, err = r.run(p.kept, i, t, with.Progress)
		if t.decider != nil {
			r.Decisions.add(t.decider.Decisions)
			t.decider.close()
		}
		t.Close()
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// run replays from a checkpoint to the end of its epoch or to a gap, and returns
// the number of the checkpoint to go on from.
func (r *Report) run(kept []checkpoint.Kept, i int, t *Tape, progress func(epoch, index uint64)) (next int, err error) {
	epoch := t.Cell.Epoch()
	for next = i + 1; ; {
		_, err := t.Peek()
		var gap *checkpoint.GapError
		switch {
		case errors.Is(err, io.EOF), errors.As(err, &gap):
			if gap != nil {
				r.Gaps = append(r.Gaps, gap.Error())
			}
			return r.skip(kept, next, epoch, t.Cell.Index(), gap != nil), nil
		case err != nil:
			return 0, err
		}
		s, err := t.Step()
		if err != nil {
			return 0, err
		}
		r.Entries++
		r.logged(t.Cell, s)
		for ; next < len(kept) && kept[next].Header.GetEpoch() == epoch && kept[next].Header.GetIndex() <= s.Index; next++ {
			r.reached(t.Cell, kept[next].Header)
		}
		if progress != nil && s.Index%1024 == 0 {
			progress(epoch, s.Index)
		}
	}
}

// skip says which checkpoint is the next to begin with: the first behind a gap,
// or of a later epoch.
func (r *Report) skip(kept []checkpoint.Kept, next int, epoch, index uint64, gap bool) int {
	for ; next < len(kept) && kept[next].Header.GetEpoch() == epoch; next++ {
		if h := kept[next].Header; gap {
			return next
		} else if h.GetIndex() > index {
			r.Checks = append(r.Checks, Check{Epoch: epoch, Index: h.GetIndex(), With: "checkpoint", Skipped: fmt.Sprintf("the change log ends at index %d", index)})
		}
	}
	return next
}

// logged compares with the digests that an entry brings.
func (r *Report) logged(c *cell.Cell, s *Step) {
	for i, data := range s.Entry.Entry.GetOps() {
		if s.result(i).GetRefusal() != nil {
			r.Refused++
		}
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) != nil || op.GetDigest() == nil {
			continue
		}
		theirs := op.GetDigest()
		check := Check{Epoch: c.Epoch(), Index: theirs.GetIndex(), With: "logged digest"}
		if ours, ok := c.DigestAt(theirs.GetIndex()); !ok {
			check.Skipped = "it is of before the checkpoint that the replay began with"
		} else if string(ours[:]) != string(theirs.GetDigest()) {
			check.Differs = fmt.Sprintf("%x here, %x there", ours, theirs.GetDigest())
		}
		r.Checks = append(r.Checks, check)
	}
}

// reached compares with a later checkpoint.
func (r *Report) reached(c *cell.Cell, h *borgpb.CheckpointHeader) {
	check := Check{Epoch: c.Epoch(), Index: h.GetIndex(), With: "checkpoint"}
	if ours := c.Digest(); h.GetIndex() != c.Index() {
		check.Differs = fmt.Sprintf("there is no entry %d", h.GetIndex())
	} else if string(ours[:]) != string(h.GetDigest()) {
		check.Differs = fmt.Sprintf("%x here, %x there", ours, h.GetDigest())
	}
	r.Checks = append(r.Checks, check)
}
