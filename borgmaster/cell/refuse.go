package cell

import (
	"fmt"
	"maps"
	"slices"

	"borg/proto/borgpb"
)

// refuse makes a refusal: what it is about, the field if any, and what is
// wrong, with figures.
func refuse(kind borgpb.RefusalKind, object, field, format string, args ...any) *borgpb.Refusal {
	return &borgpb.Refusal{Kind: kind, Object: object, Field: field, Message: fmt.Sprintf(format, args...)}
}

func malformed(format string, args ...any) *borgpb.Refusal {
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, "", "", format, args...)
}

func invalid(field, format string, args ...any) *borgpb.Refusal {
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_INVALID, "", field, format, args...)
}

func limit(field, format string, args ...any) *borgpb.Refusal {
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_LIMIT, "", field, format, args...)
}

func stale(object, format string, args ...any) *borgpb.Refusal {
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_STALE, object, "", format, args...)
}

func notFound(object, format string, args ...any) *borgpb.Refusal {
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, object, "", format, args...)
}

func badState(object, format string, args ...any) *borgpb.Refusal {
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_STATE, object, "", format, args...)
}

// about names the object of a refusal that was made without knowing it.
func about(object string, r *borgpb.Refusal) *borgpb.Refusal {
	if r != nil && r.Object == "" {
		r.Object = object
	}
	return r
}

// guarded runs a check. It reads only; a panic in it is a fault of ours that
// must not depend on the replica, so it becomes the refusal INTERNAL.
func guarded(check func() *borgpb.Refusal) (r *borgpb.Refusal) {
	defer func() {
		if p := recover(); p != nil {
			r = refuse(borgpb.RefusalKind_REFUSAL_KIND_INTERNAL, "", "", "a check panicked: %v", p)
		}
	}()
	return check()
}

// conflict refuses a mutation that names an older version.
func conflict(object string, expect, present uint64) *borgpb.Refusal {
	if expect == 0 || expect == present {
		return nil
	}
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, object, "expect_version",
		"version %d was expected, the present one is %d", expect, present)
}

// sortedKeys is the one way in which a map is walked here.
func sortedKeys[V any](m map[string]V) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}
