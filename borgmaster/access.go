package borgmaster

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
)

// admins are the users who may change what belongs to the cell or to others.
func (m *Master) admins() []string { return []string{m.cfg.FirstAdmin} }

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
// over their own jobs and alloc sets; machines, clocks and formats are for
// admins; what the cell does by itself is for nobody.
func (m *Master) permit(caller identity.Name, op *borgpb.Op) *borgpb.Refusal {
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
	case *borgpb.Op_AddMachine, *borgpb.Op_RemoveMachine, *borgpb.Op_SetMachine, *borgpb.Op_DrainMachine,
		*borgpb.Op_RaiseFormat, *borgpb.Op_Time:
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

func refusal(kind borgpb.RefusalKind, object, format string, args ...any) *borgpb.Refusal {
	return &borgpb.Refusal{Kind: kind, Object: object, Message: fmt.Sprintf(format, args...)}
}
