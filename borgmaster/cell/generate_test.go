package cell

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"

	"borg/proto/borgpb"
)

// generator makes ops for the random walk. It looks at the cell to make most
// of them sensible, and makes many that are not.
type generator struct {
	*testLog
	r *rand.Rand
	// Request ids that were used, with their times.
	used []*borgpb.Op
	seq  int
	mood mood
	// It has no moods: a short walk with something of everything.
	even bool
}

func pick[T any](r *rand.Rand, list []T) (v T) {
	if len(list) == 0 {
		return v
	}
	return list[r.IntN(len(list))]
}

func (g *generator) one(n int) bool { return g.r.IntN(n) == 0 }

// next makes one op.
func (g *generator) next() []byte {
	if g.one(60) {
		return g.garbage()
	}
	if g.c.format >= FormatLabels && g.one(25) {
		return marshal(g.t, g.user(g.labelOp()))
	}
	if g.c.format >= FormatPreemption && g.one(100) {
		return marshal(g.t, g.preemptionOp())
	}
	if op := g.inMood(); op != nil {
		return marshal(g.t, op)
	}
	var op *borgpb.Op
	switch n := g.r.IntN(1000); {
	case g.c.format >= FormatQuarantine && g.one(40):
		op = g.quarantineOp()
	case g.c.format >= FormatVolumes && g.one(25):
		op = g.volumeOp()
	case g.c.format >= FormatQuotas && g.one(50):
		op = g.quotaOp()
	case n < 330:
		op = g.assign()
	case n < 670:
		op = g.reports()
	case n < 710:
		op = g.moveTasks()
	case n < 760 && g.c.format >= FormatKinds && g.one(2):
		op = g.standingOp()
	case n < 760:
		op = g.user(g.submit())
	case n < 775:
		op = g.user(g.kill())
	case n < 825:
		op = g.user(g.update())
	case n < 860:
		op = g.user(g.resize())
	case n < 885 && g.c.format >= FormatSetUpdates && g.one(2):
		op = g.user(g.changeSet())
	case n < 885:
		op = g.user(g.submitAllocSet())
	case n < 890:
		op = g.user(g.killAllocSet())
	case n < 940:
		op = g.machineOp()
	case n < 948:
		op = g.secretOp()
	case n < 953:
		op = g.user(g.fileOp())
	case n < 965:
		op = g.taskOp()
	case n < 978:
		op = g.clockOp()
	case n < 985:
		op = g.identityOp()
	case n < 991:
		op = g.banOp()
	default:
		if len(g.used) > 0 {
			return marshal(g.t, pick(g.r, g.used))
		}
		op = g.clockOp()
	}
	return marshal(g.t, op)
}

// identityOp grants, revokes, makes and uses tokens. The one who asks for
// everything else may become admin, and nobody else: the walk goes on.
func (g *generator) identityOp() *borgpb.Op {
	user := pick(g.r, []string{"u", "u", "ann", "bob", "Not-A-Label"})
	capability := pick(g.r, []string{"no-estimation", "kernel-features", "relax-isolation", "nonsense"})
	if user == "u" && g.one(2) {
		capability = "admin"
	}
	name := pick(g.r, []string{"user/ann", "borglet/m1", "borglet/m2", "master/1"})
	hash := bytes.Repeat([]byte{byte(g.r.IntN(8))}, 32)
	switch g.r.IntN(7) {
	case 0, 1:
		return g.user(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: user, Capability: capability}}})
	case 2:
		return g.user(&borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: user, Capability: capability}}})
	case 3:
		return g.user(&borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: user, CertificatesWallNs: g.wallNs - int64(g.r.IntN(100))*second}}})
	case 4, 5:
		return g.user(&borgpb.Op{Op: &borgpb.Op_AddToken{AddToken: &borgpb.AddToken{Hash: hash, Name: name, ExpiresWallNs: g.wallNs + int64(g.r.IntN(7200))*second}}})
	default:
		return &borgpb.Op{Op: &borgpb.Op_UseToken{UseToken: &borgpb.UseToken{Hash: hash, Name: name}}}
	}
}

// secretOp sets, deletes and seals secrets anew, and changes the key.
func (g *generator) secretOp() *borgpb.Op {
	user, name := pick(g.r, []string{"u", "u", "ann", "a-b", "Not-A-Label"}), pick(g.r, []string{"db", "tls", "a-b"})
	keyID := pick(g.r, []string{"00000000000000aa", "00000000000000bb", "nonsense"})
	sealed := bytes.Repeat([]byte{byte(g.r.IntN(256))}, sealBytes-1+g.r.IntN(9))
	version := uint64(g.r.IntN(3))
	if s := g.c.Secret(user, name); s != nil && !g.one(4) {
		version = s.Version() + 1
		if g.one(3) {
			return &borgpb.Op{Op: &borgpb.Op_ResealSecret{ResealSecret: &borgpb.ResealSecret{
				User: user, Name: name, Version: s.Version(), KeyId: g.c.CellKey(), Sealed: bytes.Repeat([]byte{7}, len(s.Sealed())),
			}}}
		}
	}
	switch g.r.IntN(8) {
	case 0:
		return g.user(&borgpb.Op{Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: user, Name: name}}})
	case 1:
		return &borgpb.Op{Op: &borgpb.Op_UseCellKey{UseCellKey: &borgpb.UseCellKey{KeyId: keyID}}}
	}
	return g.user(&borgpb.Op{Op: &borgpb.Op_SetSecret{SetSecret: &borgpb.SetSecret{User: user, Name: name, Version: version, KeyId: keyID, Sealed: sealed}}})
}

// fileOp writes and deletes files.
func (g *generator) fileOp() *borgpb.Op {
	user := pick(g.r, []string{"u", "u", "ann", "a-b", "Not-A-Label"})
	name := pick(g.r, []string{"leader", "conf", "conf/a", "conf/a.b/c", "conf-x", "../up"})
	var want *uint64
	if f := g.c.File(user, name); f != nil && g.one(2) {
		want = new(f.Version() + uint64(g.r.IntN(4)/3))
	} else if g.one(4) {
		want = new(uint64)
	}
	if g.one(4) {
		return &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: user, Name: name, IfVersion: want}}}
	}
	content := bytes.Repeat([]byte{byte(g.r.IntN(256))}, g.r.IntN(100))
	return &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: user, Name: name, Content: content, IfVersion: want}}}
}

// standingOp submits daemon and cron jobs, decides slots, and suspends.
func (g *generator) standingOp() *borgpb.Op {
	user, name := g.key()
	crons := g.c.Crons()
	if len(crons) == 0 || g.one(3) {
		s := g.jobSpec()
		s.Overrides, s.Gang, s.BatchQueue = nil, false, false
		if s.Kind = borgpb.JobKind_JOB_KIND_DAEMON; len(crons) == 0 && g.one(2) || g.one(3) {
			s.Kind = borgpb.JobKind_JOB_KIND_CRON
			if s.Update != nil && !g.one(10) {
				s.Update.Surge = 0
			}
			if len(crons) == 0 {
				// Of many that are asked for a quota refuses most.
				s.Priority = 0
			}
			s.Cron = &borgpb.CronSpec{
				Schedule: pick(g.r, []string{"@hourly", "@hourly", "* * * * *", "* * * * *", "* * * * *", ""}), Overlap: borgpb.CronOverlap(g.r.IntN(4)),
				StartingDeadlineNs: int64(g.r.IntN(300)) * second, KeepFinished: uint32(g.r.IntN(3)),
			}
		} else if !g.one(10) {
			s.Tasks, s.AllocSet, s.MaxRunning, s.MaxPerMachine, s.MaxPerRack, s.MaxPer, s.OnLost = 0, "", 0, 0, 0, nil, 0
			s.AllocByIndex = false
			for _, t := range s.Task.Tolerations {
				t.ForgivenessNs = 0
			}
		}
		g.noSeatsBack(s)
		return g.user(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Spec: g.specBytes(s)}}})
	}
	j := pick(g.r, crons)
	if g.one(8) {
		return g.user(&borgpb.Op{Op: &borgpb.Op_SuspendCron{SuspendCron: &borgpb.SuspendCron{User: j.key.User, Name: j.key.Name, Suspend: g.one(3)}}})
	}
	now := g.wallNs / minute
	o := &borgpb.FireCron{
		User: j.key.User, Name: j.key.Name, Uid: j.uid.String(), Version: j.version, SlotWallNs: (now - int64(g.r.IntN(4)) + int64(g.r.IntN(8)/7)) * minute,
		Missed: uint32(g.r.IntN(4) / 3), Spec: marshal(g.t, j.RunSpec()),
	}
	switch {
	case g.one(4):
		o.Manual, o.SlotWallNs, o.Missed = true, 0, 0
		return g.user(&borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: o}})
	case g.one(30):
		o.Version++
	case g.one(30):
		o.Spec = g.specBytes(g.jobSpec())
	}
	return &borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: o}}
}

// taskOp is what a task asks for, of which some is not its business.
func (g *generator) taskOp() *borgpb.Op {
	var tasks []*Task
	for j := range g.c.jobs.each() {
		for _, t := range j.rows {
			if t.cur != nil {
				tasks = append(tasks, t)
			}
		}
	}
	if len(tasks) == 0 {
		return g.clockOp()
	}
	t := pick(g.r, tasks)
	id := t.ID()
	op := &borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: &borgpb.SetTaskNote{
		User: id.Job.User, Job: id.Job.Name, Index: id.Index, Attempt: t.attempt - uint64(g.r.IntN(8)/7),
		Text: pick(g.r, []string{"warming up", "", "odd \x1b[31m"}), Annotations: map[string]string{"shard": pick(g.r, []string{"1", "2"})},
	}}}
	switch g.r.IntN(7) {
	case 3:
		op = g.fileOp()
	case 0:
		spec := g.jobSpec()
		spec.Parent = id.Job.String()
		op = &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: id.Job.User, Name: pick(g.r, []string{"child-1", "child-2"}), Spec: g.specBytes(spec)}}}
	case 1:
		op = &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: id.Job.User, Name: pick(g.r, []string{"child-1", "child-2"})}}}
	case 2:
		op = g.kill()
	}
	op = g.user(op)
	op.Principal = &borgpb.Principal{User: id.Job.User, Role: borgpb.Role_ROLE_TASK, Task: pick(g.r, []string{id.String(), id.String(), id.String(), "u/none/0", "nonsense"})}
	return op
}

// garbage is bytes that are no op, or an op with something unknown in it.
func (g *generator) garbage() []byte {
	b := marshal(g.t, g.assign())
	switch g.r.IntN(4) {
	case 0:
		return nil
	case 1:
		for range 1 + g.r.IntN(4) {
			if len(b) > 0 {
				b[g.r.IntN(len(b))] ^= byte(1 << g.r.IntN(8))
			}
		}
		return b
	case 2:
		return append(b, 0xF8, 0x07, 0x01) // field 127
	default:
		return b[:g.r.IntN(len(b)+1)]
	}
}

// user gives an op a request id, most times a fresh one.
func (g *generator) user(op *borgpb.Op) *borgpb.Op {
	g.seq++
	op.RequestId = fmt.Sprintf("%026d", g.seq)
	op.RequestWallNs = g.wallNs - int64(g.r.IntN(100))*second
	op.Principal = &borgpb.Principal{User: "u", Role: borgpb.Role_ROLE_USER}
	// Of what is his own, and may name what is not: a walk of an earlier format is as
	// it was.
	if job := op.GetSubmitJob(); job != nil && g.c.format >= formatLinks && g.one(3) {
		op.Principal.User = job.User
	}
	op.Reason = "because"
	switch {
	case g.one(40):
		op.RequestWallNs = g.wallNs - 3600*second
	case g.one(100):
		op.RequestWallNs = g.wallNs + 3600*second
	case g.one(200):
		op.RequestId = fmt.Sprintf("%0100d", g.seq)
	}
	if len(g.used) < 50 {
		g.used = append(g.used, op)
	} else {
		g.used[g.r.IntN(len(g.used))] = op
	}
	return op
}

func (g *generator) key() (user, name string) {
	if g.one(80) {
		return "Not-A-Label", "x"
	}
	return pick(g.r, []string{"ann", "bob"}), pick(g.r, []string{"a", "b", "c", "d", "e", "f", "g", "h"})
}

func (g *generator) submit() *borgpb.Op {
	user, name := g.key()
	o := &borgpb.SubmitJob{User: user, Name: name, Labels: g.labels(), Spec: g.specBytes(g.jobSpec())}
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: o}}
}

func (g *generator) specBytes(s *borgpb.JobSpec) []byte {
	b := marshal(g.t, s)
	if g.one(60) {
		b = append(b, 0xF8, 0x07, 0x01)
	}
	return b
}

func (g *generator) labels() map[string]string {
	if g.one(50) {
		m := make(map[string]string)
		for i := range maxLabels + 1 {
			m[fmt.Sprint(i)] = "x"
		}
		return m
	}
	return map[string]string{"tier": pick(g.r, []string{"web", "db"})}
}

func (g *generator) startAfter(s *borgpb.JobSpec) {
	s.StartAfter = []string{"ann/" + pick(g.r, []string{"a", "b", "c"})}
	if g.c.format >= FormatAfterFailure {
		s.AfterFailure = borgpb.AfterFailure(s.Tasks % 4)
	}
}

func (g *generator) jobSpec() *borgpb.JobSpec {
	r := g.r
	s := &borgpb.JobSpec{
		Kind:     pick(r, []borgpb.JobKind{1, 2, 2}),
		Tasks:    uint32(1 + r.IntN(8)),
		Priority: pick(r, []int32{0, 50, 100, 110, 117, 150, 200, 360, 450}),
		Task:     g.taskSpec(),
		OnLost:   pick(r, []borgpb.OnLost{0, 1, 2}),
	}
	s.MaxFailures = uint32(r.IntN(3))
	// Of what a walk of an earlier format submits, nothing may be refused for it.
	s.SubmitChildren = g.c.format >= FormatTasks && g.one(3)
	if g.one(4) {
		s.MaxPerMachine, s.MaxPerRack = uint32(r.IntN(3)), uint32(r.IntN(4))
	}
	if g.c.format >= formatLimits && g.one(5) {
		s.MaxPer = map[string]uint32{"arch": uint32(1 + r.IntN(3)), "kernel": uint32(1 + r.IntN(2))}
		if g.one(20) {
			s.MaxPer = map[string]uint32{pick(r, []string{"rack", "machine", "arch"}): uint32(r.IntN(2))}
		}
	}
	if g.one(5) {
		s.MaxRunning = uint32(1 + r.IntN(4))
	}
	if g.one(4) {
		s.Overrides = []*borgpb.TaskOverride{
			{First: uint32(r.IntN(4)), Last: uint32(r.IntN(8)), Spec: &borgpb.TaskSpec{Env: map[string]string{"I": "1"}}},
			{First: 1, Last: 2, Spec: &borgpb.TaskSpec{Args: []string{"x"}, Resources: g.resources()}},
		}
	}
	if g.one(4) {
		s.AllocSet = "ann/" + pick(r, []string{"p", "q", "none"})
		s.Task.Resources.CpuMilli /= 4
		// A job of a higher priority than its set is refused; that is tried too.
		if set := g.c.AllocSet(mustKey(s.AllocSet)); set != nil && !g.one(10) {
			s.Priority = min(s.Priority, set.Spec().Priority)
		}
	}
	g.allocIndex(s)
	g.network(s)
	g.volumesOfJob(s)
	if g.one(8) {
		s.Parent = "bob/" + pick(r, []string{"a", "b", "c"})
	}
	if g.one(12) {
		g.startAfter(s)
	}
	if g.one(3) {
		s.Update = &borgpb.UpdatePolicy{BatchSize: uint32(r.IntN(4)), MaxDisruptions: uint32(r.IntN(4))}
	}
	if g.c.format >= FormatUpdates && s.Update != nil && g.one(2) {
		g.rollout(s.Update)
	}
	if g.c.format >= FormatBudgets && g.one(2) {
		s.DisruptionBudget = g.budget()
	}
	g.mayPreempt(&s.Preempt, &s.PreemptWaitNs)
	s.Gang, s.BatchQueue = g.one(8), g.one(6)
	switch {
	case g.one(60):
		s.Priority = 451
	case g.one(60):
		s.Kind = 0
	case g.one(100):
		s.Kind = 77
	case g.one(60):
		s.Tasks = maxTasksPerJob + 1
	}
	return s
}

// rollout gives an update something of what format 7 added.
func (g *generator) rollout(p *borgpb.UpdatePolicy) {
	span := func() int64 { return int64(g.r.IntN(3)*g.r.IntN(20)) * second / 2 }
	p.Order = pick(g.r, []borgpb.UpdateOrder{0, 1, 2})
	p.WatchNs, p.AutoRollback, p.NoNeighbours, p.CloseAfterNs = span(), g.one(2), g.one(3), span()
	if g.one(2) {
		p.MaxFailed = new(uint32(g.r.IntN(3)))
	}
	if g.one(2) {
		p.ProgressDeadlineNs = p.WatchNs + 1 + span()
	}
	if g.one(2) {
		p.Canaries, p.CanaryWatchNs = uint32(1+g.r.IntN(3)), span()
	}
	if g.one(6) {
		p.PulseNs = 1 + span()
	}
	if g.one(30) {
		p.WatchNs = -1
	}
	g.pace(p)
}

// noSeatsBack lets no daemon job be rolled back in the formats in which that leaves it
// with seats that have no tasks.
func (g *generator) noSeatsBack(s *borgpb.JobSpec) {
	if s.Kind == borgpb.JobKind_JOB_KIND_DAEMON && g.c.format < formatSeatsBack && s.Update != nil {
		s.Update.AutoRollback = false
	}
}

// controlUpdate tells updates how to go on.
func (g *generator) controlUpdate() *borgpb.Op {
	user, name := g.key()
	o := &borgpb.ControlUpdate{User: user, Name: name, Verb: borgpb.UpdateVerb(g.r.IntN(9))}
	j := g.c.Job(JobKey{user, name})
	if j != nil && stands(j.Kind()) && g.c.format < formatSeatsBack && o.Verb == borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK {
		o.Verb = borgpb.UpdateVerb_UPDATE_VERB_ABORT
	}
	if j != nil && j.update != nil && g.one(3) {
		o.UpdateUid = j.update.uid.String()
		if g.one(5) {
			o.UpdateUid = "1-2-3"
		}
	}
	return &borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: o}}
}

// budget is one that lets little go, mostly.
func (g *generator) budget() *borgpb.DisruptionBudget {
	b := &borgpb.DisruptionBudget{MaxDown: uint32(g.r.IntN(3))}
	if g.one(2) || b.MaxDown == 0 {
		b.MaxPerTask, b.WindowNs = uint32(1+g.r.IntN(2)), int64(1+g.r.IntN(200))*second
	}
	if g.one(20) {
		b.MaxPerTask, b.WindowNs = uint32(g.r.IntN(20)), int64(g.r.IntN(3)-1)*second
	}
	return b
}

func (g *generator) resources() *borgpb.Resources {
	r := g.r
	res := &borgpb.Resources{CpuMilli: int64(100 + 100*r.IntN(20)), MemBytes: int64(1+r.IntN(20)) << 26, DiskBytes: int64(r.IntN(3)) << 30}
	switch {
	case g.one(8):
		res.Devices = map[string]int64{"gpu": int64(r.IntN(3))}
	case g.one(8):
		res.DeviceMilli = map[string]int64{"gpu": int64(r.IntN(12)) * 100}
	}
	switch {
	case g.one(80):
		res.MemBytes = -1
	case g.one(80):
		res.CpuMilli = 1 << 62
	case g.one(80):
		res.MemBytes = 0
	}
	return res
}

func (g *generator) taskSpec() *borgpb.TaskSpec {
	r := g.r
	t := &borgpb.TaskSpec{
		Resources: g.resources(),
		Args:      []string{"prog", pick(r, []string{"1", "2", "3"})},
		Env:       map[string]string{"A": "b"},
		GraceNs:   int64(r.IntN(3)) * 5 * second,
	}
	g.ownNotice(t)
	for i := range r.IntN(3) {
		t.Ports = append(t.Ports, []string{"http", "admin"}[i])
	}
	if g.one(4) {
		t.Constraints = []*borgpb.Constraint{{Key: "arch", Relation: borgpb.Relation(1 + r.IntN(2)), Value: "arm"}}
	}
	if g.one(6) {
		t.Constraints = append(t.Constraints, &borgpb.Constraint{Key: "kernel", Relation: borgpb.Relation(3 + r.IntN(6)), Value: "6"})
	}
	if g.one(3) {
		t.Tolerations = []*borgpb.Toleration{{Key: "dedicated"}}
		if g.one(2) {
			t.Tolerations[0].ForgivenessNs = int64(r.IntN(20)) * second
		}
	}
	if g.one(20) {
		t.Secrets = []string{"db"}
	}
	if g.one(5) {
		t.Packages = []*borgpb.Package{{Name: pick(r, []string{"tool", "lib", "other"}), Digest: pick(r, append([]string{"sha256:1", "sha256:2"}, testDigests...)), Path: "/p"}}
	}
	if g.one(10) {
		t.Constraints = append(t.Constraints, &borgpb.Constraint{Key: NameAttribute, Relation: borgpb.Relation_RELATION_NOT_EQUAL, Value: g.machineName()})
	}
	g.local(t)
	g.cores(t)
	return t
}

func (g *generator) kill() *borgpb.Op {
	user, name := g.key()
	return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name, ExpectVersion: g.version()}}}
}

func (g *generator) version() uint64 {
	if g.one(3) {
		return uint64(g.r.IntN(4))
	}
	return 0
}

func (g *generator) update() *borgpb.Op {
	if g.c.format >= FormatUpdates && g.one(3) {
		return g.controlUpdate()
	}
	if g.c.format >= FormatSurges && g.one(3) {
		return g.judgeGate()
	}
	user, name := g.key()
	o := &borgpb.UpdateJob{User: user, Name: name, ExpectVersion: g.version(), Labels: g.labels()}
	spec := g.jobSpec()
	if j := g.c.Job(JobKey{user, name}); j != nil {
		spec = g.vary(j)
	}
	o.Spec = g.specBytes(spec)
	g.merge(o)
	return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: o}}
}

// vary changes a little of what a job is, of each class of change.
func (g *generator) vary(j *Job) *borgpb.JobSpec {
	s := g.c.JobProto(j).Spec
	b := marshal(g.t, s)
	s = new(borgpb.JobSpec)
	mustUnmarshal(g.t, b, s)
	for range 1 + g.r.IntN(2) {
		if g.c.format >= FormatVolumes && g.one(4) {
			g.volumesOfJob(s)
		}
		switch g.r.IntN(8) {
		case 7:
			if s.DisruptionBudget = nil; g.c.format >= FormatBudgets && g.one(2) {
				s.DisruptionBudget = g.budget()
			}
		case 0:
			s.Priority = pick(g.r, []int32{0, 100, 150, 200})
		case 1:
			s.Task.Args = []string{"prog", fmt.Sprint(g.r.IntN(100))}
		case 2:
			s.Task.Resources = g.resources()
		case 3:
			s.Task.Constraints = []*borgpb.Constraint{{Key: "arch", Relation: 1, Value: pick(g.r, []string{"arm", "x86"})}}
		case 4:
			s.Update = &borgpb.UpdatePolicy{BatchSize: uint32(g.r.IntN(3)), MaxDisruptions: uint32(g.r.IntN(3))}
			if g.c.format >= FormatUpdates {
				g.rollout(s.Update)
				g.noSeatsBack(s)
			}
		case 5:
			s.Tasks = uint32(1 + g.r.IntN(8))
		case 6:
			s.MaxPerMachine = uint32(g.r.IntN(3))
			if g.c.format >= formatLimits {
				s.MaxPer = map[string]uint32{pick(g.r, []string{"arch", "kernel"}): uint32(1 + g.r.IntN(2))}
			}
		}
	}
	return s
}

func (g *generator) resize() *borgpb.Op {
	user, name := g.key()
	n := uint32(1 + g.r.IntN(10))
	if g.one(20) {
		n = 0
	}
	return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, ExpectVersion: g.version(), Tasks: n}}}
}

func (g *generator) assign() *borgpb.Op {
	o := &borgpb.Assign{CopyIndex: g.c.Index(), Build: "walk"}
	for j := range g.c.jobs.each() {
		if g.c.NumbersDevices() && g.c.Queued(j) && g.one(2) {
			o.Enable = append(o.Enable, j.uid.String())
		}
	}
	var waiting []TaskID
	for j, i := range g.c.Pending() {
		waiting = append(waiting, TaskID{j.key, i})
	}
	var allocs []*Alloc
	for a := range g.c.PendingAllocs() {
		allocs = append(allocs, a)
	}
	for range 1 + g.r.IntN(5) {
		switch {
		case len(allocs) > 0 && g.one(4):
			o.Assignments = append(o.Assignments, g.allocAssignment(pick(g.r, allocs)))
		case len(waiting) > 0:
			id := pick(g.r, waiting)
			j := g.c.Job(id.Job)
			if j.Spec().Gang && !g.one(5) {
				for i := range g.c.PendingOf(j) {
					o.Assignments = append(o.Assignments, g.assignment(j, i))
				}
				continue
			}
			o.Assignments = append(o.Assignments, g.assignment(j, id.Index))
		}
	}
	return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: o}}
}

func (g *generator) allocAssignment(al *Alloc) *borgpb.Assignment {
	a := &borgpb.Assignment{
		Uid: al.set.uid.String(), Index: al.index, LastAttempt: al.attempt, Machine: g.machineName(), Version: uint64(g.r.IntN(3)),
	}
	if m := g.c.Machine(a.Machine); m != nil {
		if g.one(2) {
			g.nameLower(a, m.copies, nil, al.set.spec.Priority)
		}
		g.nameDevices(a, al.set.need, m, m.DeviceRoom())
	}
	if g.one(50) {
		a.Index += 7
	}
	return a
}

// nameLower names everything of a lower priority in a room.
func (g *generator) nameLower(a *borgpb.Assignment, copies []*Copy, in *Alloc, priority int32) {
	for _, p := range copies {
		if p.alloc == in && (p.state == attemptStopping || MayPreempt(priority, p.priority)) && !g.one(4) {
			a.Victims = append(a.Victims, &borgpb.Victim{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt})
		}
	}
}

func (g *generator) assignment(j *Job, index uint32) *borgpb.Assignment {
	a := &borgpb.Assignment{Uid: j.uid.String(), Index: index, LastAttempt: j.rows[index].attempt, Version: j.version}
	m := pick(g.r, g.c.machineList)
	if m == nil {
		return a
	}
	if !g.one(3) {
		m = g.fitting(j, index, m)
	}
	if seat := j.Seat(index); seat != nil && !g.one(10) {
		m = seat
	}
	if key, ok := j.AllocSet(); ok && !g.one(10) {
		if s := g.c.AllocSet(key); s != nil {
			if al := g.allocFor(j, index, s); al != nil {
				a.Alloc = al.Name()
				if m = al.machine; m == nil {
					m = g.c.machineList[0]
				}
			}
		}
	}
	a.Machine = m.name
	if al := g.c.AllocByName(a.Alloc); g.one(3) && (al != nil || a.Alloc == "") {
		g.nameLower(a, m.copies, al, j.Priority())
		if al == nil && g.one(4) {
			g.nameVictims(a, m)
		}
	} else if g.one(6) {
		g.nameVictims(a, m)
	}
	if al := g.c.AllocByName(a.Alloc); al != nil {
		g.nameDevices(a, j.Need(index), m, al.DeviceRoom())
	} else {
		g.nameDevices(a, j.Need(index), m, m.DeviceRoom())
	}
	g.grantPorts(a, m, len(j.Need(index).Task.Ports))
	g.tellVictims(a)
	switch {
	case g.one(30):
		a.LastAttempt++
	case g.one(40):
		a.Version += 3
	case g.one(40):
		a.Machine = "nowhere"
	case g.one(50):
		a.Uid = "1-1-1"
	case g.one(60):
		a.Ports = append(a.Ports, 20001)
	}
	return a
}

// nameDevices names devices, most times such as are free.
func (g *generator) nameDevices(a *borgpb.Assignment, need *Need, m *Machine, q DeviceRoom) {
	if !g.c.NumbersDevices() || len(need.Resources.Devices) == 0 {
		return
	}
	for _, v := range a.Victims {
		uid, _ := ParseUID(v.JobUid)
		if p := m.find(CopyID{uid, v.Index, v.Attempt}); p != nil {
			q.Freed = append(q.Freed, p.Devices()...)
		}
		if set := g.c.setsByU[uid]; set != nil && set.Alloc(v.Index) != nil {
			q.Freed = append(q.Freed, set.allocs[v.Index].devices...)
		}
	}
	a.Devices = GrantsProto(q.Choose(need.Resources.Devices))
	switch {
	case g.one(20):
		a.Devices = nil
	case len(a.Devices) > 0 && g.one(20):
		a.Devices[0].Numbers[0] += uint32(g.r.IntN(3))
	case len(a.Devices) > 0 && g.one(30):
		a.Devices[0].Numbers = append(a.Devices[0].Numbers, 0)
	}
}

// moveTasks moves some that run, most times to where they fit, and now and then
// places somebody in their room.
func (g *generator) moveTasks() *borgpb.Op {
	o := &borgpb.MoveTasks{CopyIndex: g.c.Index(), Build: "walk"}
	var leaving []*Copy
	from := pick(g.r, g.c.machineList)
	for range 1 + g.r.IntN(3) {
		if from == nil || g.one(3) {
			from = pick(g.r, g.c.machineList)
		}
		if from == nil || len(from.copies) == 0 {
			continue
		}
		p := pick(g.r, from.copies)
		if (!p.state.current() || slices.Contains(leaving, p)) && !g.one(10) || p.row() == nil {
			continue
		}
		leaving = append(leaving, p)
		o.Moves = append(o.Moves, &borgpb.Assignment{Uid: p.job.uid.String(), Index: p.index, LastAttempt: p.attempt})
	}
	for i, a := range o.Moves {
		p := leaving[i]
		m := g.fitting(p.job, p.index, pick(g.r, g.c.machineList))
		a.Machine = m.name
		g.grantPorts(a, m, len(p.job.Need(p.index).Task.Ports))
		if g.one(4) {
			g.nameLeaving(a, leaving)
		}
		g.nameDevices(a, p.job.Need(p.index), m, m.DeviceRoom())
		if g.one(40) {
			a.LastAttempt++
		}
	}
	if id, ok := g.anyWaiting(); ok && len(leaving) > 0 && !g.one(3) {
		j := g.c.Job(id.Job)
		a := &borgpb.Assignment{Uid: j.uid.String(), Index: id.Index, LastAttempt: j.rows[id.Index].attempt, Machine: leaving[0].machine.name}
		g.grantPorts(a, leaving[0].machine, len(j.Need(id.Index).Task.Ports))
		if !g.one(4) {
			g.nameLeaving(a, leaving)
		}
		g.nameDevices(a, j.Need(id.Index), leaving[0].machine, leaving[0].machine.DeviceRoom())
		o.Placement = a
	}
	return &borgpb.Op{Op: &borgpb.Op_MoveTasks{MoveTasks: o}}
}

// anyWaiting draws a task that waits.
func (g *generator) anyWaiting() (id TaskID, ok bool) {
	var waiting []TaskID
	for j, i := range g.c.Pending() {
		waiting = append(waiting, TaskID{j.key, i})
	}
	return pick(g.r, waiting), len(waiting) > 0
}

// grantPorts grants ports that nobody has on m.
func (g *generator) grantPorts(a *borgpb.Assignment, m *Machine, n int) {
	next := uint32(20000 + g.r.IntN(10))
	for range n {
		for _, used := slicesBinary(m.ports, next); used; _, used = slicesBinary(m.ports, next) {
			next++
		}
		a.Ports = append(a.Ports, next)
		next++
	}
}

// nameLeaving names those that leave its machine as victims.
func (g *generator) nameLeaving(a *borgpb.Assignment, leaving []*Copy) {
	for _, p := range leaving {
		if p.machine.name == a.Machine {
			a.Victims = append(a.Victims, &borgpb.Victim{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt})
		}
	}
}

// fitting looks for a machine that will do, and otherwise returns m.
func (g *generator) fitting(j *Job, index uint32, m *Machine) *Machine {
	first := g.r.IntN(len(g.c.machineList))
	for i := range g.c.machineList {
		o := g.c.machineList[(first+i)%len(g.c.machineList)]
		if g.c.Fit(&Placement{Job: j, Index: index, Machine: o, AnyPorts: true}, nil) == FitOK {
			return o
		}
	}
	return m
}

func (g *generator) nameVictims(a *borgpb.Assignment, m *Machine) {
	for _, p := range m.copies {
		if g.one(3) && (p.alloc == nil) == (a.Alloc == "") {
			a.Victims = append(a.Victims, &borgpb.Victim{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt})
		}
	}
	for _, al := range m.allocs {
		if g.one(6) {
			a.Victims = append(a.Victims, &borgpb.Victim{JobUid: al.set.uid.String(), Index: al.index, Attempt: al.attempt})
		}
	}
}

func (g *generator) reports() *borgpb.Op {
	o := new(borgpb.Reports)
	for range 1 + g.r.IntN(3) {
		m := pick(g.r, g.c.machineList)
		if m == nil {
			continue
		}
		mr := &borgpb.MachineReport{Machine: m.name}
		for _, p := range m.copies {
			if g.one(3) {
				continue
			}
			mr.Tasks = append(mr.Tasks, g.taskReport(p))
		}
		if g.one(10) {
			mr.Tasks = append(mr.Tasks, &borgpb.TaskReport{JobUid: "1-2-3", Attempt: 1, State: int32(g.r.IntN(12))})
		}
		for _, p := range m.copies {
			if g.one(2) {
				mr.Reservations = append(mr.Reservations, g.reservation(p))
			}
		}
		if g.one(40) {
			mr.Machine = "nowhere"
		}
		o.Machines = append(o.Machines, mr)
	}
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: o}}
}

// reservation draws mostly less than the limit, now and then more, or nonsense.
func (g *generator) reservation(p *Copy) *borgpb.TaskReservation {
	r := &borgpb.TaskReservation{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt}
	part := int64(g.r.IntN(9))
	r.CpuMilli, r.MemBytes = p.res.CPUMilli*part/8, p.res.MemBytes*part/8
	switch {
	case g.one(20):
		r.CpuMilli, r.MemBytes = p.res.CPUMilli*2, p.res.MemBytes*2
	case g.one(40):
		r.Attempt++
	case g.one(40):
		r.CpuMilli = -1
	case g.one(40):
		r.JobUid = "?"
	}
	return r
}

func (g *generator) taskReport(p *Copy) *borgpb.TaskReport {
	r := &borgpb.TaskReport{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt, State: int32(p.state), Restarts: p.restarts, Pid: p.pid}
	states := []int32{2, 3, 3, 3, 3, 3, 3, 4, 4, 5, 7, 8, 10}
	if p.state == attemptStopping {
		states = []int32{3, 5, 9, 9, 9, 7, 8, 10}
	}
	r.State = pick(g.r, states)
	if r.State == 3 && r.Pid == 0 {
		r.Pid = int64(1 + g.r.IntN(30000))
	}
	if g.one(10) {
		r.Restarts++
	}
	if !attemptState(r.State).live() {
		r.Exit = &borgpb.Exit{Code: int32(g.r.IntN(3)), Oom: g.one(10)}
	}
	g.addr(p, r)
	g.exitReason(r)
	g.failures(r)
	g.heldPorts(p, r)
	switch {
	case g.one(40):
		r.Attempt--
	case g.one(60):
		r.State = int32(g.r.IntN(20))
	case g.one(60) && r.Restarts > 0:
		r.Restarts--
	}
	return r
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 42)) }
