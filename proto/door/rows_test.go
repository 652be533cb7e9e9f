package door_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// row says who makes a call rightfully, and who else may.
type row struct {
	// Where it is made.
	at string
	// At least one for each role that may make it.
	asks []ask
	// Columns in which it is done all the same, and the word for why.
	open map[string]string
}

// ask is a call as somebody makes it who may.
type ask struct {
	who identity.Name
	// A request that is good when who makes it; a new one each time.
	req func() proto.Message
	// The certificate to show; nil: one is issued.
	credential *identity.Credential
	// What who hears although he is let in; zero: it is done.
	hears codes.Code
	// What the cell refuses although he is let in; unspecified: nothing.
	refused borgpb.RefusalKind
	// The same with what who had before: see the column revoked. Nil: his own
	// request, with an earlier certificate.
	before *ask
}

// matrix is a cell with everybody in it who is tried.
type matrix struct {
	*realCell
	rows map[string]*row
	// The last moment at which a certificate of a user was issued that is revoked.
	revokedAt time.Time
	// Authorities of others: of a cell of the same name, and of another cell.
	otherCA, otherCell *identity.Authority
}

var (
	alice = name(identity.User, "alice")
	root  = name(identity.User, "root")
	task  = name(identity.Task, "alice/web/0")
)

// someone is anybody of a role. He has nothing to do with what is asked for.
func someone(role identity.Role) identity.Name {
	return name(role, map[identity.Role]string{
		identity.User: "bob", identity.Master: "2", identity.Scheduler: "1", identity.Borglet: "m1", identity.Task: "alice/web/0", identity.Join: "borglet/m1",
	}[role])
}

func newMatrix(t *testing.T) *matrix {
	m := &matrix{realCell: newRealCell(t), revokedAt: time.Now().Add(-5 * time.Minute), otherCA: newAuthority("test"), otherCell: newAuthority("prod")}
	m1 := m.addMachine("m1")
	m2 := m.addMachine("m2")
	web := m.runs("alice", "web", "m1")
	m.runs("bob", "db", "m2")
	m.must("alice", m.submit("alice", "gone", "nowhere"))
	m.must("alice", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "gone"}}})
	for _, user := range []string{"alice", "root"} {
		m.must("root", &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: user, CertificatesWallNs: m.revokedAt.UnixNano()}}})
	}
	// Machine m3 and replica 3 were of this cell. Replica 2 is, and does not run.
	m.must("root", &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: "m3", Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:1"}}}})
	m.must("root", &borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: "m3", Force: true}}})
	for id, addr := range map[uint64]string{2: "127.0.0.1:2", 3: "127.0.0.1:3"} {
		if err := m.replica.AddLearner(t.Context(), &borgpb.Member{Id: id, Addr: addr}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.replica.RemoveMember(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	m.until("the borglets have been polled since", func() bool { return m1.agent.Removed(3) && m2.agent.Removed(3) })
	m.rows = map[string]*row{}
	m.masterRows(web)
	m.memberRows()
	m.auditRows()
	m.identityRows(web)
	m.secretRows()
	m.fileRows()
	m.programRows(m1, web)
	return m
}

func (m *matrix) add(method string, r *row) {
	if r.at == "" {
		r.at = m.addr
	}
	m.rows["/borgrpc."+method] = r
}

func always(req proto.Message) func() proto.Message {
	return func() proto.Message { return proto.Clone(req) }
}

// look is the row of a call with which any user looks at something of alice.
func look(req proto.Message) *row {
	return &row{asks: []ask{{who: alice, req: always(req)}}, open: map[string]string{"otherUser": "look"}}
}

// ofTask is what the task alice/web/0 asks. What it had before is the certificate
// of a task that has died since.
func (m *matrix) ofTask(req func() proto.Message) ask {
	gone := name(identity.Task, "alice/gone/0")
	return ask{who: task, req: req, before: &ask{who: gone, req: req, credential: m.certifyAt(m.authority, gone, m.revokedAt)}}
}

// tasksToo is the row of a call with which users look at everything and tasks at
// what word says.
func (m *matrix) tasksToo(req proto.Message, word string) *row {
	r := look(req)
	r.asks = append(r.asks, m.ofTask(always(req)))
	if word != "" {
		r.open["otherTask"] = word
	}
	return r
}

// masterRows are those of MasterService.
func (m *matrix) masterRows(web *borgrpc.CopyID) {
	m.add("MasterService/GetCell", m.tasksToo(&borgrpc.GetCellRequest{}, "look"))
	m.add("MasterService/GetJob", m.tasksToo(&borgrpc.GetJobRequest{User: "alice", Name: "web"}, ""))
	m.add("MasterService/ListJobs", m.tasksToo(&borgrpc.ListJobsRequest{User: "alice"}, ""))
	m.add("MasterService/ListTasks", m.tasksToo(&borgrpc.ListTasksRequest{User: "alice", Name: "web"}, "look"))
	m.add("MasterService/ListAllocs", m.tasksToo(&borgrpc.ListAllocsRequest{User: "alice"}, ""))
	m.add("MasterService/ListMachines", look(&borgrpc.ListMachinesRequest{}))
	m.add("MasterService/ListPackageBans", look(&borgrpc.ListPackageBansRequest{}))
	m.add("MasterService/GetLabelPolicy", m.tasksToo(&borgrpc.GetLabelPolicyRequest{}, "look"))
	m.add("MasterService/ListQuotas", m.tasksToo(&borgrpc.ListQuotasRequest{User: "alice"}, ""))
	m.add("MasterService/Examine", look(&borgrpc.ExamineRequest{}))
	m.add("MasterService/ListVolumes", look(&borgrpc.ListVolumesRequest{}))
	m.add("MasterService/GetPreemptionPolicy", look(&borgrpc.GetPreemptionPolicyRequest{}))
	m.add("MasterService/GetVisibility", m.tasksToo(&borgrpc.GetVisibilityRequest{}, "look"))
	m.add("MasterService/Why", m.tasksToo(&borgrpc.WhyRequest{User: "alice", Name: "web"}, ""))
	m.add("MasterService/SafeToDrain", look(&borgrpc.SafeToDrainRequest{}))
	m.add("MasterService/Events", look(&borgrpc.EventsRequest{Job: "alice/web"}))
	m.add("MasterService/Logs", look(&borgrpc.LogsRequest{User: "alice", Name: "web"}))

	m.add("MasterService/Validate", m.tasksToo(&borgrpc.ValidateRequest{Ops: []*borgpb.Op{{RequestId: "v", RequestWallNs: 1, Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "web"}}}}}, "look"))

	// A user's mutation of what is his, and the one that a master makes in its own
	// name: it has seen a token.
	m.must("alice", m.submit("alice", "old", "nowhere"))
	token := m.invite("user/dave")
	useToken := func() proto.Message {
		return &borgrpc.MutateRequest{Op: m.op(&borgpb.Op{Op: &borgpb.Op_UseToken{UseToken: &borgpb.UseToken{Hash: token.Fingerprint(), Name: "user/dave"}}})}
	}
	m.add("MasterService/Mutate", &row{asks: []ask{
		{who: alice, req: func() proto.Message {
			return &borgrpc.MutateRequest{Op: m.op(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "old"}}})}
		}},
		{who: name(identity.Master, "2"), req: useToken, before: &ask{who: name(identity.Master, "3"), req: useToken}},
		m.ofTask(func() proto.Message {
			note := &borgpb.SetTaskNote{User: "alice", Job: "web", Attempt: web.Attempt, Text: "at work"}
			return &borgrpc.MutateRequest{Op: m.op(&borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: note}})}
		}),
	}})
	m.must("alice", m.submit("alice", "older", "nowhere"))
	m.add("MasterService/Mutations", &row{asks: []ask{
		{who: alice, req: func() proto.Message {
			return &borgrpc.MutateRequest{Op: m.op(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "older"}}})}
		}},
		m.ofTask(func() proto.Message {
			note := &borgpb.SetTaskNote{User: "alice", Job: "web", Attempt: web.Attempt, Text: "at work"}
			return &borgrpc.MutateRequest{Op: m.op(&borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: note}})}
		}),
	}})
	m4 := m.startMachine("m4")
	m.add("MasterService/AddMachine", &row{asks: []ask{{who: root, req: func() proto.Message { return m.addMachineRequest(m4.addr) }}}})
}

// memberRows are those of MemberService, CheckpointService and RestoreService: for
// admins, but for looks.
func (m *matrix) memberRows() {
	m.add("MemberService/ListMembers", look(&borgrpc.ListMembersRequest{}))
	m.add("MemberService/AddMember", &row{asks: []ask{{who: root, req: always(&borgrpc.AddMemberRequest{Member: &borgpb.Member{Id: 5, Addr: "127.0.0.1:5"}})}}})
	// It does not run, so it has not caught up.
	m.add("MemberService/PromoteMember", &row{asks: []ask{{who: root, req: always(&borgrpc.PromoteMemberRequest{Id: 5}), hears: codes.FailedPrecondition}}})
	m.add("MemberService/RemoveMember", &row{asks: []ask{{who: root, req: always(&borgrpc.RemoveMemberRequest{Id: 5})}}})
	m.add("MemberService/TransferElection", &row{asks: []ask{{who: root, req: always(&borgrpc.TransferElectionRequest{To: 1})}}})
	m.add("CheckpointService/SaveCheckpoint", &row{asks: []ask{{who: root, req: always(&borgrpc.SaveCheckpointRequest{})}}})
	m.add("CheckpointService/ListCheckpoints", &row{asks: []ask{{who: root, req: always(&borgrpc.ListCheckpointsRequest{})}}})
	m.add("RestoreService/GetRestore", look(&borgrpc.GetRestoreRequest{}))
	m.add("RestoreService/ListUnknown", look(&borgrpc.ListUnknownRequest{}))
	m.add("RestoreService/AdoptUnknown", &row{asks: []ask{{who: root, req: always(&borgrpc.AdoptUnknownRequest{RequestId: "adopt"})}}})
	m.add("RestoreService/StopUnknown", &row{asks: []ask{{who: root, req: always(&borgrpc.StopUnknownRequest{RequestId: "stop", All: true})}}})
}

// auditRows are those of AuditService and AuthorityService. A user is shown what is
// his own.
func (m *matrix) auditRows() {
	m.add("AuditService/Audit", &row{asks: []ask{{who: alice, req: always(&borgrpc.AuditRequest{})}}, open: map[string]string{"otherUser": "own"}})
	m.add("HistoryService/History", look(&borgrpc.HistoryRequest{}))
	rows := &borgrpc.KeepUsageRequest{CellId: testCellID}
	m.add("HistoryService/KeepUsage", &row{asks: []ask{{who: name(identity.Master, "2"), req: always(rows), before: &ask{who: name(identity.Master, "3"), req: always(rows)}}}})
	ofReplica := func(req proto.Message) ask {
		return ask{who: name(identity.Master, "2"), req: always(req), before: &ask{who: name(identity.Master, "3"), req: always(req)}}
	}
	list := look(&borgrpc.ListAuthoritiesRequest{})
	list.asks = append(list.asks, ofReplica(&borgrpc.ListAuthoritiesRequest{}))
	m.add("AuthorityService/ListAuthorities", list)
	m.add("AuthorityService/LookAtAuthorities", &row{asks: []ask{ofReplica(&borgrpc.LookAtAuthoritiesRequest{})}})
	// What is issued meanwhile is still of the present key.
	m.add("AuthorityService/ReplaceAuthority", &row{asks: []ask{{who: root, req: always(&borgrpc.ReplaceAuthorityRequest{WaitNs: int64(time.Hour), OverlapNs: int64(time.Hour)})}}})
	m.add("AuthorityService/DropAuthorities", &row{asks: []ask{{who: root, req: always(&borgrpc.DropAuthoritiesRequest{})}}})
}

// secretRows are those of SecretService.
func (m *matrix) secretRows() {
	set := func() proto.Message {
		return &borgrpc.SetSecretRequest{RequestId: fmt.Sprint("secret-", time.Now().UnixNano()), RequestWallNs: time.Now().UnixNano(), User: "alice", Name: "db", Value: []byte("x")}
	}
	m.add("SecretService/SetSecret", &row{asks: []ask{{who: alice, req: set}}})
	m.add("SecretService/ListSecrets", &row{asks: []ask{{who: alice, req: always(&borgrpc.ListSecretsRequest{User: "alice"})}}})
	// Replica 2 does not run, so it cannot take the new key.
	m.add("SecretService/RotateCellKey", &row{asks: []ask{{who: root, req: always(&borgrpc.RotateCellKeyRequest{RequestId: "rotate"}), hears: codes.FailedPrecondition}}})
	m.add("SecretService/ChangeCellKeys", &row{asks: []ask{{
		who: name(identity.Master, "2"), req: always(&borgrpc.ChangeCellKeysRequest{}),
		before: &ask{who: name(identity.Master, "3"), req: always(&borgrpc.ChangeCellKeysRequest{})},
	}}})
}

// fileRows are those of FileService, NameService and WatchService. Files are for their user and
// his tasks; who is where, for everybody; watches for users, and for tasks of their own.
func (m *matrix) fileRows() {
	m.must("alice", &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "alice", Name: "conf/leader", Content: []byte("x")}}})
	for method, req := range map[string]proto.Message{
		"ReadFile":   &borgrpc.ReadFileRequest{User: "alice", Name: "conf/leader"},
		"ListFiles":  &borgrpc.ListFilesRequest{User: "alice"},
		"WatchFiles": &borgrpc.WatchFilesRequest{User: "alice"},
	} {
		m.add("FileService/"+method, &row{asks: []ask{{who: alice, req: always(req)}, m.ofTask(always(req))}})
	}
	m.add("NameService/Resolve", m.tasksToo(&borgrpc.ResolveRequest{User: "alice", Job: "web"}, "look"))
	// What the tasks run here is pretended, and so no program runs beside them.
	m.add("ExecService/Exec", &row{asks: []ask{{who: alice, req: always(&borgrpc.ExecRequest{User: "alice", Name: "web", Program: &borgrpc.ExecProgram{Args: []string{"true"}}})}}})
	m.add("WatchService/Watch", m.tasksToo(&borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_TASK, User: "alice"}, ""))
}

// identityRows are those of IdentityService.
func (m *matrix) identityRows(web *borgrpc.CopyID) {
	m.add("IdentityService/CanI", &row{asks: []ask{{who: alice, req: always(&borgrpc.CanIRequest{Verb: "up"})}}, open: map[string]string{"otherUser": "own"}})
	own := map[string]string{"otherUser": "own", "otherMachine": "own"}
	renew := func() proto.Message {
		public, _ := newKey(m.t)
		return &borgrpc.RenewRequest{PublicKey: public}
	}
	m.add("IdentityService/Renew", &row{asks: []ask{
		{who: alice, req: renew},
		{who: name(identity.Borglet, "m1"), req: renew, before: &ask{who: name(identity.Borglet, "m3"), req: renew}},
		{who: name(identity.Scheduler, "1"), req: renew, before: &ask{who: name(identity.Scheduler, "3"), req: renew}},
	}, open: own})
	whoAmI := m.tasksToo(&borgrpc.WhoAmIRequest{}, "own")
	whoAmI.open["otherUser"] = "own"
	m.add("IdentityService/WhoAmI", whoAmI)
	certify := func() proto.Message {
		public, _ := newKey(m.t)
		return &borgrpc.CertifyTaskRequest{Copy: web, PublicKey: public}
	}
	m.add("IdentityService/CertifyTask", &row{asks: []ask{{who: name(identity.Borglet, "m1"), req: certify, before: &ask{who: name(identity.Borglet, "m3"), req: certify}}}})
	m.add("IdentityService/ListUsers", look(&borgrpc.ListUsersRequest{}))
	m.add("IdentityService/Invite", &row{asks: []ask{{who: root, req: func() proto.Message {
		public, _ := newKey(m.t)
		return &borgrpc.InviteRequest{Name: "user/erin", PublicKey: public}
	}}}})
	public, _ := newKey(m.t)
	m.add("IdentityService/CertifyMaster", &row{asks: []ask{{who: root, req: always(&borgrpc.CertifyMasterRequest{Replica: 2, PublicKey: public})}}})
	m.add("IdentityService/GetAuthority", &row{asks: []ask{{
		who: name(identity.Master, "2"), req: always(&borgrpc.GetAuthorityRequest{}),
		before: &ask{who: name(identity.Master, "3"), req: always(&borgrpc.GetAuthorityRequest{})},
	}}})
	join := func() proto.Message {
		public, _ := newKey(m.t)
		return &borgrpc.JoinRequest{PublicKey: public}
	}
	used, fresh := m.invite("user/frank"), m.invite("user/grace")
	if _, err := borgrpc.NewIdentityServiceClient(dial(m.t, m.addr, identity.NewSource(used, nil, nil), name(identity.Master, ""))).Join(context.Background(), join().(*borgrpc.JoinRequest)); err != nil {
		m.t.Fatal(err)
	}
	m.add("IdentityService/Join", &row{asks: []ask{{who: fresh.Name, credential: fresh, req: join, before: &ask{who: used.Name, credential: used, req: join}}}})
}

// programRows are those that programs of the cell call.
func (m *matrix) programRows(m1 *realMachine, web *borgrpc.CopyID) {
	// ofReplica is a row of a call that replica 2 makes, and replica 3 made.
	ofReplica := func(req func(replica uint64) proto.Message, hears codes.Code) *row {
		as := func(id uint64, who string) ask {
			return ask{who: name(identity.Master, who), req: func() proto.Message { return req(id) }, hears: hears}
		}
		a, b := as(2, "2"), as(3, "3")
		a.before = &b
		return &row{asks: []ask{a}}
	}
	m.add("RaftService/Send", ofReplica(func(id uint64) proto.Message {
		return &borgrpc.SendRequest{CellId: testCellID, Epoch: 1, From: id, To: 1, Incarnation: id}
	}, codes.OK))
	// What it sends is no checkpoint.
	m.add("RaftService/SendSnapshot", ofReplica(func(id uint64) proto.Message {
		return &borgrpc.SendSnapshotRequest{CellId: testCellID, Epoch: 1, From: id, To: 1, Incarnation: id, Message: []byte("x")}
	}, codes.InvalidArgument))
	m.add("ReplicaService/Report", ofReplica(func(id uint64) proto.Message {
		return &borgrpc.ReportRequest{Replica: id, CellId: testCellID, Term: 1}
	}, codes.OK))
	m.add("ReplicaService/Probe", ofReplica(func(uint64) proto.Message {
		return &borgrpc.ProbeRequest{Machine: "m1", Addr: m1.addr}
	}, codes.OK))

	ofScheduler := func(req proto.Message) *row {
		return &row{asks: []ask{{who: name(identity.Scheduler, "1"), req: always(req), before: &ask{who: name(identity.Scheduler, "3"), req: always(req)}}}}
	}
	m.add("SchedulingService/Follow", ofScheduler(&borgrpc.FollowRequest{}))
	m.add("SchedulingService/Assign", ofScheduler(&borgrpc.AssignRequest{Assign: &borgpb.Assign{}}))
	move := ofScheduler(&borgrpc.MoveTasksRequest{Move: &borgpb.MoveTasks{}})
	move.asks[0].refused = borgpb.RefusalKind_REFUSAL_KIND_INVALID
	m.add("SchedulingService/MoveTasks", move)

	// A scheduler process listens on a socket alone, for its own user. Behind a
	// port there is none, and the table holds all the same.
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	s := door.NewServer(door.Config{Identity: m.source(identity.Master, "1")})
	borgrpc.RegisterSchedulerServiceServer(s, borgrpc.UnimplementedSchedulerServiceServer{})
	m.run(func(context.Context) error { return s.Serve(l) }, s.Stop)
	anyMaster := map[string]string{"removed": "any", "revoked": "any"}
	m.add("SchedulerService/Explain", &row{at: l.Addr().String(), open: anyMaster, asks: []ask{{
		who: name(identity.Master, "1"), req: always(&borgrpc.ExplainRequest{}), hears: codes.Unimplemented,
	}}})
	m.add("SchedulerService/CheckDrain", &row{at: l.Addr().String(), open: anyMaster, asks: []ask{{
		who: name(identity.Master, "1"), req: always(&borgrpc.CheckDrainRequest{}), hears: codes.Unimplemented,
	}}})

	// A borglet believes whoever is a master, and has heard from the others who is one
	// no more.
	ofBorglet := func(req proto.Message) *row {
		return &row{at: m1.addr, asks: []ask{{who: name(identity.Master, "1"), req: always(req), before: &ask{who: name(identity.Master, "3"), req: always(req)}}}}
	}
	m.add("BorgletService/Describe", ofBorglet(&borgrpc.DescribeRequest{}))
	m.add("BorgletService/Poll", ofBorglet(&borgrpc.PollRequest{Machine: "m1", Fence: &borgrpc.Fence{CellId: testCellID, Epoch: 1}}))
	m.add("BorgletService/Polls", ofBorglet(&borgrpc.PollRequest{Machine: "m1", Fence: &borgrpc.Fence{CellId: testCellID, Epoch: 1}}))
	m.add("BorgletService/ReadLog", ofBorglet(&borgrpc.ReadLogRequest{Copy: web}))
	m.add("BorgletService/ExecCopy", ofBorglet(&borgrpc.ExecCopyRequest{Copy: web, Program: &borgrpc.ExecProgram{Args: []string{"true"}}}))
}

func (m *matrix) certify(n identity.Name) *identity.Credential {
	return m.certifyAt(m.authority, n, time.Now())
}

func (m *matrix) certifyAt(a *identity.Authority, n identity.Name, at time.Time) *identity.Credential {
	m.t.Helper()
	n.Cell = a.Cell()
	c, err := a.Certify(n, at, identity.LifeOf(n.Role))
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// bad is a certificate of who, save that nobody may believe it; nil: none at all.
func (m *matrix) bad(what string, who identity.Name) *identity.Credential {
	now := time.Now()
	switch what {
	case "expired":
		return m.certifyAt(m.authority, who, now.Add(-identity.LifeOf(who.Role)-identity.Tolerance-time.Minute))
	case "early":
		return m.certifyAt(m.authority, who, now.Add(identity.Tolerance+time.Minute))
	case "otherCA":
		return m.certifyAt(m.otherCA, who, now)
	case "otherCell":
		return m.certifyAt(m.otherCell, who, now)
	}
	return nil
}

// revoked is what the right caller of a call had before.
func (m *matrix) revoked(a ask) (ask, *identity.Credential) {
	if a.before == nil {
		return a, m.certifyAt(m.authority, a.who, m.revokedAt.Add(-time.Minute))
	}
	if a.before.credential != nil {
		return *a.before, a.before.credential
	}
	return *a.before, m.certify(a.before.who)
}
