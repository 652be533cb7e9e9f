package borgmaster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
)

// admins are the users who may change what belongs to the cell or to others: as
// the cell says, or the first one while it knows of none.
func (m *Master) admins() []string {
	var names []string
	m.cfg.Log.View(func(c *cell.Cell) {
		if c.NumAdmins() == 0 {
			return
		}
		for u := range c.Users() {
			if c.Has(u.Name(), cell.Admin) {
				names = append(names, u.Name())
			}
		}
	})
	if len(names) == 0 && m.cfg.FirstAdmin != "" {
		names = []string{m.cfg.FirstAdmin}
	}
	return names
}

// revoked says whether a certificate was issued before the cell was told not to
// believe it. Users can be revoked; a borglet's certificate is not renewed once
// its machine has left, and a master's is worth nothing once it is no member.
func (m *Master) revoked(name identity.Name, issued time.Time) bool {
	if name.Role == identity.Task {
		return m.ended(name, issued)
	}
	if name.Role != identity.User {
		return false
	}
	is := false
	m.cfg.Log.View(func(c *cell.Cell) {
		u := c.User(name.ID)
		is = u != nil && issued.UnixNano() <= u.RevokedWallNs()
	})
	return is
}

// ended says whether a task died after that. This replica may be behind: a task
// that it has not heard of, or knows as one that died before, may be alive.
func (m *Master) ended(task identity.Name, issued time.Time) bool {
	id, err := cell.ParseTaskID(task.ID)
	if err != nil {
		return true
	}
	is := false
	m.cfg.Log.View(func(c *cell.Cell) {
		if j := c.Job(id.Job); j != nil {
			t := c.TaskProto(j, id.Index, false)
			is = t != nil && t.Status.State == borgpb.State_STATE_DEAD && t.Status.ChangedWallNs >= issued.UnixNano()
		}
	})
	return is
}

func (m *Master) isAdmin(caller identity.Name) bool {
	return caller.Role == identity.User && slices.Contains(m.admins(), caller.ID)
}

// forAdmins refuses everybody else.
func (m *Master) forAdmins(caller identity.Name) error {
	if m.isAdmin(caller) {
		return nil
	}
	return status.Error(codes.PermissionDenied, m.needsAdmin(caller))
}

// needsAdmin says what is missing and who can help.
func (m *Master) needsAdmin(caller identity.Name) string {
	return fmt.Sprintf("it needs the capability admin, which %s does not have; it can be granted by %s", caller.Words(), strings.Join(m.admins(), ", "))
}

// permit says whether caller may ask for op; nil means yes. Users have a say
// over their own jobs and alloc sets; machines and clocks are for
// admins; what the cell does by itself is for nobody.
func (m *Master) permit(caller identity.Name, op *borgpb.Op) *borgpb.Refusal {
	switch caller.Role {
	case identity.Master:
		return permitMaster(op)
	case identity.Task:
		return m.permitTask(caller, op)
	}
	isAdmin := m.isAdmin(caller)
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
	case *borgpb.Op_SubmitAllocSet:
		owner, object = o.SubmitAllocSet.GetUser(), o.SubmitAllocSet.GetName()
	case *borgpb.Op_KillAllocSet:
		owner, object = o.KillAllocSet.GetUser(), o.KillAllocSet.GetName()
	case *borgpb.Op_DeleteSecret:
		owner, object = o.DeleteSecret.GetUser(), o.DeleteSecret.GetName()
	case *borgpb.Op_SetTaskNote:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "what a task says of itself is for that task alone to say")
	case *borgpb.Op_AddMachine, *borgpb.Op_RemoveMachine, *borgpb.Op_SetMachine, *borgpb.Op_DrainMachine, *borgpb.Op_Time,
		*borgpb.Op_Grant, *borgpb.Op_Revoke, *borgpb.Op_AddToken:
		if isAdmin {
			return nil
		}
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "%s", m.needsAdmin(caller))
	case nil:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, "", "the request holds no op")
	default:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "this op is the cell's own; nobody may ask for it")
	}
	if owner == caller.ID || isAdmin {
		return nil
	}
	return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, owner+"/"+object,
		"it belongs to user %q and you are %q; for what is another's, %s", owner, caller.ID, m.needsAdmin(caller))
}

// permitMaster says what a master may ask of the elected one in its own name:
// what it takes to let in the holder of a token.
func permitMaster(op *borgpb.Op) *borgpb.Refusal {
	switch op.GetOp().(type) {
	case *borgpb.Op_UseToken, *borgpb.Op_AddMachine, *borgpb.Op_SetMachine:
		return nil
	}
	return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "masters ask for this in nobody's name")
}

// permitTask says what a task may ask for. Whether it may do it to this object,
// the cell decides, by what it has of the task and its job.
func (m *Master) permitTask(caller identity.Name, op *borgpb.Op) *borgpb.Refusal {
	switch op.GetOp().(type) {
	case *borgpb.Op_SetTaskNote, *borgpb.Op_SubmitJob, *borgpb.Op_KillJob:
	case nil:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, "", "the request holds no op")
	default:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "you are %s: a task may set its own note, and submit and end children of its job if that was granted; nothing else", caller.Words())
	}
	var format uint32
	m.cfg.Log.View(func(c *cell.Cell) { format = c.Format() })
	if format < cell.FormatTasks {
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_STATE, "", "the cell is of format %d, and tasks may ask for something from format %d on", format, cell.FormatTasks)
	}
	return nil
}

func refusal(kind borgpb.RefusalKind, object, format string, args ...any) *borgpb.Refusal {
	return &borgpb.Refusal{Kind: kind, Object: object, Message: fmt.Sprintf(format, args...)}
}
