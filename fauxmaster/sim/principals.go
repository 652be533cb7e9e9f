package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/replica"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/door"
)

// Users of the clients are u0, u1 and u2. The operator is the cell's first admin,
// makes an admin of one, and revokes the certificates of another.
const (
	operatorUser = "operator"
	adminUser    = "u0"
	revokedUser  = "u2"
)

var errRevoked = errors.New("the certificate was revoked")

// caller is the name in the certificate that a call shows.
type caller struct {
	name     identity.Name
	issuedNs int64
}

// caller returns the name in which the op under way is asked for: of a task of the user, or of
// the user.
func (c *client) caller() caller {
	if c.files.task != (identity.Name{}) {
		return caller{c.files.task, c.files.issuedNs}
	}
	return c.self()
}

func (c *client) self() caller { return asUser(c.user(), c.issuedNs) }

// asUser returns a user as a caller, with a certificate issued at that time.
func asUser(id string, issuedNs int64) caller {
	return caller{identity.Name{Cell: cellName, Role: identity.User, ID: id}, issuedNs}
}

// enter is the door: it refuses calls of the wrong role and callers that were revoked.
func (m *masterSide) enter(method string, from caller) error {
	if err := door.Allowed(method, from.name); err != nil {
		return err
	}
	return m.believes(from)
}

func (m *masterSide) believes(from caller) error {
	if m.gate.Revoked(m.r.cell, from.name, from.issuedNs) {
		return errRevoked
	}
	return nil
}

// admit proposes what somebody asks for, as borgmaster's elected replica does.
func (m *masterSide) admit(from caller, asked *borgpb.Op, deadlineNs int64, done func(*borgpb.Result, error)) {
	if err := m.believes(from); err != nil {
		done(nil, err)
		return
	}
	op, refusal := m.gate.Admit(m.r.cell, from.name, asked, m.r.clock.wallNs(m.r.w.now))
	if refusal != nil {
		done(&borgpb.Result{Refusal: refusal}, nil)
		return
	}
	m.r.propose(op, deadlineNs, done)
}

// trespass asks for what is another's or the cell's, in the name of whose it is.
func (c *client) trespass() *borgpb.Op {
	r := c.rand
	owner, name := userOf(c.i+1+r.IntN(2)), fmt.Sprintf("j%d", r.IntN(c.w.swarm.jobs))
	var op *borgpb.Op
	switch r.IntN(8) {
	case 0:
		op = c.submit(name, c.drawSpec())
		op.GetSubmitJob().User = owner
	case 1:
		op = &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: owner, Name: name}}}
	case 2:
		op = &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: owner, Name: name, Tasks: 1}}}
	case 3:
		op = &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: owner, Name: allocSetName}}}
	case 4:
		op, owner = c.drain(), operatorUser
	case 5:
		// A job of the client's own takes the room of another user's alloc set.
		spec := c.drawSpec()
		spec.AllocSet = owner + "/" + allocSetName
		op, owner = c.submit(name, spec), c.user()
	case 6:
		// A job of the client's own asks for what nobody was granted.
		spec := c.drawSpec()
		spec.AllocSet, spec.Task.NoEstimation = "", true
		op, owner = c.submit(name, spec), c.user()
	default:
		op, owner = &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "mallory", Capability: "admin"}}}, operatorUser
	}
	op.Principal = &borgpb.Principal{User: owner, Role: borgpb.Role_ROLE_USER}
	return op
}

// turnedAway is a client that hears that its certificate was revoked. What became
// of what it asked for it does not know. It goes on for a while all the same, and
// then has another one issued.
func (c *client) turnedAway(by *replicaNode) {
	c.w.say("client %s: replica %d says that its certificate was revoked", c.name(), by.id)
	c.w.mark("revoked caller refused")
	c.w.truth.wasRevoked(c.caller())
	if c.asked.Kind != 0 {
		c.w.story.turned = append(c.w.story.turned, turned{c.op.RequestId, c.asked})
	}
	if c.files.asked.Kind != 0 {
		c.w.story.addFile(c.files.asked, c.op.RequestId, true)
	}
	c.op = nil
	if c.files.task != (identity.Name{}) {
		c.files.task = identity.Name{}
	} else if c.turned++; c.turned%4 == 0 {
		c.login()
		return
	}
	c.w.after(between(c.rand, 5*millisecond, c.w.swarm.thinkNs), c.next)
}

// login has a certificate issued: it begins at the cell's time, as the replica
// that issues it has it when it has waited for the latest, in whole seconds.
func (c *client) login() {
	r, came := c.w.replicas[c.rand.IntN(len(c.w.replicas))], false
	c.w.send(clientEnd(c.i), replicaEnd(r.id), func() {
		r.arrive(func() {
			r.read(func() {
				issuedNs := r.cell.WallNs() / second * second
				c.w.send(replicaEnd(r.id), clientEnd(c.i), func() {
					if came {
						return
					}
					came = true
					c.issuedNs = issuedNs
					c.w.mark("logged in again")
					c.next()
				})
			})
		})
	})
	c.w.after(between(c.rand, second, 2*second), func() {
		if !came && c.w.healed {
			came, c.idle = true, true
		} else if !came {
			came = true
			c.login()
		}
	})
}

// operator adds the machines, and says who may do what.
type operator struct{ *client }

func newOperator(w *World) *operator {
	o := &operator{newClient(w, operatorClient)}
	for _, m := range w.machines {
		if w.swarm.newCell {
			break
		}
		o.first = append(o.first, &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: m.name, Spec: m.spec()}}})
	}
	// The first admin is one in the log too before there is another.
	for _, user := range []string{operatorUser, adminUser} {
		grant := &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: user, Capability: "admin"}}}
		if w.swarm.newCell {
			// Until then it is the operator alone who adds machines.
			w.at(machinesComeNs+second, func() { o.ask(grant) })
			continue
		}
		o.first = append(o.first, grant)
	}
	if w.swarm.revokeNs > 0 {
		// Of a time to come: whatever there is then.
		far := clock{}.wallNs(1_000_000 * second)
		w.after(w.swarm.revokeNs, func() {
			o.ask(&borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: revokedUser, CertificatesWallNs: far}}})
		})
	}
	if at := w.swarm.declareNs; at > 0 {
		w.after(at, func() {
			o.ask(&borgpb.Op{Op: &borgpb.Op_DeclareLost{DeclareLost: &borgpb.DeclareLost{ForNs: 20 * second}}})
		})
	}
	return o
}

// ask has the operator ask for something more.
func (o *operator) ask(op *borgpb.Op) {
	if o.w.healed {
		return
	}
	o.first = append(o.first, op)
	if o.idle {
		o.next()
	}
}

// answered asks again for what the cell did not know yet in its first format.
func (o *operator) answered(op *borgpb.Op, res *borgpb.Result) {
	switch {
	case op.GetGrant() == nil && op.GetRevoke() == nil:
	case res.GetRefusal().GetKind() == borgpb.RefusalKind_REFUSAL_KIND_MALFORMED:
		again := proto.CloneOf(op)
		o.w.after(200*millisecond, func() { o.ask(again) })
	case op.GetRevoke() != nil && res.GetRefusal() == nil:
		user := op.GetRevoke().GetUser()
		o.w.truth.revoked[user] = revocation{atNs: o.w.now, wallNs: o.w.truth.cell.User(user).RevokedWallNs()}
	}
}

// forge sends messages of raft in the name of a replica with the certificate of
// its scheduler process, which has the same number: that it is elected, in a term
// that is later than all others.
func (w *World) forge() {
	if w.swarm.forgeNs == 0 {
		return
	}
	r := stream(w.cfg.Seed, "forger")
	id := 1 + r.Uint64N(replicas)
	who := identity.Name{Cell: cellName, Role: identity.Scheduler, ID: fmt.Sprint(id)}
	var again func()
	again = func() {
		if w.healed {
			return
		}
		term := uint64(0)
		for _, x := range w.replicas {
			term = max(term, x.term)
		}
		for _, to := range w.replicas {
			if to.id == id {
				continue
			}
			m := &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: &id, To: &to.id, Term: new(term + 1)}
			w.send(forgerEnd, replicaEnd(to.id), func() {
				to.arrive(func() {
					if to.hears(who, m) {
						to.turn(replica.Receive{Message: m})
					}
				})
			})
		}
		w.after(between(r, w.swarm.forgeNs/2, 2*w.swarm.forgeNs), again)
	}
	w.after(between(r, second, 2*second), again)
}

// hears is the door for messages of raft, as package replica has it.
func (r *replicaNode) hears(from identity.Name, m *raftpb.Message) bool {
	if door.Allowed("/borgrpc.RaftService/Send", from) != nil || replica.SpeaksAs(from, m.GetFrom()) != nil {
		r.w.mark("forged message refused")
		return false
	}
	return true
}

// asking is a request as its client made it first.
type asking struct {
	caller
	atNs int64
}

// revocation is what an operator was told: from that moment on no certificate of
// the user that was issued up to wallNs is good for anything.
type revocation struct{ atNs, wallNs int64 }

// holds tells whether a call that began then must be refused.
func (v revocation) holds(from caller, beganNs int64) bool {
	return v.atNs != 0 && beganNs > v.atNs && from.issuedNs <= v.wallNs
}

// admins are those of the cell as it is.
func (t *truth) admins() []string {
	names := []string{operatorUser}
	for u := range t.cell.Users() {
		if t.cell.Has(u.Name(), "admin") {
			names = append(names, u.Name())
		}
	}
	return names
}

// ownerOf is whose an op is about; empty: the cell's.
func ownerOf(op *borgpb.Op) string {
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		return o.SubmitJob.User
	case *borgpb.Op_KillJob:
		return o.KillJob.User
	case *borgpb.Op_UpdateJob:
		return o.UpdateJob.User
	case *borgpb.Op_ResizeJob:
		return o.ResizeJob.User
	case *borgpb.Op_ControlUpdate:
		return o.ControlUpdate.User
	case *borgpb.Op_QuarantineTask:
		return o.QuarantineTask.User
	case *borgpb.Op_ReleaseTask:
		return o.ReleaseTask.User
	case *borgpb.Op_SubmitAllocSet:
		return o.SubmitAllocSet.User
	case *borgpb.Op_KillAllocSet:
		return o.KillAllocSet.User
	case *borgpb.Op_UpdateAllocSet:
		return o.UpdateAllocSet.User
	case *borgpb.Op_ResizeAllocSet:
		return o.ResizeAllocSet.User
	case *borgpb.Op_SetLabels:
		return o.SetLabels.User
	case *borgpb.Op_FireCron:
		return o.FireCron.User
	case *borgpb.Op_SuspendCron:
		return o.SuspendCron.User
	case *borgpb.Op_WriteFile:
		return o.WriteFile.User
	case *borgpb.Op_DeleteFile:
		return o.DeleteFile.User
	case *borgpb.Op_DeleteVolume:
		return o.DeleteVolume.User
	}
	return ""
}

// specOf is the spec that an op would give a job.
func specOf(op *borgpb.Op) *borgpb.JobSpec {
	data := op.GetSubmitJob().GetSpec()
	if data == nil {
		data = op.GetUpdateJob().GetSpec()
	}
	spec := new(borgpb.JobSpec)
	_ = proto.Unmarshal(data, spec)
	return spec
}

// linkOf is whose alloc set the job of an op would run in; empty: in none.
func linkOf(op *borgpb.Op) string {
	user, _, _ := strings.Cut(specOf(op).AllocSet, "/")
	return user
}

// powerOf tells whether an op asks for what its asker needs a capability for.
func powerOf(op *borgpb.Op) bool { return specOf(op).GetTask().GetNoEstimation() }

// owned checks S21: what is done was asked for by its owner or an admin, and is logged in that
// name. admins are those before and after the entry.
func (t *truth) owned(op *borgpb.Op, admins []string) {
	a, ok := t.asked[op.RequestId]
	if !ok {
		return
	}
	if !proto.Equal(op.GetPrincipal(), door.Principal(a.name)) {
		t.w.fail("S21: %s was asked for by %s and is logged as %v's", op.RequestId, a.name.Words(), op.Principal)
	}
	if a.name.Role == identity.Task {
		// Whatever its user may do, a task has what is its user's.
		if owner := ownerOf(op); owner != a.name.User() {
			t.w.fail("S21: %s, %s, is done for %s; it is %q's", op.RequestId, opName(op), a.name.Words(), owner)
		}
		return
	}
	if owner := ownerOf(op); owner != a.name.ID && !slices.Contains(admins, a.name.ID) {
		t.w.fail("S21: %s, %s, is done for %s, who is no admin; it is %q's", op.RequestId, opName(op), a.name.Words(), owner)
	}
	if link := linkOf(op); link != "" && link != a.name.ID && t.linksOwned && !slices.Contains(admins, a.name.ID) {
		t.w.fail("S21: %s, %s, is done for %s, who is no admin, and takes room of %q", op.RequestId, opName(op), a.name.Words(), link)
	}
	if powerOf(op) && t.powersAsked && !slices.Contains(admins, a.name.ID) {
		t.w.fail("S21: %s, %s, is done for %s, who was not granted what it asks for", op.RequestId, opName(op), a.name.Words())
	}
}

// allowed checks S21: a revoked caller is not served, and no owner is refused.
func (t *truth) allowed(op *borgpb.Op, res *borgpb.Result) {
	a, refusal := t.asked[op.RequestId], res.GetRefusal()
	if refusal == nil && t.revoked[a.name.ID].holds(a.caller, a.atNs) {
		t.w.fail("S21: %s was asked for by %s with a certificate that had been revoked, and is done", op.RequestId, a.name.Words())
	}
	if refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		return
	}
	t.w.mark("trespass refused")
	link := linkOf(op)
	if link != "" && link != a.name.ID {
		t.w.mark("link refused")
		return
	}
	if powerOf(op) {
		t.w.mark("power refused")
		return
	}
	if ownerOf(op) == a.name.ID {
		t.w.fail("S21: %s, %s, is refused to its owner: %s", op.RequestId, opName(op), refusal.GetMessage())
	}
}

// showed checks S21: a revoked caller is shown nothing.
func (t *truth) showed(from caller, askedNs int64) {
	if t.revoked[from.name.ID].holds(from, askedNs) {
		t.w.fail("S21: %s reads with a certificate that had been revoked", from.name.Words())
	}
}

// wasRevoked checks S21: only a revoked caller is told so, and a task only if its job has had a
// dead one.
func (t *truth) wasRevoked(from caller) {
	if from.name.Role == identity.Task {
		id, err := cell.ParseTaskID(from.name.ID)
		if err == nil && !t.died[id.Job] {
			t.w.fail("S21: %s is told that its certificate is worth nothing, and it never died", from.name.Words())
		}
		return
	}
	if u := t.cell.User(from.name.ID); u == nil || from.issuedNs > u.RevokedWallNs() {
		t.w.fail("S21: %s is told that the certificate was revoked, and it was not", from.name.Words())
	}
}

// follows checks S1: no replica takes another one for elected than the one that was.
func (t *truth) follows(id uint64, s replica.CoreState) {
	if s.Elected != 0 && s.Elected != id && t.leaders[s.Term] != s.Elected {
		t.w.fail("S1: replica %d takes replica %d for elected in term %d, and it is not", id, s.Elected, s.Term)
	}
}
