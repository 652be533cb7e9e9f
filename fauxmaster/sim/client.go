package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/history"
	"borg/identity"
	"borg/proto/borgpb"
)

// client is a user who has one mutation under way at a time and repeats it,
// under the same request id, until it is answered.
type client struct {
	w    *World
	i    int
	rand *rand.Rand
	made int
	// The mutation under way; nil: none.
	op *borgpb.Op
	// What is asked, for the history.
	asked history.Record
	// Index of the replica that answered last.
	current int
	// What is asked before anything is drawn.
	first []*borgpb.Op
	// Since when it has the certificate that it shows, and how often that was
	// refused as revoked.
	issuedNs int64
	turned   int
	// It has nothing to ask for.
	idle  bool
	files filer
}

// Times of the client library: the next replica is asked after nextTryNs, and
// after twice as long in each round that follows.
const (
	nextTryNs    = 500 * millisecond
	tryTimeoutNs = 5 * second
	minPauseNs   = 25 * millisecond
	maxPauseNs   = second
)

// operatorClient is who adds the machines, and does nothing else.
const operatorClient = -1

func newClient(w *World, i int) *client {
	c := &client{w: w, i: i, rand: stream(w.cfg.Seed, fmt.Sprint("client ", i)), issuedNs: clock{}.wallNs(0), files: newFiler(w, i)}
	c.current = c.rand.IntN(replicas)
	return c
}

// ended: it asks for nothing more.
func (c *client) ended() bool { return len(c.first) == 0 && (c.w.healed || c.i == operatorClient) }

func (c *client) start() {
	c.w.after(between(c.rand, 0, 300*millisecond), c.next)
	c.w.after(between(c.rand, 0, second), c.look)
}

// look reads the cell at any replica, now and then: what was acknowledged
// before the read must show in it.
func (c *client) look() {
	r, acked, shown, file := c.w.replicas[c.rand.IntN(len(c.w.replicas))], c.w.truth.ackedIndex, c.w.looks(c), c.w.looksAtFile(c)
	from, askedNs, lost := c.self(), c.w.now, c.w.restore.lost
	c.w.send(clientEnd(c.i), replicaEnd(r.id), func() {
		r.arrive(func() {
			if r.master.enter("/borgrpc.MasterService/GetJob", from) != nil {
				return
			}
			r.read(func() {
				// By now it may know that the caller was revoked.
				if r.master.believes(from) != nil {
					return
				}
				if lost != c.w.restore.lost {
					// What was acknowledged when it was asked was lost since.
					return
				}
				c.w.truth.showed(from, askedNs)
				c.w.truth.read(r, acked)
				shown(r)
				file(r)
			})
		})
	})
	c.w.after(between(c.rand, 50*millisecond, 500*millisecond), c.look)
}

// next begins another mutation, unless the time for them is over.
func (c *client) next() {
	if c.w.restore.lost != nil {
		c.idle = true
		return
	}
	if c.idle = c.ended(); c.idle {
		return
	}
	if ns := c.w.waitsForCrowd(); ns > 0 {
		c.w.after(ns, c.next)
		return
	}
	op := c.saved(c.quarantined(c.banded(c.quotaOp(c.private(c.labelled(c.draw()))))))
	c.made++
	op.RequestId = fmt.Sprintf("%s-%05d", c.name(), c.made)
	op.RequestWallNs = c.w.wallNs()
	c.op = op
	c.w.truth.asked[op.RequestId] = asking{caller: c.caller(), atNs: c.w.now}
	c.asked, _ = history.Asked(c.i, c.w.now-second, op)
	c.asked = recorded(c.asked)
	c.files.asked, _ = history.AskedFile(c.i, c.w.now-second, op)
	c.w.say("client %s asks %s %s", c.name(), op.RequestId, opName(op))
	c.try(0)
}

func (c *client) name() string {
	if c.i == operatorClient {
		return "operator"
	}
	return fmt.Sprintf("c%02d", c.i)
}

func (c *client) user() string {
	if c.i == operatorClient {
		return operatorUser
	}
	return userOf(c.i)
}

func userOf(client int) string { return fmt.Sprintf("u%d", client%3) }

// try asks one replica after another, at the pace of the client library
// (borgmaster/client), which also goes on to listen to the one before.
func (c *client) try(n int) {
	if c.op == nil {
		// The cell was lost meanwhile, and what was asked of it with it.
		return
	}
	replicas := len(c.w.replicas)
	op, r, from := c.op, c.w.replicas[(c.current+n)%replicas], c.caller()
	if n > 0 {
		c.w.mark("client tries again")
	}
	var asked *call
	end := func(res *borgpb.Result, err error) {
		if asked.ended {
			return
		}
		asked.ended = true
		if c.op != op {
			return
		}
		if errors.Is(err, errRevoked) {
			c.turnedAway(r)
			return
		}
		if c.w.beside("what "+c.name()+" asks", c.w.truth.asked[op.RequestId].atNs, err); err == nil {
			c.current = max(slices.Index(c.w.replicas, r), 0)
			c.answered(res)
			return
		}
		if too := (errTooMuch{}); errors.As(err, &too) {
			c.w.mark("came back later")
			c.w.after(too.RetryNs+between(c.rand, 0, too.RetryNs/4), func() { c.try(n) })
			return
		}
		wait := int64(0)
		if (n+1)%replicas == 0 {
			pause := min(minPauseNs<<min(n/replicas, 10), maxPauseNs)
			wait = pause/2 + between(c.rand, 0, pause)
		}
		c.w.after(wait, func() { c.try(n + 1) })
	}
	each := min(nextTryNs<<min(n/replicas, 10), tryTimeoutNs)
	c.w.after(each, func() { end(nil, errTimeout) })
	asked = c.w.ask(clientEnd(c.i), r, func() {
		r.master.mutate(from, op, false, c.w.now+each, func(res *borgpb.Result, err error) {
			c.w.carry(replicaEnd(r.id), clientEnd(c.i), func() { end(res, err) })
		})
	}, func() { end(nil, errBroken) })
}

func (c *client) answered(res *borgpb.Result) {
	c.w.say("client %s: %s is done at index %d: %s", c.name(), c.op.RequestId, res.GetIndex(), res.GetRefusal().GetMessage())
	if res.GetRepeated() {
		c.w.mark("retry answered from memory")
	}
	c.w.truth.answered(c.op, res)
	c.w.truth.allowed(c.op, res)
	c.w.heard(c, res)
	c.files.heard(c.w, c.op, res)
	if c.i == operatorClient {
		c.w.operator.answered(c.op, res)
	}
	c.op = nil
	think := c.w.swarm.thinkNs
	if c.w.behind() {
		think = 15 * millisecond
	}
	c.w.after(between(c.rand, 5*millisecond, think), c.next)
}

// mutationsPer30s is the pace of all clients together. What a cell that did
// nothing for a while has missed is made up for, so that no seed is idle.
const mutationsPer30s = 800

func (w *World) behind() bool {
	return w.cfg.Aim != SweepAim && int64(len(w.truth.acked)) < (w.now-second)*mutationsPer30s/(30*second)
}

// startsPer30s is the pace of tasks that start. A cell that started few gets
// small jobs with names of their own, which have room anywhere.
const startsPer30s = 200

func (w *World) sleepy() bool {
	return int64(w.truth.started) < (w.now-second)*startsPer30s/(30*second)
}

func opName(op *borgpb.Op) string {
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		return "submit " + o.SubmitJob.User + "/" + o.SubmitJob.Name
	case *borgpb.Op_KillJob:
		return "kill " + o.KillJob.User + "/" + o.KillJob.Name
	case *borgpb.Op_UpdateJob:
		return "update " + o.UpdateJob.User + "/" + o.UpdateJob.Name
	case *borgpb.Op_ResizeJob:
		return fmt.Sprintf("resize %s/%s to %d", o.ResizeJob.User, o.ResizeJob.Name, o.ResizeJob.Tasks)
	case *borgpb.Op_ControlUpdate:
		return fmt.Sprintf("%v of %s/%s", o.ControlUpdate.Verb, o.ControlUpdate.User, o.ControlUpdate.Name)
	case *borgpb.Op_QuarantineTask:
		return fmt.Sprintf("quarantine %s/%s/%d", o.QuarantineTask.User, o.QuarantineTask.Name, o.QuarantineTask.Index)
	case *borgpb.Op_ReleaseTask:
		return fmt.Sprintf("release %s/%s/%d", o.ReleaseTask.User, o.ReleaseTask.Name, o.ReleaseTask.Index)
	case *borgpb.Op_DrainMachine:
		return fmt.Sprintf("drain %s %v", o.DrainMachine.Name, o.DrainMachine.Drain)
	case *borgpb.Op_SubmitAllocSet:
		return "submit alloc set " + o.SubmitAllocSet.User + "/" + o.SubmitAllocSet.Name
	case *borgpb.Op_UpdateAllocSet:
		return "update alloc set " + o.UpdateAllocSet.User + "/" + o.UpdateAllocSet.Name
	case *borgpb.Op_ResizeAllocSet:
		return fmt.Sprintf("resize alloc set %s/%s to %d", o.ResizeAllocSet.User, o.ResizeAllocSet.Name, o.ResizeAllocSet.Allocs)
	case *borgpb.Op_KillAllocSet:
		return "kill alloc set " + o.KillAllocSet.User + "/" + o.KillAllocSet.Name
	case *borgpb.Op_AddMachine:
		return "add " + o.AddMachine.Name
	case *borgpb.Op_SetMachine:
		return "set " + o.SetMachine.Name
	case *borgpb.Op_BanPackage:
		return "ban " + o.BanPackage.Name + "@" + o.BanPackage.Digest + " on " + o.BanPackage.Machine
	case *borgpb.Op_UnbanPackage:
		return "unban " + o.UnbanPackage.Name + "@" + o.UnbanPackage.Digest + " on " + o.UnbanPackage.Machine
	case *borgpb.Op_WriteFile:
		return "write file " + o.WriteFile.User + "/" + o.WriteFile.Name
	case *borgpb.Op_DeleteFile:
		return "delete file " + o.DeleteFile.User + "/" + o.DeleteFile.Name
	case *borgpb.Op_SetLabels:
		return "label " + o.SetLabels.User + "/" + o.SetLabels.Name
	case *borgpb.Op_SetLabelPolicy:
		return fmt.Sprintf("rule labels by %d rules", len(o.SetLabelPolicy.GetPolicy().GetRules()))
	case *borgpb.Op_SetQuota:
		return fmt.Sprintf("grant %s quota of %v", o.SetQuota.User, o.SetQuota.Band)
	case *borgpb.Op_DeleteQuota:
		return fmt.Sprintf("take quota of %v from %s", o.DeleteQuota.Band, o.DeleteQuota.User)
	case *borgpb.Op_SetQuotaPolicy:
		return fmt.Sprintf("rule quotas: %v", o.SetQuotaPolicy)
	case *borgpb.Op_SetPreemptionPolicy:
		return fmt.Sprintf("collapse bands: %v", o.SetPreemptionPolicy.Collapse)
	case *borgpb.Op_SetVisibility:
		return fmt.Sprintf("private: %v, %d groups", o.SetVisibility.GetPolicy().GetPrivate(), len(o.SetVisibility.GetPolicy().GetGroups()))
	case *borgpb.Op_Grant:
		return "grant " + o.Grant.User + " " + o.Grant.Capability
	case *borgpb.Op_FireCron:
		return "run " + o.FireCron.User + "/" + o.FireCron.Name
	case *borgpb.Op_SuspendCron:
		return fmt.Sprintf("suspend %s/%s %v", o.SuspendCron.User, o.SuspendCron.Name, o.SuspendCron.Suspend)
	case *borgpb.Op_Revoke:
		return "revoke " + o.Revoke.User
	case *borgpb.Op_DeleteVolume:
		return fmt.Sprintf("delete volume %s/%s/%d/%s", o.DeleteVolume.User, o.DeleteVolume.Name, o.DeleteVolume.Index, o.DeleteVolume.Volume)
	}
	return "something"
}

// draw makes up a mutation.
func (c *client) draw() *borgpb.Op {
	c.files.task = identity.Name{}
	if len(c.first) > 0 {
		op := c.first[0]
		c.first = c.first[1:]
		return op
	}
	if op := c.special(); op != nil {
		return op
	}
	if op := c.fileOp(); op != nil {
		return op
	}
	r := c.rand
	if c.w.swarm.lasting && r.IntN(12) == 0 {
		return c.lasting()
	}
	if c.w.sleepy() && r.IntN(2) == 0 {
		return c.submit(fmt.Sprintf("s%d", c.made), c.shortSpec())
	}
	if chance(r, c.w.swarm.trespassPermille) {
		return c.trespass()
	}
	if c.user() == adminUser && r.IntN(100) < 9+c.w.swarm.drainsPercent {
		return c.drain()
	}
	if c.w.swarm.updates && c.w.truth.cell.Format() >= cell.FormatUpdates && r.IntN(3) == 0 {
		return c.rolloutOp()
	}
	if c.w.swarm.kinds && c.w.truth.cell.Format() >= cell.FormatKinds && r.IntN(8) == 0 {
		return c.kindsOp()
	}
	if c.w.swarm.follows && c.w.truth.cell.Format() >= cell.FormatAfterFailure && r.IntN(3) == 0 {
		return c.followOp()
	}
	if c.w.swarm.volumes && c.w.truth.cell.Format() >= cell.FormatVolumes && r.IntN(3) == 0 {
		return c.volumeOp()
	}
	if c.w.swarm.places && c.w.truth.cell.Format() >= cell.FormatVolumes && r.IntN(3) == 0 {
		return c.placeOp()
	}
	user, name := c.user(), fmt.Sprintf("j%d", r.IntN(c.w.swarm.jobs))
	switch n := r.IntN(100); {
	case n < 45:
		return c.submit(name, c.budgeted(name, c.drawSpec()))
	case n < 62:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}
	case n < 74:
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, Tasks: uint32(1 + r.IntN(6))}}}
	case n < 91:
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: name, Spec: encode(c.budgeted(name, c.drawSpec()))}}}
	case n < 95:
		set := &borgpb.AllocSetSpec{
			Allocs: uint32(1 + r.IntN(3)), Priority: allocSetPriority,
			Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 512 << 20, DiskBytes: 64 << 20, Ports: 4},
		}
		return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: allocSetName, Spec: encode(set)}}}
	case n < 97:
		return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: user, Name: allocSetName}}}
	default:
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, Tasks: 1}}}
	}
}

// drain empties a machine, or lets it be filled again.
func (c *client) drain() *borgpb.Op {
	m := c.w.machines[c.rand.IntN(min(2, len(c.w.machines)))]
	if c.w.swarm.rich && c.rand.IntN(3) > 0 {
		return c.taint(m)
	}
	return c.drainOp(m)
}

// allocSetName is the one alloc set of each user.
const allocSetName = "set"

// allocSetPriority is the priority of all alloc sets.
const allocSetPriority = 200

// special are the few mutations that a seed makes once: a job of hundreds of
// tasks and its end, and one whose tasks do nothing but fail.
func (c *client) special() *borgpb.Op {
	s := &c.w.swarm
	if c.i != 0 {
		return nil
	}
	small := &borgpb.Resources{CpuMilli: 5, MemBytes: 1 << 20, DiskBytes: 1 << 10}
	switch at := c.made; {
	case at == 3 && s.stormTasks > 0:
		return c.storm()
	case at == 5 && s.giantTasks > 0:
		c.w.mark("giant job")
		return c.submit("giant", &borgpb.JobSpec{
			Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: uint32(s.giantTasks), Priority: 110,
			Task: &borgpb.TaskSpec{Resources: small, Args: []string{"/bin/task", "0", "0"}, GraceNs: 200 * millisecond},
		})
	case at == 25 && s.giantTasks > 0:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user(), Name: "giant"}}}
	case s.crashServices && at >= 2 && at <= 5:
		return c.crashService(at)
	case at == 2 && s.failures > 0:
		return c.submit("failing", &borgpb.JobSpec{
			Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 10, Priority: 110, MaxFailures: uint32(s.failures),
			Task: &borgpb.TaskSpec{Resources: small, Args: []string{"/bin/task", "20", "1"}, GraceNs: 200 * millisecond},
		})
	}
	return nil
}

func (c *client) submit(name string, spec *borgpb.JobSpec) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: c.user(), Name: name, Spec: encode(spec)}}}
}

func (c *client) drawSpec() *borgpb.JobSpec {
	r := c.rand
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: uint32(1 + r.IntN(5)),
		Priority: []int32{50, 110, 200, 200, 400}[r.IntN(5)],
		Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 100 + int64(r.IntN(8))*100, MemBytes: 64 << 20, DiskBytes: 1 << 20},
			Args:      []string{"/bin/task", "0", "0"},
			GraceNs:   between(r, 100*millisecond, 2*second),
		},
		Update: &borgpb.UpdatePolicy{BatchSize: uint32(1 + r.IntN(3))},
	}
	if c.w.swarm.memBytes > 0 {
		spec.Task.Resources.MemBytes += int64(r.IntN(3)) * (64 << 20)
	}
	switch n := r.IntN(100); {
	case n < 35:
		spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
		spec.MaxFailures = uint32(r.IntN(3))
		code := "0"
		if r.IntN(4) == 0 {
			code = "1"
		}
		spec.Task.Args = []string{"/bin/task", fmt.Sprint(50 + r.IntN(4000)), code}
	case n < 45:
		spec.Task.Args = []string{"/bin/task", fmt.Sprint(50 + r.IntN(2000)), "3"}
	}
	if r.IntN(3) == 0 {
		spec.Task.Ports = []string{"http"}
	}
	if r.IntN(4) == 0 {
		spec.MaxPerMachine = 1
	}
	if r.IntN(8) == 0 {
		spec.OnLost = borgpb.OnLost_ON_LOST_DEAD
	}
	if r.IntN(8) == 0 {
		spec.Gang = true
	}
	if r.IntN(8) == 0 {
		spec.AllocSet = c.user() + "/" + allocSetName
		spec.AllocByIndex = c.byIndex()
	}
	if c.w.swarm.rich {
		c.enrich(spec)
	}
	return spec
}

// byIndex draws whether tasks in allocs take them by index.
func (c *client) byIndex() bool {
	return c.w.truth.cell.Format() >= cell.FormatAllocIndex && c.rand.IntN(2) == 0
}

// enrich makes a job ask for a device or a package, tolerate a taint, limit itself by
// an attribute, or wait in the queue.
func (c *client) enrich(spec *borgpb.JobSpec) {
	r, res := c.rand, spec.Task.Resources
	switch r.IntN(8) {
	case 0:
		res.Devices = map[string]int64{deviceName: 1 + r.Int64N(2)}
	case 1, 2, 3:
		res.DeviceMilli = map[string]int64{deviceName: 200 + 100*r.Int64N(7)}
	}
	if r.IntN(3) == 0 {
		spec.Task.Tolerations = []*borgpb.Toleration{{Key: taintKey, ForgivenessNs: r.Int64N(2) * between(r, second, 3*second)}}
	}
	spec.BatchQueue = spec.Kind == borgpb.JobKind_JOB_KIND_BATCH && c.made%3 == 0
	if c.w.truth.cell.Format() < cell.FormatBans {
		return
	}
	if r.IntN(2) == 0 {
		spec.MaxPer = map[string]uint32{shelfAttribute: uint32(1 + r.IntN(2))}
	}
	if r.IntN(4) == 0 {
		spec.Task.Packages = []*borgpb.Package{{Name: packageName, Digest: pickDigest(r), Path: "/opt/" + packageName}}
	}
}

// The one kind of device, of which every second machine has some, and the one
// taint.
const (
	deviceName = "gpu"
	taintKey   = "odd"
)

// packageName is the one package, of which there are two versions.
const packageName = "tool"

func pickDigest(r *rand.Rand) string { return fmt.Sprint("sha256:", 1+r.IntN(2)) }

// ban bans a package, everywhere or on a machine, for a while or for good, or lifts
// a ban.
func (c *client) ban(m *machine) *borgpb.Op {
	digest, on := "", ""
	if c.rand.IntN(2) == 0 {
		digest = pickDigest(c.rand)
	}
	if c.rand.IntN(2) == 0 {
		on = m.name
	}
	if c.rand.IntN(2) == 0 {
		return &borgpb.Op{Op: &borgpb.Op_UnbanPackage{UnbanPackage: &borgpb.UnbanPackage{Name: packageName, Digest: digest, Machine: on}}}
	}
	ban := &borgpb.BanPackage{Name: packageName, Digest: digest, Machine: on}
	if c.rand.IntN(2) == 0 {
		ban.ExpiresWallNs = c.w.wallNs() + between(c.rand, second, 3*second)
	}
	return &borgpb.Op{Op: &borgpb.Op_BanPackage{BanPackage: ban}}
}

// taint gives a machine the taint in one of its kinds, or takes it away.
func (c *client) taint(m *machine) *borgpb.Op {
	if c.w.swarm.tight {
		// Nothing has to find a place in the end, so any machine will do.
		m = c.w.machines[c.rand.IntN(len(c.w.machines))]
	}
	switch c.rand.IntN(4) {
	case 0:
		if c.w.truth.cell.Format() >= cell.FormatBans {
			return c.ban(m)
		}
	case 1:
		// Placements on their way may be one too many there.
		shelf := map[string]string{shelfAttribute: fmt.Sprint(c.rand.IntN(3))}
		return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: m.name, SetAttributes: shelf}}}
	}
	set := &borgpb.SetMachine{Name: m.name}
	switch kind := c.rand.IntN(5); kind {
	case 0, 1:
		set.RemoveTaints = []string{taintKey}
	default:
		set.SetTaints = []*borgpb.Taint{{Key: taintKey, Evict: kind == 2, PreferNot: kind == 3}}
	}
	return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: set}}
}

// shortSpec is of a few small tasks that end well soon.
func (c *client) shortSpec() *borgpb.JobSpec {
	return &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: uint32(2 + c.rand.IntN(5)), Priority: 200,
		Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 5, MemBytes: 1 << 20, DiskBytes: 1 << 10},
			Args:      []string{"/bin/task", fmt.Sprint(50 + c.rand.IntN(1000)), "0"},
			GraceNs:   200 * millisecond,
		},
	}
}

func encode(m proto.Message) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

// lasting submits a service that nobody kills or changes. One that is tied to a
// machine waits for its return when it is lost, as there is no other place; any
// other is replaced meanwhile, and then there are two of it.
func (c *client) lasting() *borgpb.Op {
	m := c.w.machines[c.rand.IntN(len(c.w.machines))]
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 400,
		Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 64 << 20, DiskBytes: 1 << 20},
			Args:      []string{"/bin/task", "0", "0"},
			GraceNs:   second,
		},
	}
	if c.rand.IntN(2) == 0 {
		return c.submit("any-"+m.name, spec)
	}
	spec.Task.Constraints = []*borgpb.Constraint{{Key: slotAttribute, Relation: borgpb.Relation_RELATION_EQUAL, Value: m.name}}
	return c.submit("on-"+m.name, spec)
}

// pinned tells whether the tasks of a job may have to wait for one machine, for
// devices or cores, for others of the job to end, for a ban to be lifted, or where a volume
// is.
func pinned(j *cell.Job) bool {
	t := j.Spec().GetTask()
	return t.GetExclusiveCores() || len(t.GetConstraints())+len(t.GetResources().GetDevices())+len(t.GetResources().GetDeviceMilli())+len(t.GetPackages())+len(t.GetVolumes())+len(j.Spec().GetMaxPer()) > 0
}
