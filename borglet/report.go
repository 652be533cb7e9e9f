package borglet

import (
	"crypto/sha256"
	"encoding/binary"

	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
	"borg/tell/hostpath"
)

// State is the full state of a borglet as it is reported.
type State struct {
	Tasks []*borgpb.TaskReport
	// Versions of the specs held, in the order of Tasks; zero: none is held.
	Versions []uint64
	// Marks of the labels held, in the order of Tasks; zero: none are.
	LabelMarks []uint64
	// Hash over all.
	Hash []byte
}

// State reports every copy that is not forgotten, in the order of ids. Its reports stay as
// they are.
func (c *Core) State() State {
	s := State{
		Tasks:    make([]*borgpb.TaskReport, 0, len(c.ids)),
		Versions: make([]uint64, 0, len(c.ids)),

		LabelMarks: make([]uint64, 0, len(c.ids)),
	}
	h := sha256.New()
	for _, id := range c.ids {
		t := c.copies[id]
		report := t.report(c.cfg.HostPaths)
		version := t.Desired.GetVersion()
		c.hashBuf = appendReport(c.hashBuf[:0], report, version)
		mark := t.Desired.GetLabelMark()
		if mark != 0 {
			c.hashBuf = binary.AppendUvarint(append(c.hashBuf, 0xf9), mark)
		}
		h.Write(c.hashBuf)
		s.Tasks = append(s.Tasks, report)
		s.Versions = append(s.Versions, version)
		s.LabelMarks = append(s.LabelMarks, mark)
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
func (t *task) report(host *hostpath.Dirs) *borgpb.TaskReport {
	if t.phase == ended && !t.kept && !mutant.Planted(mutant.EndNotKept) {
		if t.told == nil {
			says := t.says(borgpb.AttemptState_ATTEMPT_STATE_STARTING)
			if t.Stop != nil || t.Run == 0 {
				says.state = borgpb.AttemptState_ATTEMPT_STATE_STOPPING
			}
			says.exit, says.text = nil, ""
			t.tell(says, host)
		}
		return t.told
	}
	t.tell(t.says(t.state()), host)
	return t.told
}

// says is what a report says beside the id.
type says struct {
	state         borgpb.AttemptState
	restarts      uint32
	failures      uint32
	oomKills      uint32
	pid           int64
	exit          *borgpb.Exit
	startedWallNs int64
	text          string
	shimLost      bool
	unwell        bool
	addr          string
}

func (t *task) says(state borgpb.AttemptState) says {
	var text string
	for _, s := range [...]string{t.Text, t.note, t.oomText, t.health.text, t.readiness.text, t.updateNote} {
		switch {
		case s == "":
		case text == "":
			text = s
		default:
			text += "; " + s
		}
	}
	return says{
		state: state, restarts: t.Restarts, failures: t.Failures, oomKills: t.oomKills, pid: t.pid, exit: t.Exit,
		startedWallNs: t.StartedWallNs, text: text, shimLost: t.ShimLost, addr: t.addr,
		unwell: t.health.text != "" || t.readiness.text != "",
	}
}

// tell replaces the report if it changed; most polls find no change. The texts of a report
// name no paths of the machine.
func (t *task) tell(now says, host *hostpath.Dirs) {
	if t.told != nil && t.toldSays == now {
		return
	}
	t.toldSays = now
	t.told = &borgpb.TaskReport{
		JobUid:        t.ID.JobUID,
		Index:         t.ID.Index,
		Attempt:       t.ID.Attempt,
		State:         int32(now.state),
		Restarts:      now.restarts,
		Pid:           now.pid,
		Exit:          exitWithout(host, now.exit),
		StartedWallNs: now.startedWallNs,
		Text:          host.Hide(now.text),
		ShimLost:      now.shimLost,
		Unwell:        now.unwell,
		Addr:          now.addr,
		Failures:      now.failures,
		OomKills:      now.oomKills,
		HeldPorts:     heldPortsProto(t.heldPortsIn(now.state)),
	}
}

// exitWithout is an exit that names no paths of the machine.
func exitWithout(host *hostpath.Dirs, e *borgpb.Exit) *borgpb.Exit {
	text, reason := host.Hide(e.GetError()), host.Hide(e.GetReason())
	if text == e.GetError() && reason == e.GetReason() {
		return e
	}
	e = proto.CloneOf(e)
	e.Error, e.Reason = text, reason
	return e
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

// appendReport adds one report, for the hash, in an encoding of its own: protobuf bytes may
// differ from build to build. Whoever adds a field to TaskReport adds it here.
func appendReport(buf []byte, r *borgpb.TaskReport, version uint64) []byte {
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
	if e := r.GetExit(); e.GetReasonCode() != 0 || e.GetOomProcess() != "" || e.GetOomBytes() != 0 {
		buf = append(buf, 0xfb)
		number(int64(e.GetReasonCode()))
		text(e.GetOomProcess())
		number(e.GetOomBytes())
	}
	if r.GetFailures() != 0 {
		buf = append(buf, 0xfd)
		number(int64(r.GetFailures()))
	}
	if r.GetOomKills() != 0 {
		buf = append(buf, 0xfa)
		number(int64(r.GetOomKills()))
	}
	if ports := r.GetHeldPorts(); len(ports) > 0 {
		buf = append(buf, 0xfc)
		for _, h := range ports {
			number(int64(h.GetPort()))
			text(h.GetBy())
		}
	}
	return buf
}
