package borgmaster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/borgmaster/verbs"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// maxAsked is how many bytes the verb and the object of CanI may have. No name of an object is longer.
const maxAsked = 1 << 10

var (
	// readsOne are the reads that name a job or an alloc set and find only what the
	// caller may see.
	readsOne = []string{"status", "tasks", "alloc", "logs", "why"}
	// onLive are the verbs that want a job or an alloc set that is not dead.
	onLive = []string{"update", "resize", "cron", "down", "exec", "quarantine", "release"}
	// looks are what an admin's verb does that only reads: `machine list`.
	looks = []string{"list", "show", "status", "drains", "safe-to-drain", "check"}
)

// CanI says whether the caller may do something.
func (a *identityAPI) CanI(ctx context.Context, req *borgrpc.CanIRequest) (*borgrpc.CanIResponse, error) {
	if n := len(req.GetVerb()) + len(req.GetObject()); n > maxAsked {
		return nil, status.Errorf(codes.InvalidArgument, "the verb and the object have %d bytes, at most %d", n, maxAsked)
	}
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
	case slices.Contains(verbs.Read, verb):
		if object == "" || !slices.Contains(readsOne, verb) || verbs.IsSubcommand(verb, object) {
			return "", nil
		}
		key, err := cell.ParseJobKey(object)
		if err != nil {
			return "", status.Error(codes.InvalidArgument, err.Error())
		}
		m.cfg.Log.View(func(c *cell.Cell) { why = m.gate.cannotRead(c, caller, key) })
		return why, nil
	case slices.Contains(verbs.Task, verb):
		return onlyOwnNote + ", and you are " + caller.Words(), nil
	case verb == "volume":
		return m.canVolume(caller, object)
	case slices.Contains(verbs.Own, verb):
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
	case verbs.OfCell(verb):
		// To grant and to revoke have no looks: what follows is a user.
		if m.isAdmin(caller) || verb != "grant" && verb != "revoke" && slices.Contains(looks, object) {
			return "", nil
		}
		return m.needsAdmin(caller), nil
	}
	return "", status.Errorf(codes.InvalidArgument, "there is no verb %q; verbs: %s", verb, strings.Join(verbs.All(), ", "))
}

// canVolume says why the caller may not give up a volume, "user/job/index/volume"; empty: the
// caller may. Everybody may list volumes, and give up some of their own.
func (m *Master) canVolume(caller identity.Name, object string) (why string, err error) {
	if object == "" || verbs.IsSubcommand("volume", object) {
		return "", nil
	}
	parts := strings.Split(object, "/")
	if len(parts) != 4 {
		return "", status.Errorf(codes.InvalidArgument, "%q is no volume: want list, delete or USER/JOB/INDEX/VOLUME", object)
	}
	index, bad := strconv.ParseUint(parts[2], 10, 32)
	if bad != nil {
		return "", status.Errorf(codes.InvalidArgument, "%q is no volume: %q is not a number", object, parts[2])
	}
	op := &borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{User: parts[0], Name: parts[1], Index: uint32(index), Volume: parts[3]}}}
	m.cfg.Log.View(func(c *cell.Cell) { why = m.gate.cannot(c, caller, op, object) })
	return why, nil
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
	return g.cannot(c, caller, op, key.String())
}

// cannot is the refusal that an op of the caller about an object would meet; empty: none.
func (g *Gate) cannot(c *cell.Cell, caller identity.Name, op *borgpb.Op, object string) string {
	r := g.try(c, new(cell.Trial), caller, op)
	if r == nil {
		return ""
	}
	return cmp.Or(r.Object, object) + ": " + r.Message
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
