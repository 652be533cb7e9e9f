package borgmaster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/door"
)

// Gate decides who is believed and who may ask for what, by the cell as it is at
// that moment. It is pure; the simulator has it too.
type Gate struct {
	// Who is an admin as long as the cell knows of none; may be empty.
	FirstAdmin string
	// Tells the numbers of replicas that were taken out; nil: none was.
	Removed func(replica uint64) bool
	// Every caller reads everything: the cell is simulated, and each caller has its
	// checkpoint.
	Open bool
	// Whom it has believed; for a mutant alone.
	believed map[identity.Name]int64
}

// Admins are the users who may change what belongs to the cell or to others: as
// the cell says, or the first one while it knows of none.
func (g *Gate) Admins(c *cell.Cell) []string {
	if c.NumAdmins() == 0 {
		if g.FirstAdmin == "" {
			return nil
		}
		return []string{g.FirstAdmin}
	}
	var names []string
	for u := range c.Users() {
		if c.Has(u.Name(), cell.Admin) {
			names = append(names, u.Name())
		}
	}
	return names
}

// Revoked says whether a certificate that a name was issued at that time is not
// believed any more. A user is revoked by time, with the tokens that he had not
// used; a replica, with its scheduler, when it is taken out of the cell; a task when
// it died since. A borglet's certificate is not renewed once its machine has left, and is good for
// nothing else.
func (g *Gate) Revoked(c *cell.Cell, name identity.Name, issuedNs int64) bool {
	if mutant.Planted(mutant.RevokedFromCache) {
		if g.believed[name] == issuedNs {
			return false
		}
		if g.believed == nil {
			g.believed = map[identity.Name]int64{}
		}
		g.believed[name] = issuedNs
	}
	switch name.Role {
	case identity.Task:
		return ended(c, name, issuedNs)
	case identity.Master, identity.Scheduler:
		return g.Removed != nil && g.Removed(name.Replica())
	case identity.Join:
		name = name.Becomes()
	}
	if name.Role != identity.User {
		return false
	}
	u := c.User(name.ID)
	return u != nil && issuedNs <= u.RevokedWallNs()
}

// inCell says whether Revoked looks at the cell for whoever has the role.
func inCell(role identity.Role) bool {
	return role == identity.User || role == identity.Task || role == identity.Join
}

// revokeSlackNs is how far ahead of the elected master's clock certificates are
// revoked: others are issued by the cell's time, which goes on until the
// revocation is in the log.
const revokeSlackNs = 500e6

// Admit makes of what caller asks for the op that goes into the log, or says why
// he may not ask for it. Only the elected master, which knows the latest, may go
// by it. Who asks is told by the connection, never by the op.
func (g *Gate) Admit(c *cell.Cell, caller identity.Name, asked *borgpb.Op, wallNs int64) (*borgpb.Op, *borgpb.Refusal) {
	if mutant.Planted(mutant.OwnerFromRequest) && asked.GetPrincipal().GetUser() != "" {
		caller.ID = asked.Principal.User
	}
	if r := g.permit(c, caller, asked); r != nil {
		return nil, r
	}
	op := inNameOf(asked, door.Principal(caller))
	if v := op.GetRevoke(); v.GetCertificatesWallNs() > c.WallNs() {
		v = proto.CloneOf(v)
		// Of a time to come: all there are.
		v.CertificatesWallNs = c.WallNs()
		if !c.WallSuspect() {
			v.CertificatesWallNs = wallNs + revokeSlackNs
		}
		op.Op = &borgpb.Op_Revoke{Revoke: v}
	}
	return op, nil
}

// inNameOf is an op that says who asks for it, and shares with what was asked all that
// it says of what is asked for.
func inNameOf(asked *borgpb.Op, who *borgpb.Principal) *borgpb.Op {
	op := &borgpb.Op{
		RequestId: asked.RequestId, RequestWallNs: asked.RequestWallNs, Principal: who,
		Command: asked.Command, ConfigHash: asked.ConfigHash, Reason: asked.Reason, Op: asked.Op,
	}
	op.ProtoReflect().SetUnknown(asked.ProtoReflect().GetUnknown())
	return op
}

func (m *Master) admins() (names []string) {
	m.cfg.Log.View(func(c *cell.Cell) { names = m.gate.Admins(c) })
	return names
}

// revoked is asked of each message. Of those who are not in the cell it must be known
// without a look at it: raft's own would wait until others have looked and an entry was
// applied, and with a cell that is large and a machine that is busy another master would
// be elected meanwhile.
func (m *Master) revoked(name identity.Name, issued time.Time) (is bool) {
	if !inCell(name.Role) {
		return m.gate.Revoked(nil, name, issued.UnixNano())
	}
	m.cfg.Log.View(func(c *cell.Cell) { is = m.gate.Revoked(c, name, issued.UnixNano()) })
	return is
}

// believes asks once more whether the caller was revoked: the door went by what
// this replica knew before it waited.
func (m *Master) believes(ctx context.Context) (err error) {
	m.cfg.Log.View(func(c *cell.Cell) { err = m.stillBelieves(ctx, c) })
	return err
}

// stillBelieves is believes for who looks at the cell anyhow.
func (m *Master) stillBelieves(ctx context.Context, c *cell.Cell) error {
	if who, issued := door.Caller(ctx), door.Issued(ctx); !issued.IsZero() && m.gate.Revoked(c, who, issued.UnixNano()) {
		return door.Revoked(who)
	}
	return nil
}

// ended reports whether the task that a certificate was issued to has died. This copy of the cell
// may be behind: a task that it does not have, or has as dead from before the certificate, may be
// alive. Once the copy is past the time of the certificate, a task that it does not have has ended.
func ended(c *cell.Cell, task identity.Name, issuedNs int64) bool {
	id, err := cell.ParseTaskID(task.ID)
	if err != nil {
		return true
	}
	past := issuedNs + int64(identity.Tolerance)
	j := c.Job(id.Job)
	if j == nil {
		return c.WallNs() > past
	}
	if j.SubmittedWallNs() > past {
		// The certificate is of an earlier job of that name.
		return true
	}
	t := c.TaskProto(j, id.Index, false)
	if t == nil {
		return c.WallNs() > past
	}
	return t.Status.State == borgpb.State_STATE_DEAD && t.Status.ChangedWallNs >= issuedNs
}

func (m *Master) isAdmin(caller identity.Name) bool {
	return caller.Role == identity.User && slices.Contains(m.admins(), caller.ID)
}

// hasAdmin reports whether a user is an admin, without a list of them all.
func (m *Master) hasAdmin(user string) (is bool) {
	m.cfg.Log.View(func(c *cell.Cell) { is = m.gate.hasAdmin(c, user) })
	return is
}

func (g *Gate) hasAdmin(c *cell.Cell, user string) bool {
	if c.NumAdmins() == 0 {
		return user == g.FirstAdmin && user != ""
	}
	return c.Has(user, cell.Admin)
}

// forAdmins refuses everybody else.
func (m *Master) forAdmins(caller identity.Name) error {
	if m.isAdmin(caller) {
		return nil
	}
	return status.Error(codes.PermissionDenied, m.needsAdmin(caller))
}

func (m *Master) needsAdmin(caller identity.Name) (why string) {
	m.cfg.Log.View(func(c *cell.Cell) { why = m.gate.needsAdmin(c, caller) })
	return why
}

// needsAdmin says what is missing and who can help.
func (g *Gate) needsAdmin(c *cell.Cell, caller identity.Name) string {
	text := fmt.Sprintf("it needs the capability admin, which %s does not have; it can be granted by %s", caller.Words(), strings.Join(g.Admins(c), ", "))
	if caller.Role == identity.User {
		text += cell.GrantCommand(caller.ID, cell.Admin)
	}
	return text
}

// permit says whether caller may ask for op; nil means yes. Users have a say
// over their own jobs and alloc sets; machines and clocks are for
// admins; what the cell does by itself is for nobody. A cell that has admins
// decides by itself what belongs to whom, after it has looked whether it has done
// the request already; until then it is decided here.
func (g *Gate) permit(c *cell.Cell, caller identity.Name, op *borgpb.Op) *borgpb.Refusal {
	switch caller.Role {
	case identity.Master:
		return permitMaster(op)
	case identity.Task:
		return permitTask(c, caller, op)
	}
	if r := filesBegan(c, op); r != nil {
		return r
	}
	if r := preemptionBegan(c, op); r != nil {
		return r
	}
	if r := labelsBegan(c, op); r != nil {
		return r
	}
	if r := quarantineBegan(c, op); r != nil {
		return r
	}
	if r := volumesBegan(c, op); r != nil {
		return r
	}
	isAdmin := caller.Role == identity.User && (c.NumAdmins() > 0 || caller.ID == g.FirstAdmin)
	owner, object := "", ""
	switch o := op.GetOp().(type) {
	case *borgpb.Op_SubmitJob:
		owner, object = o.SubmitJob.GetUser(), o.SubmitJob.GetName()
	case *borgpb.Op_KillJob:
		owner, object = o.KillJob.GetUser(), o.KillJob.GetName()
	case *borgpb.Op_UpdateJob:
		owner, object = o.UpdateJob.GetUser(), o.UpdateJob.GetName()
	case *borgpb.Op_ResizeJob:
		owner, object = o.ResizeJob.GetUser(), o.ResizeJob.GetName()
	case *borgpb.Op_ControlUpdate:
		owner, object = o.ControlUpdate.GetUser(), o.ControlUpdate.GetName()
	case *borgpb.Op_FireCron:
		owner, object = o.FireCron.GetUser(), o.FireCron.GetName()
	case *borgpb.Op_SuspendCron:
		owner, object = o.SuspendCron.GetUser(), o.SuspendCron.GetName()
	case *borgpb.Op_QuarantineTask:
		owner, object = o.QuarantineTask.GetUser(), o.QuarantineTask.GetName()
	case *borgpb.Op_ReleaseTask:
		owner, object = o.ReleaseTask.GetUser(), o.ReleaseTask.GetName()
	case *borgpb.Op_DeleteVolume:
		owner, object = o.DeleteVolume.GetUser(), o.DeleteVolume.GetName()
	case *borgpb.Op_SubmitAllocSet:
		owner, object = o.SubmitAllocSet.GetUser(), o.SubmitAllocSet.GetName()
	case *borgpb.Op_KillAllocSet:
		owner, object = o.KillAllocSet.GetUser(), o.KillAllocSet.GetName()
	case *borgpb.Op_UpdateAllocSet:
		owner, object = o.UpdateAllocSet.GetUser(), o.UpdateAllocSet.GetName()
	case *borgpb.Op_ResizeAllocSet:
		owner, object = o.ResizeAllocSet.GetUser(), o.ResizeAllocSet.GetName()
	case *borgpb.Op_DeleteSecret:
		owner, object = o.DeleteSecret.GetUser(), o.DeleteSecret.GetName()
	case *borgpb.Op_WriteFile:
		owner, object = o.WriteFile.GetUser(), o.WriteFile.GetName()
	case *borgpb.Op_DeleteFile:
		owner, object = o.DeleteFile.GetUser(), o.DeleteFile.GetName()
	case *borgpb.Op_SetLabels:
		mine := false
		if owner, object, mine = permitLabels(o.SetLabels); !mine && !isAdmin {
			return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "%s", g.needsAdmin(c, caller))
		}
	case *borgpb.Op_SetTaskNote:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", onlyOwnNote)
	case *borgpb.Op_AddMachine, *borgpb.Op_RemoveMachine, *borgpb.Op_SetMachine, *borgpb.Op_DrainMachine, *borgpb.Op_Time,
		*borgpb.Op_Grant, *borgpb.Op_Revoke, *borgpb.Op_AddToken, *borgpb.Op_BanPackage, *borgpb.Op_UnbanPackage,
		*borgpb.Op_EndHold, *borgpb.Op_DeclareLost, *borgpb.Op_SetLabelPolicy,
		*borgpb.Op_SetQuota, *borgpb.Op_DeleteQuota, *borgpb.Op_SetQuotaPolicy, *borgpb.Op_SetTaskLimits,
		*borgpb.Op_SetStateBudget,
		*borgpb.Op_SetPreemptionPolicy, *borgpb.Op_SetVisibility:
		if isAdmin {
			return nil
		}
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "%s", g.needsAdmin(c, caller))
	case nil:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, "", "the request holds no op")
	default:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "this op is the cell's own; nobody may ask for it")
	}
	if owner == caller.ID || isAdmin {
		return nil
	}
	return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, owner+"/"+object,
		"it belongs to user %q and you are %q; for what is another's, %s", owner, caller.ID, g.needsAdmin(c, caller))
}

// onlyOwnNote is why nobody else sets the note of a task.
const onlyOwnNote = "what a task says of itself is for that task alone to say"

// permitMaster says what a master may ask of the elected one in its own name:
// what it takes to let in the holder of a token.
func permitMaster(op *borgpb.Op) *borgpb.Refusal {
	switch op.GetOp().(type) {
	case *borgpb.Op_UseToken, *borgpb.Op_AddMachine, *borgpb.Op_SetMachine:
		return nil
	}
	return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "masters ask for this in nobody's name")
}

// filesBegan refuses what is about files in a cell that has none yet.
func filesBegan(c *cell.Cell, op *borgpb.Op) *borgpb.Refusal {
	if format := c.Format(); format < cell.FormatFiles && (op.GetWriteFile() != nil || op.GetDeleteFile() != nil) {
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_STATE, "", "the cell is of format %d, and keeps files from format %d on: it is raised when all replicas run a build that knows that", format, cell.FormatFiles)
	}
	return nil
}

// permitTask says what a task may ask for. Whether it may do it to this object,
// the cell decides, by what it has of the task and its job.
func permitTask(c *cell.Cell, caller identity.Name, op *borgpb.Op) *borgpb.Refusal {
	switch op.GetOp().(type) {
	case *borgpb.Op_SetTaskNote, *borgpb.Op_SubmitJob, *borgpb.Op_KillJob:
	case *borgpb.Op_WriteFile, *borgpb.Op_DeleteFile:
		return filesBegan(c, op)
	case nil:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, "", "the request holds no op")
	default:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "you are %s: a task may set its own note, write and delete files of its user, and submit and end children of its job if that was granted; nothing else", caller.Words())
	}
	if format := c.Format(); format < cell.FormatTasks {
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_STATE, "", "the cell is of format %d, and tasks may ask for something from format %d on", format, cell.FormatTasks)
	}
	return nil
}

func refusal(kind borgpb.RefusalKind, object, format string, args ...any) *borgpb.Refusal {
	return &borgpb.Refusal{Kind: kind, Object: object, Message: fmt.Sprintf(format, args...)}
}
