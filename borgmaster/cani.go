package borgmaster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// Verbs of borgcfg that anybody may use, those on what belongs to somebody, and
// those on what belongs to the cell.
var (
	readVerbs  = []string{"status", "tasks", "logs", "why", "events", "audit", "diff", "whoami", "list", "watch"}
	ownVerbs   = []string{"up", "update", "resize", "label", "annotate", "cron", "down", "exec", "quarantine", "release", "secret", "file"}
	adminVerbs = []string{"grant", "revoke", "user", "machine", "master", "member", "checkpoint", "authority", "package", "policy", "quota"}
)

var (
	// readsOne are the reads that name a job or an alloc set and find only what the
	// caller may see.
	readsOne = []string{"status", "tasks", "logs", "why"}
	// onLive are the verbs that want a job or an alloc set that is not dead.
	onLive = []string{"update", "resize", "cron", "down", "exec", "quarantine", "release"}
	// looks are what an admin's verb does that only reads: `machine list`.
	looks = []string{"list", "show", "status", "drains", "safe-to-drain", "check"}
)

// CanI says whether the caller may do something.
func (a *identityAPI) CanI(ctx context.Context, req *borgrpc.CanIRequest) (*borgrpc.CanIResponse, error) {
	// What was granted a moment ago counts.
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	why, err := a.m.canI(door.Caller(ctx), req.GetVerb(), req.GetObject())
	return &borgrpc.CanIResponse{Yes: why == "" && err == nil, Why: why}, err
}

// canI says why the caller may not do something; empty: the caller may.
func (m *Master) canI(caller identity.Name, verb, object string) (why string, err error) {
	switch {
	case slices.Contains(readVerbs, verb):
		if object == "" || !slices.Contains(readsOne, verb) {
			return "", nil
		}
		key, err := cell.ParseJobKey(object)
		if err != nil {
			return "", status.Error(codes.InvalidArgument, err.Error())
		}
		m.cfg.Log.View(func(c *cell.Cell) { why = m.gate.cannotRead(c, caller, key) })
		return why, nil
	case slices.Contains(ownVerbs, verb):
		owner, err := ownerIn(verb, cmp.Or(object, caller.ID+"/x"))
		if err != nil {
			return "", status.Error(codes.InvalidArgument, err.Error())
		}
		if !(caller.Role == identity.User && owner == caller.ID) && !m.isAdmin(caller) {
			return fmt.Sprintf("it belongs to user %q and you are %q; for what is another's, %s", owner, caller.ID, m.needsAdmin(caller)), nil
		}
		if object != "" && slices.Contains(onLive, verb) {
			key, _ := cell.ParseJobKey(object)
			m.cfg.Log.View(func(c *cell.Cell) { why = m.gate.cannotEnd(c, caller, key) })
		}
		return why, nil
	case slices.Contains(adminVerbs, verb):
		// To grant and to revoke have no looks: what follows is a user.
		if m.isAdmin(caller) || verb != "grant" && verb != "revoke" && slices.Contains(looks, object) {
			return "", nil
		}
		return m.needsAdmin(caller), nil
	}
	return "", status.Errorf(codes.InvalidArgument, "there is no verb %q; verbs: %s", verb, strings.Join(slices.Concat(ownVerbs, adminVerbs, readVerbs), ", "))
}

// cannotRead says that there is no such job or alloc set, as a read would of what the
// caller may not see.
func (g *Gate) cannotRead(c *cell.Cell, caller identity.Name, key cell.JobKey) string {
	lens := g.Lens(c, caller)
	if j := c.Job(key); j != nil && lens.Job(j) {
		return ""
	}
	if s := c.AllocSet(key); s != nil && lens.AllocSet(s) {
		return ""
	}
	return "there is no job or alloc set " + key.String()
}

// cannotEnd is the refusal of an end of a job or alloc set: what changes one that lives
// meets the same questions.
func (g *Gate) cannotEnd(c *cell.Cell, caller identity.Name, key cell.JobKey) string {
	op := &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: key.User, Name: key.Name}}}
	if c.AllocSet(key) != nil {
		op.Op = &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: key.User, Name: key.Name}}
	}
	r := g.try(c, new(cell.Trial), caller, op)
	if r == nil {
		return ""
	}
	return cmp.Or(r.Object, key.String()) + ": " + r.Message
}

// ownerIn reads whose an object is off its name: "user/name", and of a file
// "user/name/of/it".
func ownerIn(verb, object string) (string, error) {
	if verb == "file" {
		user, _, _ := strings.Cut(object, "/")
		return user, nil
	}
	key, err := cell.ParseJobKey(object)
	return key.User, err
}
