package cell

import (
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"borg/proto/borgpb"
)

// applying is what Apply knows of the entry and the op at hand.
type applying struct {
	term      uint64
	rawWallNs int64
	// Who asks for the op that is being checked.
	asker *borgpb.Principal
	// The requestSum of the op at hand; zero if it has no request id.
	sum uint64
	// The trial that checks it; nil: it is applied.
	trial *Trial
	// Of the op that is done, for events.
	user   string
	reason string
	// Objects made so far in this entry, for uids.
	made   uint32
	events []Event
	// Jobs of which something changed, to be settled when the op is done.
	touched []*Job
	// Users whose stop charges became smaller.
	eased []string
	// Users whose daemon jobs may get tasks that they wait for.
	seatable []string
	// The job whose update was the last that had to wait for copies to stop.
	heldForStops *Job
	// Dependents that this entry has ended.
	ended ended
	// The last spec of a saver that was read.
	saver saverReading
}

// commit does an op that was checked. It cannot refuse any more.
type commit func(res *borgpb.Result)

// Apply applies one log entry: data is a marshaled borgpb.Entry, or empty for
// an entry that raft made for itself. Entries come in log order, once each.
// There is one result per op, in order; an entry that cannot be read has one
// result, which says so.
func (c *Cell) Apply(index, term uint64, data []byte) ([]*borgpb.Result, []Event) {
	if index <= c.index {
		panic(fmt.Sprintf("entry %d was given to a cell at index %d", index, c.index))
	}
	c.index, c.term = index, term
	c.now, c.asked = applying{term: term}, c.asked[:0]
	c.records.changed.forget()
	c.dirty(&c.head)
	if len(data) == 0 {
		c.rememberDigest()
		return nil, nil
	}
	results := c.applyEntry(data)
	c.expireDead()
	events := c.now.events
	c.now = applying{}
	c.rememberDigest()
	return results, events
}

func (c *Cell) applyEntry(data []byte) []*borgpb.Result {
	var refusal *borgpb.Refusal
	entry, known := readEntry(data)
	switch {
	case len(data) > MaxEntryBytes:
		refusal = limit("", "an entry of %d bytes; at most %d", len(data), MaxEntryBytes)
	case !known:
		refusal = malformed("not an Entry of format %d", c.format)
	case len(entry.Ops) > MaxOpsInEntry:
		refusal = limit("", "an entry of %d ops; at most %d", len(entry.Ops), MaxOpsInEntry)
	}
	if refusal != nil {
		return []*borgpb.Result{{Index: c.index, Refusal: refusal}}
	}
	c.now.rawWallNs = entry.WallTimeNs
	if c.clock.advance(c.term, entry.CellTimeNs, entry.WallTimeNs) {
		c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_WALL_STEP, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_CELL,
			Reason: "the wall clock is " + stepWords(entry.WallTimeNs-c.clock.wallNs) + " where it was expected"})
	}
	c.forgetRequests()
	c.expireBans()
	c.expireHold()
	c.leaveTainted()
	c.portsOn()
	c.quarantineOn()
	c.drainOn()
	c.setsOn()
	c.updatesOn()
	c.saveOn()
	c.volumesOn()
	c.endOn()
	c.settleJobs()
	c.now.ended = ended{}
	results, made := make([]*borgpb.Result, len(entry.Ops)), make([]borgpb.Result, len(entry.Ops))
	// Most ops are told by one event.
	c.now.events = slices.Grow(c.now.events, len(entry.Ops))
	for i, data := range entry.Ops {
		results[i] = c.applyOp(data, &made[i])
	}
	return results
}

// readEntry reads an Entry; false: it is none, or there is something in it that no format
// knows. As an Entry that is unmarshaled, but its ops lie in data: they are most of it, and
// each is read next and not kept.
func readEntry(data []byte) (*borgpb.Entry, bool) {
	const cellTime, wallTime, ops = 1, 2, 3
	entry := new(borgpb.Entry)
	return entry, EachField(data, func(field protowire.Number, number uint64, value []byte) bool {
		switch {
		case field == cellTime && value == nil:
			entry.CellTimeNs = int64(number)
		case field == wallTime && value == nil:
			entry.WallTimeNs = int64(number)
		case field == ops && value != nil:
			entry.Ops = append(entry.Ops, value)
		default:
			return false
		}
		return true
	})
}

// applyOp decodes, checks and commits one op. The result is res, or that of the first
// time.
func (c *Cell) applyOp(data []byte, res *borgpb.Result) *borgpb.Result {
	res.Index = c.index
	c.now.asker, c.now.user, c.now.reason = nil, "", ""
	op, refusal := decodeOp(data, c.format, c.submitting)
	if refusal != nil {
		res.Refusal = refusal
		return res
	}
	c.now.asker, c.now.sum = op.Principal, sumOf(op, data)
	var do commit
	refusal = guarded(func() (r *borgpb.Refusal) {
		var again *borgpb.Result
		if again, r = c.checkRequest(op); again != nil {
			res = again
			return nil
		}
		if r == nil {
			r = c.checkPermission(op)
		}
		if r == nil {
			do, r = c.check(op)
		}
		return r
	})
	c.now.user, c.now.reason = op.Principal.GetUser(), op.Reason
	switch {
	case refusal != nil:
		res.Refusal = about(target(op), refusal)
		if op.RequestId != "" && refusal.Kind != borgpb.RefusalKind_REFUSAL_KIND_INTERNAL {
			c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_REFUSE, Name: refusal.Object, Reason: refusal.Message})
		}
		if c.keepsRefusal(op, refusal) {
			c.remember(op, res)
		}
	case do != nil:
		do(res)
		c.proveAdmin()
		c.settleJobs()
		c.remember(op, res)
	}
	return res
}

// check reads only. It returns what to do, or why not.
func (c *Cell) check(op *borgpb.Op) (commit, *borgpb.Refusal) {
	switch o := op.Op.(type) {
	case *borgpb.Op_AddMachine:
		return c.checkAddMachine(o.AddMachine)
	case *borgpb.Op_RemoveMachine:
		return c.checkRemoveMachine(o.RemoveMachine)
	case *borgpb.Op_SetMachine:
		return c.checkSetMachine(o.SetMachine)
	case *borgpb.Op_MachineUp:
		return c.checkMachineUp(o.MachineUp)
	case *borgpb.Op_MachineDown:
		return c.checkMachineDown(o.MachineDown)
	case *borgpb.Op_DrainMachine:
		return c.checkDrainMachine(o.DrainMachine, op.Reason)
	case *borgpb.Op_SubmitJob:
		return c.checkSubmitJob(o.SubmitJob)
	case *borgpb.Op_KillJob:
		return c.checkKillJob(o.KillJob)
	case *borgpb.Op_UpdateJob:
		return c.checkUpdateJob(o.UpdateJob)
	case *borgpb.Op_ResizeJob:
		return c.checkResizeJob(o.ResizeJob)
	case *borgpb.Op_ControlUpdate:
		return c.checkControlUpdate(o.ControlUpdate)
	case *borgpb.Op_SubmitAllocSet:
		return c.checkSubmitAllocSet(o.SubmitAllocSet)
	case *borgpb.Op_KillAllocSet:
		return c.checkKillAllocSet(o.KillAllocSet)
	case *borgpb.Op_Assign:
		return func(res *borgpb.Result) { c.assignAll(o.Assign, res) }, nil
	case *borgpb.Op_MoveTasks:
		return c.checkMoveTasks(o.MoveTasks)
	case *borgpb.Op_Reports:
		return func(res *borgpb.Result) { c.reportAll(o.Reports, res) }, nil
	case *borgpb.Op_Time:
		return c.checkSetTime(o.Time)
	case *borgpb.Op_RaiseFormat:
		return c.checkRaiseFormat(o.RaiseFormat)
	case *borgpb.Op_Digest:
		return c.checkDigest(o.Digest)
	case *borgpb.Op_Grant:
		return c.checkGrant(o.Grant)
	case *borgpb.Op_Revoke:
		return c.checkRevoke(o.Revoke)
	case *borgpb.Op_AddToken:
		return c.checkAddToken(o.AddToken)
	case *borgpb.Op_UseToken:
		return c.checkUseToken(o.UseToken)
	case *borgpb.Op_SetSecret:
		return c.checkSetSecret(o.SetSecret)
	case *borgpb.Op_DeleteSecret:
		return c.checkDeleteSecret(o.DeleteSecret)
	case *borgpb.Op_ResealSecret:
		return c.checkResealSecret(o.ResealSecret)
	case *borgpb.Op_UseCellKey:
		return c.checkUseCellKey(o.UseCellKey)
	case *borgpb.Op_SetTaskNote:
		return c.checkSetTaskNote(o.SetTaskNote)
	case *borgpb.Op_BanPackage:
		return c.checkBanPackage(o.BanPackage)
	case *borgpb.Op_UnbanPackage:
		return c.checkUnbanPackage(o.UnbanPackage)
	case *borgpb.Op_WriteFile:
		return c.checkWriteFile(o.WriteFile)
	case *borgpb.Op_DeleteFile:
		return c.checkDeleteFile(o.DeleteFile)
	case *borgpb.Op_HearMachines:
		return func(res *borgpb.Result) { c.hearMachines(o.HearMachines, res) }, nil
	case *borgpb.Op_EndHold:
		return c.checkEndHold(o.EndHold)
	case *borgpb.Op_DeclareLost:
		return c.checkDeclareLost(o.DeclareLost)
	case *borgpb.Op_AdoptJob:
		return c.checkAdoptJob(o.AdoptJob)
	case *borgpb.Op_StopUnknown:
		return c.checkStopUnknown(o.StopUnknown)
	case *borgpb.Op_SetLabels:
		return c.checkSetLabels(o.SetLabels)
	case *borgpb.Op_SetLabelPolicy:
		return c.checkSetLabelPolicy(o.SetLabelPolicy)
	case *borgpb.Op_SetQuota:
		return c.checkSetQuota(o.SetQuota)
	case *borgpb.Op_DeleteQuota:
		return c.checkDeleteQuota(o.DeleteQuota)
	case *borgpb.Op_SetQuotaPolicy:
		return c.checkSetQuotaPolicy(o.SetQuotaPolicy)
	case *borgpb.Op_SetTaskLimits:
		return c.checkSetTaskLimits(o.SetTaskLimits)
	case *borgpb.Op_SetStateBudget:
		return c.checkSetStateBudget(o.SetStateBudget)
	case *borgpb.Op_SetPreemptionPolicy:
		return c.checkSetPreemptionPolicy(o.SetPreemptionPolicy)
	case *borgpb.Op_SetVisibility:
		return c.checkSetVisibility(o.SetVisibility)
	case *borgpb.Op_FireCron:
		return c.checkFireCron(o.FireCron)
	case *borgpb.Op_SuspendCron:
		return c.checkSuspendCron(o.SuspendCron)
	case *borgpb.Op_JudgeGate:
		return c.checkJudgeGate(o.JudgeGate)
	case *borgpb.Op_QuarantineTask:
		return c.checkQuarantineTask(o.QuarantineTask)
	case *borgpb.Op_ReleaseTask:
		return c.checkReleaseTask(o.ReleaseTask)
	case *borgpb.Op_UpdateAllocSet:
		return c.checkUpdateAllocSet(o.UpdateAllocSet)
	case *borgpb.Op_ResizeAllocSet:
		return c.checkResizeAllocSet(o.ResizeAllocSet)
	case *borgpb.Op_DeleteVolume:
		return c.checkDeleteVolume(o.DeleteVolume)
	default:
		return nil, malformed("an op of no kind that format %d knows", c.format)
	}
}

// target names what an op is about, for a refusal that does not say.
func target(op *borgpb.Op) string {
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		return keyWords(o.SubmitJob)
	case *borgpb.Op_KillJob:
		return keyWords(o.KillJob)
	case *borgpb.Op_UpdateJob:
		return keyWords(o.UpdateJob)
	case *borgpb.Op_ResizeJob:
		return keyWords(o.ResizeJob)
	case *borgpb.Op_ControlUpdate:
		return keyWords(o.ControlUpdate)
	case *borgpb.Op_FireCron:
		return keyWords(o.FireCron)
	case *borgpb.Op_SuspendCron:
		return keyWords(o.SuspendCron)
	case *borgpb.Op_JudgeGate:
		return keyWords(o.JudgeGate)
	case *borgpb.Op_QuarantineTask:
		return keyWords(o.QuarantineTask)
	case *borgpb.Op_ReleaseTask:
		return keyWords(o.ReleaseTask)
	case *borgpb.Op_DeleteVolume:
		return keyWords(o.DeleteVolume)
	case *borgpb.Op_SubmitAllocSet:
		return keyWords(o.SubmitAllocSet)
	case *borgpb.Op_KillAllocSet:
		return keyWords(o.KillAllocSet)
	case *borgpb.Op_UpdateAllocSet:
		return keyWords(o.UpdateAllocSet)
	case *borgpb.Op_ResizeAllocSet:
		return keyWords(o.ResizeAllocSet)
	case *borgpb.Op_SetSecret:
		return keyWords(o.SetSecret)
	case *borgpb.Op_DeleteSecret:
		return keyWords(o.DeleteSecret)
	case *borgpb.Op_ResealSecret:
		return keyWords(o.ResealSecret)
	case *borgpb.Op_SetTaskNote:
		return clip(o.SetTaskNote.User, 64) + "/" + clip(o.SetTaskNote.Job, 64) + "/" + strconv.FormatUint(uint64(o.SetTaskNote.Index), 10)
	case *borgpb.Op_WriteFile:
		return fileWords(o.WriteFile)
	case *borgpb.Op_DeleteFile:
		return fileWords(o.DeleteFile)
	case *borgpb.Op_AddMachine:
		return clip(o.AddMachine.Name, 64)
	case *borgpb.Op_BanPackage:
		return clip(o.BanPackage.Name, 64)
	case *borgpb.Op_UnbanPackage:
		return clip(o.UnbanPackage.Name, 64)
	case *borgpb.Op_AdoptJob:
		return keyWords(o.AdoptJob)
	case *borgpb.Op_StopUnknown:
		return clip(o.StopUnknown.Machine, 64)
	case *borgpb.Op_SetLabels:
		if o.SetLabels.User == "" {
			return clip(o.SetLabels.Name, 64)
		}
		return keyWords(o.SetLabels)
	case *borgpb.Op_Grant:
		return clip(o.Grant.User, 64)
	case *borgpb.Op_Revoke:
		return clip(o.Revoke.User, 64)
	case *borgpb.Op_SetQuota:
		return clip(o.SetQuota.User, 64)
	case *borgpb.Op_DeleteQuota:
		return clip(o.DeleteQuota.User, 64)
	case *borgpb.Op_SetTaskLimits:
		return clip(o.SetTaskLimits.User, 64)
	case *borgpb.Op_SetStateBudget:
		return clip(o.SetStateBudget.User, 64)
	case *borgpb.Op_Assign, *borgpb.Op_Reports, *borgpb.Op_HearMachines:
		return ""
	}
	return "cell"
}

// named is an op about what belongs to a user, by its name.
type named interface {
	GetUser() string
	GetName() string
}

func keyWords(o named) string { return clip(o.GetUser(), 64) + "/" + clip(o.GetName(), 64) }

// checkDigest compares the elected master's digest with ours. The result is
// the same everywhere, whatever comes of it: only Diverged differs.
func (c *Cell) checkDigest(o *borgpb.LogDigest) (commit, *borgpb.Refusal) {
	if len(o.Digest) != len(Digest{}) || o.Index >= c.index {
		return nil, invalid("digest", "want %d bytes of an earlier index", len(Digest{}))
	}
	return func(*borgpb.Result) {
		ours, ok := c.DigestAt(o.Index)
		if theirs := Digest(o.Digest); ok && ours != theirs && c.diverged == nil {
			c.diverged = fmt.Errorf("the digest at index %d is %x here and %x on the elected master: the replicas differ; replace this one",
				o.Index, ours, theirs)
		}
	}, nil
}

// newUID names an object made by this entry.
func (c *Cell) newUID() UID {
	uid := UID{c.epoch, c.index, c.now.made}
	c.now.made++
	return uid
}

// expect makes room for what is written down when n tasks of a job change, so that
// the lists which it goes into are not copied again and again as they grow.
func (c *Cell) expect(j *Job, n int) {
	b := &c.records
	c.now.events = slices.Grow(c.now.events, n+1)
	// Its row, and the copy that it had.
	b.unflushed, b.unsettled = slices.Grow(b.unflushed, 2*n), slices.Grow(b.unsettled, 2*n)
	in := b.changed.job(j)
	in.Tasks = slices.Grow(in.Tasks, n)
}

func (c *Cell) emit(e Event) {
	e.Index = c.index
	e.N = uint32(len(c.now.events))
	e.WallNs = c.now.rawWallNs
	e.User = c.now.user
	c.now.events = append(c.now.events, e)
}
