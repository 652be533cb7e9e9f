package borgmaster

import (
	"cmp"
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
	if caller.Role == identity.Master {
		return permitMaster(op)
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

// Verbs of borgcfg that anybody may use, those on what belongs to somebody, and
// those on what belongs to the cell.
var (
	readVerbs  = []string{"status", "tasks", "logs", "why", "events", "audit", "diff", "whoami", "list"}
	ownVerbs   = []string{"up", "update", "resize", "down"}
	adminVerbs = []string{"grant", "revoke", "user", "machine", "member", "checkpoint", "authority"}
)

// canI says why the caller may not do something; empty: he may. It asks what a
// mutation would be asked.
func (m *Master) canI(caller identity.Name, verb, object string) (why string, err error) {
	op := &borgpb.Op{}
	switch {
	case slices.Contains(readVerbs, verb):
		return "", nil
	case slices.Contains(ownVerbs, verb):
		key, err := cell.ParseJobKey(cmp.Or(object, caller.ID+"/x"))
		if err != nil {
			return "", status.Error(codes.InvalidArgument, err.Error())
		}
		op.Op = &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: key.User, Name: key.Name}}
	case slices.Contains(adminVerbs, verb):
		op.Op = &borgpb.Op_Grant{Grant: &borgpb.Grant{}}
	default:
		return "", status.Errorf(codes.InvalidArgument, "there is no verb %q; verbs: %s", verb, strings.Join(slices.Concat(ownVerbs, adminVerbs, readVerbs), ", "))
	}
	return m.permit(caller, op).GetMessage(), nil
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

func refusal(kind borgpb.RefusalKind, object, format string, args ...any) *borgpb.Refusal {
	return &borgpb.Refusal{Kind: kind, Object: object, Message: fmt.Sprintf(format, args...)}
}
