package borgmaster_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/owners.txt anew; read the diff")

// ops makes an op of each kind that would be done, or at least refused for no
// other reason than who asks, on objects of alice or of the cell. It makes those
// objects first. n is another number each time.
var ops = map[protoreflect.Name]func(o *owners, n int) *borgpb.Op{
	"add_machine": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: fmt.Sprint("new-", n), Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:1"}}}}
	},
	"remove_machine": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: o.machine(n), Force: true}}}
	},
	"set_machine": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: o.machine(n), SetAttributes: map[string]string{"rack": "r1"}}}}
	},
	"machine_up": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: o.machine(n)}}}
	},
	"machine_down": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: o.machine(n), Term: 1}}}
	},
	"drain_machine": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: o.machine(n), Drain: true}}}
	},
	"submit_job": func(o *owners, n int) *borgpb.Op { return submit(o.t, "alice", fmt.Sprint("new-", n), 1) },
	"kill_job":   func(o *owners, n int) *borgpb.Op { return kill("alice", o.job(n)) },
	"update_job": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "alice", Name: o.job(n), Spec: submit(o.t, "alice", "x", 2).GetSubmitJob().Spec}}}
	},
	"resize_job": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "alice", Name: o.job(n), Tasks: 3}}}
	},
	"submit_alloc_set": func(o *owners, n int) *borgpb.Op { return o.submitSet(fmt.Sprint("new-set-", n)) },
	"kill_alloc_set": func(o *owners, n int) *borgpb.Op {
		set := fmt.Sprint("set-", n)
		o.do("alice", o.submitSet(set))
		return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "alice", Name: set}}}
	},
	"update_alloc_set": func(o *owners, n int) *borgpb.Op {
		set := fmt.Sprint("set-", n)
		o.do("alice", o.submitSet(set))
		return &borgpb.Op{Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{User: "alice", Name: set, Spec: o.submitSet(set).GetSubmitAllocSet().Spec}}}
	},
	"resize_alloc_set": func(o *owners, n int) *borgpb.Op {
		set := fmt.Sprint("set-", n)
		o.do("alice", o.submitSet(set))
		return &borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{User: "alice", Name: set, Allocs: 2}}}
	},
	"assign": func(*owners, int) *borgpb.Op { return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{}}} },
	"move_tasks": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_MoveTasks{MoveTasks: &borgpb.MoveTasks{}}}
	},
	"reports": func(*owners, int) *borgpb.Op { return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{}}} },
	"time":    func(*owners, int) *borgpb.Op { return &borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}} },
	// The format that the cell has already, and a digest that is none: what is right
	// here would stop the cell.
	"raise_format": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: 1}}}
	},
	"digest": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Digest{Digest: &borgpb.LogDigest{Index: 1}}}
	},
	"grant": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: fmt.Sprint("user-", n), Capability: "admin"}}}
	},
	"revoke": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: fmt.Sprint("user-", n), CertificatesWallNs: 1}}}
	},
	// Values are sealed by SecretService: as an op nobody may ask for one.
	"set_secret": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetSecret{SetSecret: o.secret(n)}}
	},
	"delete_secret": func(o *owners, n int) *borgpb.Op {
		s := o.keep(n)
		return &borgpb.Op{Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: s.User, Name: s.Name}}}
	},
	"reseal_secret": func(o *owners, n int) *borgpb.Op {
		s := o.keep(n)
		return &borgpb.Op{Op: &borgpb.Op_ResealSecret{ResealSecret: &borgpb.ResealSecret{User: s.User, Name: s.Name, Version: 1, KeyId: s.KeyId, Sealed: s.Sealed}}}
	},
	"use_cell_key": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_UseCellKey{UseCellKey: &borgpb.UseCellKey{KeyId: "0123456789abcdef"}}}
	},
	// Of a task that waits: it has no attempt that could say anything.
	"set_task_note": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: &borgpb.SetTaskNote{User: "alice", Job: o.job(n), Attempt: 1, Text: "at work"}}}
	},
	"ban_package": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_BanPackage{BanPackage: &borgpb.BanPackage{Name: fmt.Sprint("tool-", n)}}}
	},
	"unban_package": func(o *owners, n int) *borgpb.Op {
		tool := fmt.Sprint("tool-", n)
		o.do("root", &borgpb.Op{Op: &borgpb.Op_BanPackage{BanPackage: &borgpb.BanPackage{Name: tool}}})
		return &borgpb.Op{Op: &borgpb.Op_UnbanPackage{UnbanPackage: &borgpb.UnbanPackage{Name: tool}}}
	},
	"set_quota": func(_ *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{User: fmt.Sprint("user-", n), Band: borgpb.Band_BAND_BATCH}}}
	},
	"delete_quota": func(o *owners, n int) *borgpb.Op {
		user := fmt.Sprint("user-", n)
		o.do("root", &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{User: user, Band: borgpb.Band_BAND_MID}}})
		return &borgpb.Op{Op: &borgpb.Op_DeleteQuota{DeleteQuota: &borgpb.DeleteQuota{User: user, Band: borgpb.Band_BAND_MID}}}
	},
	"set_quota_policy": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: new(false)}}}
	},
	"set_preemption_policy": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetPreemptionPolicy{SetPreemptionPolicy: &borgpb.SetPreemptionPolicy{}}}
	},
	"set_visibility": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetVisibility{SetVisibility: &borgpb.SetVisibility{}}}
	},
	"set_task_limits": func(_ *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: &borgpb.SetTaskLimits{User: fmt.Sprint("user-", n), Max: &borgpb.Resources{CpuMilli: 1}}}}
	},
	"set_state_budget": func(_ *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{User: fmt.Sprint("user-", n),
			Amounts: []*borgpb.StateAmount{{Measure: borgpb.StateMeasure_STATE_MEASURE_TASKS, Amount: 1}}}}}
	},
	// The cell was not restored, and says so to who may ask.
	"hear_machines": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_HearMachines{HearMachines: &borgpb.HearMachines{Machines: []*borgpb.HeardMachine{{Machine: o.machine(n)}}}}}
	},
	"declare_lost": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_DeclareLost{DeclareLost: &borgpb.DeclareLost{}}}
	},
	// Of a job that no update rolls through.
	"judge_gate": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_JudgeGate{JudgeGate: &borgpb.JudgeGate{User: "alice", Name: o.job(n), Verdict: borgpb.GateVerdict_GATE_VERDICT_PASS}}}
	},
	"fire_cron": func(o *owners, n int) *borgpb.Op {
		name, run := o.cron(n)
		return &borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: &borgpb.FireCron{User: "alice", Name: name, Version: 1, Manual: true, Spec: run}}}
	},
	"suspend_cron": func(o *owners, n int) *borgpb.Op {
		name, _ := o.cron(n)
		return &borgpb.Op{Op: &borgpb.Op_SuspendCron{SuspendCron: &borgpb.SuspendCron{User: "alice", Name: name, Suspend: true}}}
	},
	"quarantine_task": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_QuarantineTask{QuarantineTask: &borgpb.QuarantineTask{User: "alice", Name: o.running(n)}}}
	},
	"release_task": func(o *owners, n int) *borgpb.Op {
		name := o.running(n)
		o.do("alice", &borgpb.Op{Op: &borgpb.Op_QuarantineTask{QuarantineTask: &borgpb.QuarantineTask{User: "alice", Name: name}}})
		return &borgpb.Op{Op: &borgpb.Op_ReleaseTask{ReleaseTask: &borgpb.ReleaseTask{User: "alice", Name: name}}}
	},
	// With no task that runs an update is done at once, and open.
	"control_update": func(o *owners, n int) *borgpb.Op {
		name := o.job(n)
		o.do("alice", &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "alice", Name: name, Spec: submit(o.t, "alice", "x", 2).GetSubmitJob().Spec}}})
		return &borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: "alice", Name: name, Verb: borgpb.UpdateVerb_UPDATE_VERB_CLOSE}}}
	},
	"end_hold": func(*owners, int) *borgpb.Op { return &borgpb.Op{Op: &borgpb.Op_EndHold{EndHold: &borgpb.EndHold{}}} },
	"adopt_job": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_AdoptJob{AdoptJob: &borgpb.AdoptJob{Uid: "1-1-0", User: "alice", Name: fmt.Sprint("new-", n)}}}
	},
	"stop_unknown": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_StopUnknown{StopUnknown: &borgpb.StopUnknown{Machine: o.machine(n)}}}
	},
	"write_file": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "alice", Name: o.file(n)}}}
	},
	"delete_file": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: "alice", Name: o.file(n)}}}
	},
	// A volume that is not there: who may ask is told so.
	"delete_volume": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{User: "alice", Name: "db", Volume: "data"}}}
	},
	"set_labels": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{
			Kind: borgpb.Labelled_LABELLED_JOB, User: "alice", Name: o.job(n), SetLabels: map[string]string{"tier": "web"}}}}
	},
	"set_label_policy": func(*owners, int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetLabelPolicy{SetLabelPolicy: &borgpb.SetLabelPolicy{Policy: &borgpb.LabelPolicy{}}}}
	},
	"add_token": func(o *owners, n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_AddToken{AddToken: token(n)}}
	},
	"use_token": func(o *owners, n int) *borgpb.Op {
		add := token(n)
		o.do("root", &borgpb.Op{Op: &borgpb.Op_AddToken{AddToken: add}})
		return &borgpb.Op{Op: &borgpb.Op_UseToken{UseToken: &borgpb.UseToken{Hash: add.Hash, Name: add.Name}}}
	},
}

// owners is a cell in which alice has jobs.
type owners struct {
	*testCell
	t *testing.T
}

func (o *owners) do(user string, op *borgpb.Op) {
	o.t.Helper()
	o.must(o.client(1, user), op)
}

func (o *owners) machine(n int) string {
	m := fmt.Sprint("m-", n)
	o.do("root", &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: m, Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:1"}}}})
	return m
}

func (o *owners) secret(n int) *borgpb.SetSecret {
	return &borgpb.SetSecret{User: "alice", Name: fmt.Sprint("secret-", n), Version: 1, KeyId: "0123456789abcdef", Sealed: make([]byte, 40)}
}

// keep has the cell keep a secret, as the elected master does for alice.
func (o *owners) keep(n int) *borgpb.SetSecret {
	o.t.Helper()
	s := o.secret(n)
	op := o.op(&borgpb.Op{Principal: &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}, Op: &borgpb.Op_SetSecret{SetSecret: s}})
	if r, err := o.group.Replica(1).Propose(o.t.Context(), op); err != nil || r.GetRefusal() != nil {
		o.t.Fatalf("keep %s: %v, %v", s.Name, r, err)
	}
	return s
}

func (o *owners) file(n int) string {
	name := fmt.Sprint("conf/", n)
	o.do("alice", &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "alice", Name: name}}})
	return name
}

func token(n int) *borgpb.AddToken {
	hash := sha256.Sum256([]byte{byte(n), byte(n >> 8)})
	return &borgpb.AddToken{Hash: hash[:], Name: "user/carol", ExpiresWallNs: time.Now().Add(time.Hour).UnixNano()}
}

func (o *owners) job(n int) string {
	job := fmt.Sprint("job-", n)
	o.do("alice", submit(o.t, "alice", job, 1))
	return job
}

// running submits a job of alice and has its task run.
func (o *owners) running(n int) string {
	o.t.Helper()
	machine, job := fmt.Sprint("home-", n), o.job(n)
	o.do("root", &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: machine, Spec: &borgpb.MachineSpec{
		Addr: "127.0.0.1:1", Capacity: &borgpb.Resources{CpuMilli: 64_000, MemBytes: 64 << 30, DiskBytes: 64 << 30}, PortFirst: 20000, PortLast: 20999}}}})
	var uid string
	o.group.Replica(1).View(func(c *cell.Cell) { uid = c.Job(cell.JobKey{User: "alice", Name: job}).UID().String() })
	for _, op := range []*borgpb.Op{
		{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Machine: machine}}}}},
		{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: machine, Tasks: []*borgpb.TaskReport{
			{JobUid: uid, Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING), Pid: 7}}}}}}},
	} {
		if r, err := o.group.Replica(1).Propose(o.t.Context(), op); err != nil || r.GetRefusal() != nil || len(r.GetItems()) > 0 {
			o.t.Fatalf("have %s run: %v, %v", job, r, err)
		}
	}
	return job
}

// cron submits a cron job of alice, and returns the spec of its runs too.
func (o *owners) cron(n int) (name string, run []byte) {
	name = fmt.Sprint("job-", n)
	op := submit(o.t, "alice", name, 1)
	spec := new(borgpb.JobSpec)
	if err := proto.Unmarshal(op.GetSubmitJob().Spec, spec); err != nil {
		o.t.Fatal(err)
	}
	spec.Kind, spec.Parent = borgpb.JobKind_JOB_KIND_BATCH, "alice/"+name
	run, err := proto.Marshal(spec)
	if err != nil {
		o.t.Fatal(err)
	}
	spec.Kind, spec.Parent, spec.Cron = borgpb.JobKind_JOB_KIND_CRON, "", &borgpb.CronSpec{Schedule: "@yearly"}
	if op.GetSubmitJob().Spec, err = proto.Marshal(spec); err != nil {
		o.t.Fatal(err)
	}
	o.do("alice", op)
	return name, run
}

func (o *owners) submitSet(set string) *borgpb.Op {
	spec, err := proto.Marshal(&borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}})
	if err != nil {
		o.t.Fatal(err)
	}
	return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "alice", Name: set, Spec: spec}}}
}

// links have the job of whoever asks name something of alice: the fields of a spec
// that name an object.
var links = map[string]func(o *owners, n int, spec *borgpb.JobSpec){
	"alloc_set": func(o *owners, n int, spec *borgpb.JobSpec) {
		set := fmt.Sprint("set-", n)
		o.do("alice", o.submitSet(set))
		spec.AllocSet = "alice/" + set
	},
	"start_after": func(o *owners, n int, spec *borgpb.JobSpec) { spec.StartAfter = []string{"alice/" + o.job(n)} },
	"parent":      func(o *owners, n int, spec *borgpb.JobSpec) { spec.Parent = "alice/" + o.job(n) },
}

// linked is the op with which a user has a job of his own name something of alice:
// a new job, or one that he has.
func (o *owners) linked(user, field string, update bool, n int) *borgpb.Op {
	o.t.Helper()
	name := fmt.Sprint("linked-", n)
	op := submit(o.t, user, name, 1)
	spec := new(borgpb.JobSpec)
	if err := proto.Unmarshal(op.GetSubmitJob().Spec, spec); err != nil {
		o.t.Fatal(err)
	}
	links[field](o, n, spec)
	data, err := proto.Marshal(spec)
	if err != nil {
		o.t.Fatal(err)
	}
	if update {
		o.do(user, op)
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: name, Spec: data}}}
	}
	op.GetSubmitJob().Spec = data
	return op
}

// word is what came of an op.
func word(r *borgpb.Result, err error) string {
	switch code := status.Code(err); {
	case code == codes.PermissionDenied:
		return "no"
	case err != nil:
		return "?" + err.Error()
	}
	switch kind := r.GetRefusal().GetKind(); kind {
	case borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED:
		return "done"
	case borgpb.RefusalKind_REFUSAL_KIND_PERMISSION:
		return "no"
	default:
		return strings.ToLower(strings.TrimPrefix(kind.String(), "REFUSAL_KIND_"))
	}
}

// TestOwners asks a master, by all who can call one, for an op of each kind that
// the log knows, about what is alice's or the cell's; and puts the same into the
// log as a master would that let everything pass, since the cell decides once
// more. A new kind of op without a line fails.
func TestOwners(t *testing.T) {
	o := &owners{newCell(t, 1, nil), t}
	o.hasUsers()
	// Who lies about who he is in the op itself gains nothing.
	callers := []struct {
		word string
		who  identity.Name
		says *borgpb.Principal
	}{
		{"owner", identity.Name{Role: identity.User, ID: "alice"}, nil},
		{"other", identity.Name{Role: identity.User, ID: "bob"}, nil},
		{"liar", identity.Name{Role: identity.User, ID: "bob"}, &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}},
		{"cell's", identity.Name{Role: identity.User, ID: "bob"}, &borgpb.Principal{Role: borgpb.Role_ROLE_MASTER}},
		{"admin", identity.Name{Role: identity.User, ID: "root"}, nil},
		{"task", identity.Name{Role: identity.Task, ID: "alice/web/0"}, nil},
		{"borglet", identity.Name{Role: identity.Borglet, ID: "m1"}, nil},
		{"scheduler", identity.Name{Role: identity.Scheduler, ID: "1"}, nil},
		{"master", identity.Name{Role: identity.Master, ID: "1"}, nil},
	}
	var got strings.Builder
	got.WriteString(`# Who may ask a master for which op, about an object of user alice or of the cell;
# and below what the cell itself says to a user's op that no master looked at.
# Made by go test ./borgmaster -run Owners -rewrite.
#
# no: not allowed. done: done. Any other word: allowed, and refused because of
# what the op says. liar is bob, with an op that says it is alice's; cell's is bob,
# with one that says it is the cell's own. At the end what comes of it when a job of
# one's own names an object of alice.
`)
	n := 0
	line := func(kind protoreflect.Name, words []string) {
		fmt.Fprintf(&got, "%-16s", kind)
		for _, w := range words {
			fmt.Fprintf(&got, " %-9s", w)
		}
		got.WriteString("\n")
	}
	eachOp(t, func(kind protoreflect.Name, make func(*owners, int) *borgpb.Op) {
		var words []string
		for _, c := range callers {
			n++
			op := o.op(make(o, n))
			op.Principal = c.says
			resp, err := borgrpc.NewMasterServiceClient(o.conn(1, c.who.Role, c.who.ID)).Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
			words = append(words, word(resp.GetResult(), err))
		}
		if n := strings.Count(strings.Join(words[1:4], " "), "no"); n != 3 {
			t.Errorf("%s by another user than its owner: %v, want that nobody lets him", kind, words[1:4])
		}
		line(kind, words)
	}, func() {
		line("op", []string{"owner", "other", "liar", "cell's", "admin", "task", "borglet", "scheduler", "master"})
	})
	got.WriteString("\n")
	eachOp(t, func(kind protoreflect.Name, make func(*owners, int) *borgpb.Op) {
		var words []string
		for _, user := range []string{"alice", "bob", "root"} {
			n++
			op := o.op(make(o, n))
			op.Principal = door.Principal(identity.Name{Role: identity.User, ID: user})
			words = append(words, word(o.group.Replica(1).Propose(t.Context(), op)))
		}
		if words[1] != "no" {
			t.Errorf("the cell does %s for another user than its owner: %s", kind, words[1])
		}
		line(kind, words)
	}, func() { line("op, in the log", []string{"owner", "other", "admin"}) })
	got.WriteString("\n")
	line("own job names", []string{"alice", "bob", "admin"})
	until(t, "the cell has its latest format", func() (is bool) {
		o.group.Replica(1).View(func(c *cell.Cell) { is = c.Format() == cell.BuildFormat })
		return is
	})
	for _, update := range []bool{false, true} {
		for _, field := range slices.Sorted(maps.Keys(links)) {
			var words []string
			for _, user := range []string{"alice", "bob", "root"} {
				n++
				op := o.op(o.linked(user, field, update, n))
				resp, err := o.client(1, user).Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
				words = append(words, word(resp.GetResult(), err))
			}
			if strings.Join(words, " ") != "done no done" {
				t.Errorf("a job that names alice's %s (update: %v), by alice, bob and an admin: %v, want done no done", field, update, words)
			}
			kind := field
			if update {
				kind += " (later)"
			}
			line(protoreflect.Name(kind), words)
		}
	}
	o.group.Replica(1).View(func(c *cell.Cell) {
		if err := c.Check(); err != nil {
			t.Error(err)
		}
	})

	const file = "testdata/owners.txt"
	var text strings.Builder
	for l := range strings.Lines(got.String()) {
		text.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text.String() != string(want) {
		t.Errorf("this differs from %s; if that is meant: go test ./borgmaster -run Owners -rewrite, and read the diff\n%s", file, text.String())
	}
}

// eachOp goes through the kinds of op that the log knows, in their order.
func eachOp(t *testing.T, do func(kind protoreflect.Name, make func(*owners, int) *borgpb.Op), head func()) {
	t.Helper()
	head()
	kinds := (&borgpb.Op{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for i := range kinds.Len() {
		kind := kinds.Get(i).Name()
		make := ops[kind]
		if make == nil {
			t.Errorf("op %s has no case in owner_test.go: say how one is made, about an object of alice or of the cell", kind)
			continue
		}
		do(kind, make)
	}
	if len(ops) != kinds.Len() {
		t.Errorf("%d kinds of op have a case, and there are %d", len(ops), kinds.Len())
	}
}
