package borglet

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// State is the full state of a borglet as it is reported.
type State struct {
	Tasks []*borgpb.TaskReport
	// Versions of the specs held, in the order of Tasks; zero: none is held.
	Versions []uint64
	// Hash over both.
	Hash []byte
}

// State reports every copy that is not forgotten, in the order of ids.
func (c *Core) State() State {
	s := State{
		Tasks:    make([]*borgpb.TaskReport, 0, len(c.ids)),
		Versions: make([]uint64, 0, len(c.ids)),
	}
	h := sha256.New()
	for _, id := range c.ids {
		t := c.copies[id]
		report := t.report()
		version := t.Desired.GetVersion()
		hashReport(h, report, version)
		s.Tasks = append(s.Tasks, report)
		s.Versions = append(s.Versions, version)
	}
	s.Hash = h.Sum(nil)
	return s
}

// Running lists the copies whose process runs.
func (c *Core) Running() []ID {
	var ids []ID
	for _, id := range c.ids {
		if c.copies[id].phase == running {
			ids = append(ids, id)
		}
	}
	return ids
}

// report is what is said of a copy. That it has ended is said once its record
// says so too; until then, what was said last.
func (t *task) report() *borgpb.TaskReport {
	if t.phase == ended && !t.kept && !mutant.Planted(mutant.EndNotKept) {
		if t.told == nil {
			t.told = t.reportAs(borgpb.AttemptState_ATTEMPT_STATE_STARTING)
			if t.Stop != nil || t.Run == 0 {
				t.told.State = int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPING)
			}
			t.told.Exit, t.told.Text = nil, ""
		}
		return t.told
	}
	r := t.reportAs(t.state())
	if t.phase != ended {
		t.told = r
	}
	return r
}

func (t *task) reportAs(state borgpb.AttemptState) *borgpb.TaskReport {
	var text []string
	for _, s := range []string{t.Text, t.note, t.health.text, t.readiness.text, t.updateNote} {
		if s != "" {
			text = append(text, s)
		}
	}
	return &borgpb.TaskReport{
		JobUid:        t.ID.JobUID,
		Index:         t.ID.Index,
		Attempt:       t.ID.Attempt,
		State:         int32(state),
		Restarts:      t.Restarts,
		Pid:           t.pid,
		Exit:          t.Exit,
		StartedWallNs: t.StartedWallNs,
		Text:          strings.Join(text, "; "),
		ShimLost:      t.ShimLost,
		Addr:          t.addr,
	}
}

func (t *task) state() borgpb.AttemptState {
	switch {
	case t.phase == ended:
		return t.Ended
	case t.Stop != nil:
		return borgpb.AttemptState_ATTEMPT_STATE_STOPPING
	case t.phase == running && t.ready():
		return borgpb.AttemptState_ATTEMPT_STATE_RUNNING
	case t.phase == backoff:
		return borgpb.AttemptState_ATTEMPT_STATE_BACKOFF
	default:
		return borgpb.AttemptState_ATTEMPT_STATE_STARTING
	}
}

// hashReport adds one report in an encoding of its own: protobuf bytes may
// differ from build to build. Whoever adds a field to TaskReport adds it here.
func hashReport(h hash.Hash, r *borgpb.TaskReport, version uint64) {
	var buf []byte
	text := func(s string) {
		buf = binary.AppendUvarint(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	number := func(n int64) { buf = binary.AppendVarint(buf, n) }
	flag := func(b bool) {
		if b {
			buf = append(buf, 1)
		} else {
			buf = append(buf, 0)
		}
	}
	text(r.GetJobUid())
	number(int64(r.GetIndex()))
	number(int64(r.GetAttempt()))
	number(int64(r.GetState()))
	number(int64(r.GetRestarts()))
	number(r.GetPid())
	number(r.GetStartedWallNs())
	text(r.GetText())
	flag(r.GetShimLost())
	flag(r.GetExit() != nil)
	number(int64(r.GetExit().GetCode()))
	number(int64(r.GetExit().GetSignal()))
	flag(r.GetExit().GetOom())
	flag(r.GetExit().GetUnknown())
	number(r.GetExit().GetEndedWallNs())
	text(r.GetExit().GetError())
	number(int64(version))
	if r.GetAddr() != "" {
		// Nothing that may follow begins so.
		buf = append(buf, 0xff)
		text(r.GetAddr())
	}
	if r.GetExit().GetReason() != "" {
		buf = append(buf, 0xfe)
		text(r.GetExit().GetReason())
	}
	h.Write(buf)
}
