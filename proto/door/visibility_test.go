package door_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// Everything of the user quinn has "hush" in its name or value, but for a job with the
// name openly, which is shared with the group team.
const (
	secretMark = "hush"
	quietUser  = "quinn"
	sharedMark = "openly"
	sharedArg  = "teamarg"
)

// quietCell is a cell with the work of quinn, which has taken the place of bob's.
type quietCell struct{ *realCell }

func newQuietCell(t *testing.T) *quietCell {
	q := &quietCell{newRealCell(t)}
	for _, name := range []string{"m1", "m2"} {
		q.addMachine(name)
	}
	q.must("root", &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: quietUser, Capability: string(cell.NoEstimation)}}})
	q.must("root", &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{User: quietUser, Band: borgpb.Band_BAND_BATCH, Limit: &borgpb.Resources{CpuMilli: 777}}}})
	q.must("root", &borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: &borgpb.SetTaskLimits{User: quietUser, Max: &borgpb.Resources{CpuMilli: 3999}}}})
	q.quiet("hushjob", 200, 10, nil)
	q.quiet(sharedMark, 200, 10, map[string]string{cell.ShareLabel: "team"})
	set, err := proto.Marshal(&borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	q.must(quietUser, &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: quietUser, Name: "hushset", Spec: set, Labels: map[string]string{"tier": "hushtier"}}}})
	q.must(quietUser, &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: quietUser, Name: "hushfile", Content: []byte("hushcontent")}}})
	q.runs("bob", "db", "m2")
	// It leaves no room on m1 beside what quiet has there.
	q.must("bob", q.sized("bob", "loser", "m1", 100, 3900, nil))
	q.untilRuns("bob", "loser")
	q.quiet("hushtaker", 300, 3900, nil)
	q.must(quietUser, q.sized(quietUser, "hushdead", "nowhere", 200, 10, nil))
	q.must(quietUser, &borgpb.Op{Reason: "hushreason", Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: quietUser, Name: "hushdead"}}})
	q.must(quietUser, q.sized(quietUser, "hushwaits", "nowhere", 200, 10, nil))
	return q
}

// quiet has a job of quinn's run on m1, and write something.
func (q *quietCell) quiet(job string, priority int32, cpu int64, labels map[string]string) {
	q.t.Helper()
	uid := q.must(quietUser, q.sized(quietUser, job, "m1", priority, cpu, labels)).Uid
	q.untilRuns(quietUser, job)
	q.wrote(&borgrpc.CopyID{JobUid: uid, Attempt: 1}, "m1", "hushlog")
}

func (q *quietCell) untilRuns(user, job string) {
	q.t.Helper()
	q.until(user+"/"+job+" runs", func() bool {
		return q.view(func(c *cell.Cell) bool {
			p := c.Job(cell.JobKey{User: user, Name: job}).Task(0).Current()
			return p != nil && p.PID() != 0
		})
	})
}

// sized is submit with a priority, processor, labels, and an environment that says whose
// it is.
func (q *quietCell) sized(user, job, machine string, priority int32, cpu int64, labels map[string]string) *borgpb.Op {
	q.t.Helper()
	op := q.submit(user, job, machine)
	o := op.GetSubmitJob()
	spec := &borgpb.JobSpec{}
	if err := proto.Unmarshal(o.Spec, spec); err != nil {
		q.t.Fatal(err)
	}
	spec.Priority, spec.Task.Resources.CpuMilli, o.Labels = priority, cpu, labels
	if user == quietUser && labels != nil {
		spec.Task.Args = append(spec.Task.Args, sharedArg)
	}
	if user == quietUser && labels == nil {
		spec.Task.Volumes = []*borgpb.Volume{{Name: "hushvolume", Path: "/data", DiskBytes: 1 << 20}}
		spec.Task.Args, spec.Task.Env = append(spec.Task.Args, "husharg"), map[string]string{"KEY": "hushenv"}
		o.Labels, o.Annotations = map[string]string{"tier": "hushtier"}, map[string]string{"note": "hushnote"}
	}
	var err error
	if o.Spec, err = proto.Marshal(spec); err != nil {
		q.t.Fatal(err)
	}
	return op
}

func (q *quietCell) rule(private bool) {
	q.t.Helper()
	q.must("root", &borgpb.Op{Op: &borgpb.Op_SetVisibility{SetVisibility: &borgpb.SetVisibility{Policy: &borgpb.Visibility{
		Private: private, Groups: []*borgpb.ShareGroup{{Name: "team", Users: []string{"carl"}}},
	}}}})
}

// reading is a call that reads.
type reading struct {
	req proto.Message
	// Names that it asks for, which the answer may repeat.
	asks []string
}

func reads(reqs ...proto.Message) (all []reading) {
	for _, r := range reqs {
		all = append(all, reading{req: r})
	}
	return all
}

// of is a call that names an object of quinn.
func of(name string, req proto.Message) reading {
	return reading{req, []string{quietUser + "/" + name, name, quietUser}}
}

// ofQuiet is a call that names the user alone.
func ofQuiet(req proto.Message) reading { return reading{req, []string{quietUser}} }

// readings are all calls that users or tasks may make and that tell something.
func readings() map[string][]reading {
	const user, job = quietUser, "hushjob"
	m := map[string][]reading{
		"MasterService/GetCell": reads(&borgrpc.GetCellRequest{}),
		"MasterService/GetJob":  {of(job, &borgrpc.GetJobRequest{User: user, Name: job}), of("openly", &borgrpc.GetJobRequest{User: user, Name: "openly"}), {req: &borgrpc.GetJobRequest{User: "bob", Name: "loser"}}},
		"MasterService/ListJobs": append(reads(&borgrpc.ListJobsRequest{}, &borgrpc.ListJobsRequest{Dead: true}, &borgrpc.ListJobsRequest{Selector: "tier"}, &borgrpc.ListJobsRequest{Limit: 1}, &borgrpc.ListJobsRequest{Mode: borgrpc.ReadMode_READ_MODE_STALE}),
			ofQuiet(&borgrpc.ListJobsRequest{User: user})),
		"MasterService/ListTasks": append(reads(&borgrpc.ListTasksRequest{}, &borgrpc.ListTasksRequest{Machine: "m1"}, &borgrpc.ListTasksRequest{Used: true, Attempts: true}, &borgrpc.ListTasksRequest{Limit: 1}, &borgrpc.ListTasksRequest{User: "bob", Attempts: true}),
			ofQuiet(&borgrpc.ListTasksRequest{User: user}), of(job, &borgrpc.ListTasksRequest{User: user, Name: job}), of("openly", &borgrpc.ListTasksRequest{User: user, Name: "openly"})),
		"MasterService/ListAllocs":          append(reads(&borgrpc.ListAllocsRequest{}), ofQuiet(&borgrpc.ListAllocsRequest{User: user}), of("hushset", &borgrpc.ListAllocsRequest{User: user, Name: "hushset", Used: true})),
		"MasterService/ListMachines":        reads(&borgrpc.ListMachinesRequest{}, &borgrpc.ListMachinesRequest{Name: "m1"}),
		"MasterService/ListPackageBans":     reads(&borgrpc.ListPackageBansRequest{}),
		"MasterService/GetLabelPolicy":      reads(&borgrpc.GetLabelPolicyRequest{}, &borgrpc.GetLabelPolicyRequest{Check: true, Policy: &borgpb.LabelPolicy{Rules: []*borgpb.LabelRule{{Kinds: []borgpb.Labelled{borgpb.Labelled_LABELLED_JOB, borgpb.Labelled_LABELLED_ALLOC_SET}, Key: "none", Required: true}}}}),
		"MasterService/GetPreemptionPolicy": reads(&borgrpc.GetPreemptionPolicyRequest{}),
		"MasterService/GetVisibility":       reads(&borgrpc.GetVisibilityRequest{}),
		"MasterService/ListQuotas":          append(reads(&borgrpc.ListQuotasRequest{}), ofQuiet(&borgrpc.ListQuotasRequest{User: user})),
		"MasterService/ListVolumes":         append(reads(&borgrpc.ListVolumesRequest{}), ofQuiet(&borgrpc.ListVolumesRequest{User: user})),
		"MasterService/Examine":             reads(&borgrpc.ExamineRequest{}),
		"MasterService/Why":                 {of(job, &borgrpc.WhyRequest{User: user, Name: job}), of("hushset", &borgrpc.WhyRequest{User: user, Name: "hushset"}), {req: &borgrpc.WhyRequest{User: "bob", Name: "loser"}}},
		"MasterService/SafeToDrain":         reads(&borgrpc.SafeToDrainRequest{Machines: []string{"m1", "m2"}}, &borgrpc.SafeToDrainRequest{}),
		"MasterService/Events":              append(reads(&borgrpc.EventsRequest{}, &borgrpc.EventsRequest{Machine: "m1"}, &borgrpc.EventsRequest{Job: "bob/loser"}), of(job, &borgrpc.EventsRequest{Job: user + "/" + job})),
		"MasterService/Logs":                {of(job, &borgrpc.LogsRequest{User: user, Name: job}), of(job, &borgrpc.LogsRequest{User: user, Name: job, Previous: true})},
		"MasterService/Mutate": {
			of(job, mutation(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: job}}})),
			of("hushset", mutation(submitting(&borgpb.JobSpec{AllocSet: user + "/hushset"}))),
			of(job, mutation(submitting(&borgpb.JobSpec{StartAfter: []string{user + "/" + job}}))),
		},
		"MasterService/Validate": {
			of(job, validation(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: job}}})),
			of(job, validation(submitting(&borgpb.JobSpec{StartAfter: []string{user + "/" + job}}))),
		},
		"MemberService/ListMembers":         reads(&borgrpc.ListMembersRequest{}),
		"CheckpointService/SaveCheckpoint":  reads(&borgrpc.SaveCheckpointRequest{}),
		"CheckpointService/ListCheckpoints": reads(&borgrpc.ListCheckpointsRequest{}),
		"RestoreService/GetRestore":         reads(&borgrpc.GetRestoreRequest{}),
		"RestoreService/ListUnknown":        reads(&borgrpc.ListUnknownRequest{}),
		"AuditService/Audit":                append(reads(&borgrpc.AuditRequest{Ops: true}, &borgrpc.AuditRequest{Local: true}), ofQuiet(&borgrpc.AuditRequest{Object: user, Ops: true}), ofQuiet(&borgrpc.AuditRequest{User: user})),
		"HistoryService/History": append(reads(&borgrpc.HistoryRequest{Usage: true, Facts: true}, &borgrpc.HistoryRequest{UsageOnly: true}, &borgrpc.HistoryRequest{Last: 50}, &borgrpc.HistoryRequest{Machine: "m1"},
			&borgrpc.HistoryRequest{Local: true, Facts: true, Parts: []*borgpb.AuditHole{{From: 1, To: 1 << 40}}}),
			ofQuiet(&borgrpc.HistoryRequest{User: user}), of(job, &borgrpc.HistoryRequest{Job: user + "/" + job})),
		"AuthorityService/ListAuthorities": reads(&borgrpc.ListAuthoritiesRequest{}),
		"IdentityService/WhoAmI":           reads(&borgrpc.WhoAmIRequest{}),
		"IdentityService/ListUsers":        reads(&borgrpc.ListUsersRequest{}),
		"IdentityService/CanI":             {of(job, &borgrpc.CanIRequest{Verb: "down", Object: user + "/" + job}), of(job, &borgrpc.CanIRequest{Verb: "logs", Object: user + "/" + job})},
		"SecretService/ListSecrets":        {ofQuiet(&borgrpc.ListSecretsRequest{User: user})},
		"FileService/ReadFile":             {of("hushfile", &borgrpc.ReadFileRequest{User: user, Name: "hushfile"})},
		"FileService/ListFiles":            {ofQuiet(&borgrpc.ListFilesRequest{User: user})},
		"FileService/WatchFiles":           {ofQuiet(&borgrpc.WatchFilesRequest{User: user, Content: true})},
		"NameService/Resolve":              {of(job, &borgrpc.ResolveRequest{User: user, Job: job}), of("openly", &borgrpc.ResolveRequest{User: user, Job: "openly"})},
		"ExecService/Exec":                 {of(job, &borgrpc.ExecRequest{User: user, Name: job, Program: &borgrpc.ExecProgram{Args: []string{"true"}}})},
	}
	for _, kind := range []borgpb.ObjectKind{borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC, borgpb.ObjectKind_OBJECT_KIND_MACHINE} {
		m["WatchService/Watch"] = append(m["WatchService/Watch"], reading{req: &borgrpc.WatchRequest{Kind: kind}}, reading{req: &borgrpc.WatchRequest{Kind: kind, FromIndex: 1}})
		if kind != borgpb.ObjectKind_OBJECT_KIND_MACHINE {
			m["WatchService/Watch"] = append(m["WatchService/Watch"], ofQuiet(&borgrpc.WatchRequest{Kind: kind, User: user}))
		}
	}
	return m
}

// tellNothing are calls of users that are no reads, and why their answers need no look:
// the same messages as those of Mutate, or for admins alone.
var tellNothing = []string{
	"MasterService/Mutations", "MasterService/AddMachine", "MemberService/AddMember", "MemberService/PromoteMember", "MemberService/RemoveMember", "MemberService/TransferElection",
	"RestoreService/AdoptUnknown", "RestoreService/StopUnknown", "AuthorityService/ReplaceAuthority", "AuthorityService/DropAuthorities",
	"IdentityService/Renew", "IdentityService/Invite", "IdentityService/CertifyMaster", "SecretService/SetSecret", "SecretService/RotateCellKey",
}

func mutation(op *borgpb.Op) proto.Message { return &borgrpc.MutateRequest{Op: op} }

// validation asks whether an op would be done.
func validation(op *borgpb.Op) proto.Message {
	op.RequestId, op.RequestWallNs = "asked", time.Now().UnixNano()
	return &borgrpc.ValidateRequest{Ops: []*borgpb.Op{op}}
}

// submitting is the op for a job of bob that names something.
func submitting(spec *borgpb.JobSpec) *borgpb.Op {
	spec.Kind, spec.Tasks, spec.Priority = borgpb.JobKind_JOB_KIND_BATCH, 1, 0
	spec.Task = &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 1 << 20}, Args: []string{"true"}}
	data, err := proto.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "bob", Name: "links", Spec: data}}}
}

// answer makes a call and returns all that it says, as text and as bytes, without the
// names that were asked for.
func (q *quietCell) answer(who identity.Name, method string, r reading) (said string, code codes.Code) {
	q.t.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("borgrpc." + strings.ReplaceAll(method, "/", ".")))
	if err != nil {
		q.t.Fatal(err)
	}
	call := d.(protoreflect.MethodDescriptor)
	kind, err := protoregistry.GlobalTypes.FindMessageByName(call.Output().FullName())
	if err != nil {
		q.t.Fatal(err)
	}
	req := proto.Clone(r.req)
	if m, ok := req.(*borgrpc.MutateRequest); ok {
		q.op(m.Op)
	}
	ctx, cancel := context.WithTimeout(q.t.Context(), 10*time.Minute)
	defer cancel()
	conn := dial(q.t, q.addr, source(q.t, who.Role, who.ID), name(identity.Master, "1"))
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: string(call.Name()), ServerStreams: call.IsStreamingServer(), ClientStreams: call.IsStreamingClient()}, path(call))
	if err == nil {
		_ = stream.SendMsg(req)
		_ = stream.CloseSend()
	}
	var text strings.Builder
	for err == nil {
		resp := kind.New().Interface()
		if err = stream.RecvMsg(resp); err != nil {
			break
		}
		data, merr := proto.Marshal(resp)
		if merr != nil {
			q.t.Fatal(merr)
		}
		text.WriteString(prototext.Format(resp))
		text.Write(data)
		// Of what goes on for ever the state is read, or what has been caught up with.
		if w, ok := resp.(*borgrpc.WatchResponse); ok && !w.More && (w.State || len(w.Changes) == 0) {
			break
		}
		if w, ok := resp.(*borgrpc.WatchFilesResponse); ok && w.State && !w.More {
			break
		}
		if !call.IsStreamingServer() {
			break
		}
	}
	if err != nil && err != io.EOF {
		code = status.Code(err)
		text.WriteString(status.Convert(err).Message())
	}
	said = text.String()
	for _, asked := range r.asks {
		said = strings.ReplaceAll(said, asked, "")
	}
	return said, code
}

// TestVisibility makes every call that tells something, as everybody, first while the
// policy is private and then while it is open, and looks in the bytes of each answer for
// what is quinn's. testdata/visibility.txt says what was told.
func TestVisibility(t *testing.T) {
	t.Parallel()
	q := newQuietCell(t)
	table := readings()
	for method, roles := range door.Access() {
		method = strings.TrimPrefix(method, "/borgrpc.")
		if forUsers := slices.Contains(roles, identity.User) || slices.Contains(roles, identity.Task); forUsers && table[method] == nil && !slices.Contains(tellNothing, method) {
			t.Errorf("users may call %s: say in readings what it tells, or in tellNothing why it tells nothing", method)
		}
	}
	who := []identity.Name{name(identity.User, "bob"), name(identity.User, "mallory"), name(identity.Task, "bob/db/0"), name(identity.User, "carl"), name(identity.User, "root")}
	told := map[string]string{}
	var methods []string
	for method := range table {
		methods = append(methods, method)
	}
	slices.Sort(methods)
	// What somebody asked for in vain is his to read, so the calls that change something
	// come after most that read, and the policy is private first.
	for _, private := range []bool{true, false} {
		q.rule(private)
		for _, method := range methods {
			for _, one := range who {
				// Root may do what bob asks for.
				asRoot := method == "MasterService/Mutate" && one.ID == "root"
				if asRoot || !slices.Contains(door.Access()["/borgrpc."+method], one.Role) {
					told[method] += fmt.Sprintf(" %-9s", "-")
					continue
				}
				told[method] += fmt.Sprintf(" %-9s", q.tells(one, method, table[method], private))
			}
		}
	}
	var got strings.Builder
	got.WriteString(`# What each call tells of the work of the user quinn. Made by go test ./proto/door -run Visibility -rewrite.
#
# all     of work that is his alone
# shared  of a job that he shares with the group team, and of nothing else
# nothing
# -       the role may not make the call, or it is not made
#
# bob's work was preempted by quinn's, mallory has none, carl is in the group team, root is
# an admin.
`)
	fmt.Fprintf(&got, "%-34s %-49s %s\n%-34s", "", "private", "open", "call")
	for range 2 {
		for _, one := range []string{"bob", "mallory", "bob's task", "carl", "root"} {
			fmt.Fprintf(&got, " %-9s", one)
		}
	}
	got.WriteString("\n")
	for _, method := range methods {
		fmt.Fprintf(&got, "%-34s%s\n", method, told[method])
	}
	golden(t, "testdata/visibility.txt", got.String())
}

// tells is what the answers to somebody tell of quinn.
func (q *quietCell) tells(who identity.Name, method string, all []reading, private bool) string {
	q.t.Helper()
	word := "nothing"
	for _, r := range all {
		said, code := q.answer(who, method, r)
		if code == codes.Internal || code == codes.Aborted {
			q.t.Errorf("%s by %s of %v: %v %s", method, who.Words(), r.req, code, said)
		}
		sees := who.ID == "root" || !private
		marks := []string{secretMark}
		if who.ID != "carl" {
			marks = append(marks, quietUser)
		}
		for _, mark := range marks {
			if at := strings.Index(said, mark); at >= 0 {
				word = "all"
				if !sees {
					q.t.Errorf("%s by %s, asked for %v, tells %q", method, who.Words(), r.req, said[max(0, at-200):min(len(said), at+80)])
				}
			}
		}
		if word == "nothing" && (strings.Contains(said, sharedMark) || strings.Contains(said, sharedArg)) {
			word = "shared"
		}
		if private && !sees && len(r.asks) == 3 && r.asks[1] != sharedMark {
			q.sameAsNothing(who, method, r, said, code)
		}
	}
	return word
}

// sameAsNothing wants of what may not be seen the answer that comes of what is not there.
func (q *quietCell) sameAsNothing(who identity.Name, method string, r reading, said string, code codes.Code) {
	q.t.Helper()
	data, err := proto.Marshal(r.req)
	if err != nil {
		q.t.Fatal(err)
	}
	// A name as long as the one that is there.
	hidden, absent := r.asks[1], strings.Repeat("z", len(r.asks[1]))
	other := r.req.ProtoReflect().New().Interface()
	if err := proto.Unmarshal([]byte(strings.ReplaceAll(string(data), hidden, absent)), other); err != nil {
		q.t.Fatal(err)
	}
	then, otherCode := q.answer(who, method, reading{other, []string{quietUser + "/" + absent, absent, quietUser}})
	if code != otherCode || plainText(said) != plainText(then) {
		q.t.Errorf("%s by %s tells what is hidden (%v: %q) from what is not there (%v: %q)", method, who.Words(), code, plainText(said), otherCode, plainText(then))
	}
}

// TestVisibilityOfVictims: who takes the place of another is not told whose it was.
func TestVisibilityOfVictims(t *testing.T) {
	t.Parallel()
	q := newQuietCell(t)
	table := readings()
	table["MasterService/Why"] = append(table["MasterService/Why"], reading{req: &borgrpc.WhyRequest{User: quietUser, Name: "hushtaker"}}, reading{req: &borgrpc.WhyRequest{User: quietUser, Name: "hushwaits"}})
	// What bob asks for of quinn's is quinn's to read.
	delete(table, "MasterService/Mutate")
	delete(table, "MasterService/Validate")
	for _, private := range []bool{false, true} {
		q.rule(private)
		told := 0
		for method, all := range table {
			for _, r := range all {
				said, code := q.answer(name(identity.User, quietUser), method, reading{r.req, []string{"bob/loser"}[:min(1, strings.Count(prototext.Format(r.req), "loser"))]})
				for _, mark := range []string{"loser", "bob/"} {
					at := strings.Index(said, mark)
					if at < 0 {
						continue
					}
					if told++; private {
						t.Errorf("%s by quinn, asked for %v, tells %q (%v)", method, r.req, said[max(0, at-200):min(len(said), at+80)], code)
					}
				}
			}
		}
		if !private && told == 0 {
			t.Error("nothing is told of bob's work while the cell is open")
		}
	}
}

// plainText leaves log indices and what prototext varies out of a text.
func plainText(said string) string {
	var out []string
	for word := range strings.FieldsSeq(said) {
		if !strings.ContainsAny(word, "0123456789") && strings.IndexFunc(word, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
			out = append(out, word)
		}
	}
	return strings.Join(out, " ")
}
