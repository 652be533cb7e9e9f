package borgmaster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
	"borg/proto/door"
)

// access is which role may call which service or method; the longest entry
// that begins a method's name decides, and what has no entry is refused.
var access = []struct {
	prefix string
	roles  []borgpb.Role
}{
	{"/borgrpc.MasterService/", []borgpb.Role{borgpb.Role_ROLE_USER, borgpb.Role_ROLE_TASK, borgpb.Role_ROLE_MASTER, borgpb.Role_ROLE_SCHEDULER}},
	{"/borgrpc.MemberService/", []borgpb.Role{borgpb.Role_ROLE_USER, borgpb.Role_ROLE_MASTER}},
	{"/borgrpc.CheckpointService/", []borgpb.Role{borgpb.Role_ROLE_USER, borgpb.Role_ROLE_MASTER}},
	{"/borgrpc.SchedulingService/", []borgpb.Role{borgpb.Role_ROLE_SCHEDULER}},
	{"/borgrpc.ReplicaService/", []borgpb.Role{borgpb.Role_ROLE_MASTER}},
	{"/borgrpc.RaftService/", []borgpb.Role{borgpb.Role_ROLE_MASTER}},
}

// Guard returns the options that make a server keep to the table of who may
// call what. Every server that serves a Master must be made with them.
func Guard() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if err := admit(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			if err := admit(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return handle(srv, stream)
		}),
	}
}

func admit(ctx context.Context, method string) error {
	caller := door.Caller(ctx)
	if caller.Role == borgpb.Role_ROLE_UNSPECIFIED {
		return status.Errorf(codes.Unauthenticated, "%s: the caller does not say who it is", method)
	}
	for _, rule := range access {
		if strings.HasPrefix(method, rule.prefix) {
			if slices.Contains(rule.roles, caller.Role) {
				return nil
			}
			break
		}
	}
	return status.Errorf(codes.PermissionDenied, "%s is not for %s", method, roleName(caller.Role))
}

func roleName(r borgpb.Role) string {
	return "the role " + strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}

// permit says whether caller may ask for op; nil means yes. Users have a say
// over their own jobs and alloc sets; machines and clocks are for
// operators; what the cell does by itself is for nobody.
func permit(caller *borgpb.Principal, operators []string, op *borgpb.Op) *borgpb.Refusal {
	isOperator := slices.Contains(operators, caller.GetUser())
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
	case *borgpb.Op_AddMachine, *borgpb.Op_RemoveMachine, *borgpb.Op_SetMachine, *borgpb.Op_DrainMachine, *borgpb.Op_Time:
		if isOperator {
			return nil
		}
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "",
			"user %q is not an operator of this cell; operators: %s", caller.GetUser(), strings.Join(operators, ", "))
	case nil:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, "", "the request holds no op")
	default:
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "this op is the cell's own; nobody may ask for it")
	}
	if owner == caller.GetUser() || isOperator {
		return nil
	}
	return refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, owner+"/"+object,
		"it belongs to user %q and you are %q", owner, caller.GetUser())
}

func refusal(kind borgpb.RefusalKind, object, format string, args ...any) *borgpb.Refusal {
	return &borgpb.Refusal{Kind: kind, Object: object, Message: fmt.Sprintf(format, args...)}
}
