package door_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/audit"
	"borg/borgmaster/cell"
	"borg/borgmaster/cellkey"
	"borg/borgmaster/journal"
	"borg/borgmaster/replica"
	"borg/checkpoint"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/scheduler/process"
)

const testCellID = "test-0001"

// realCell is what a cell is made of, behind the doors that its programs have: a
// replica over raft and its disk, a scheduler process, the borglets of machines
// with a pretended kernel, and the jobs of two users.
type realCell struct {
	t *testing.T
	// A copy of ca, which calls can replace.
	authority *identity.Authority
	replica   *replica.Replica
	addr      string
	m         *borgmaster.Master
	machines  map[string]*realMachine
	made      int
	// What the machines' pretended kernels do not start, and why; nil: they start all.
	refuse func(*borglet.Launch) error
	// Of the machines; newRealCell sets one that starts again at once.
	backoff borglet.Backoff
}

// realMachine is a borglet at its address.
type realMachine struct {
	name, dir, addr string
	agent           *borglet.Agent
	stop            func()
}

func newRealCell(t *testing.T) *realCell {
	t.Helper()
	rc := &realCell{t: t, machines: map[string]*realMachine{}, backoff: borglet.Backoff{FirstNs: 1, BaseNs: 1, MaxNs: 1, HealthyNs: int64(time.Hour)}}
	dir := t.TempDir()
	data, err := ca.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if rc.authority, err = identity.DecodeAuthority(ca.Cell(), data, rand.Reader); err != nil {
		t.Fatal(err)
	}
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	rc.addr = l.Addr().String()
	if err := replica.Init(checkpoint.Config{Dir: filepath.Join(dir, "1")}, &borgpb.ReplicaIdentity{
		CellName: "test", CellId: testCellID, Epoch: 1, Replica: 1, Admin: "root", Members: []*borgpb.Member{{Id: 1, Addr: rc.addr}},
	}); err != nil {
		t.Fatal(err)
	}
	own := rc.source(identity.Master, "1")
	if rc.replica, err = replica.Open(replica.Config{Identity: own, Store: checkpoint.Config{Dir: filepath.Join(dir, "1")}}); err != nil {
		t.Fatal(err)
	}
	socket, shown := filepath.Join(dir, "s"), filepath.Join(dir, "p")
	trail, err := audit.Open(audit.Config{Dir: t.TempDir(), Replica: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { trail.Close() })
	events, err := journal.Open(journal.Config{Dir: t.TempDir(), Replica: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { events.Close() })
	key, err := cellkey.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	m, err := borgmaster.New(borgmaster.Config{
		CellName: "test", Replica: 1, Addr: rc.addr, SchedulerSocket: socket, SchedulerPages: []string{shown}, Identity: own, Authority: rc.authority, FirstAdmin: "root",
		Log: rc.replica, Members: rc.replica, MemberChanges: rc.replica, Checkpoints: rc.replica, Insides: rc.replica, Audit: trail, Journal: events, Keys: cellkey.NewRing(nil, key),
		PollPeriod: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	rc.m = m
	s := door.NewServer(m.Door())
	rc.replica.RegisterServices(s)
	m.RegisterServices(s)
	rc.run(func(context.Context) error { return s.Serve(l) }, s.Stop)
	rc.run(rc.replica.Run, nil)
	rc.run(m.Run, nil)
	rc.run(func(ctx context.Context) error {
		return process.Run(ctx, process.Config{Master: rc.addr, Identity: rc.source(identity.Scheduler, "1"), Socket: socket, Pages: shown, RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond})
	}, nil)
	rc.until("the cell has its first admin", func() bool { return rc.view(func(c *cell.Cell) bool { return c.NumAdmins() > 0 }) })
	return rc
}

// source is who somebody of the cell is.
func (rc *realCell) source(role identity.Role, id string) *identity.Source {
	rc.t.Helper()
	s, err := rc.authority.Source(name(role, id), time.Now(), identity.LifeOf(role))
	if err != nil {
		rc.t.Fatal(err)
	}
	return s
}

// run does something until the test ends: what was begun last ends first.
func (rc *realCell) run(do func(context.Context) error, stop func()) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if stop != nil {
			stop()
		}
		if err := <-ended; err != nil {
			rc.t.Errorf("a part of the cell ended: %v", err)
		}
	})
	rc.t.Cleanup(end)
	return end
}

func (rc *realCell) until(what string, ok func() bool) {
	rc.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			rc.t.Fatalf("waited in vain until %s", what)
		}
	}
}

func (rc *realCell) view(f func(c *cell.Cell) bool) (is bool) {
	rc.replica.View(func(c *cell.Cell) { is = f(c) })
	return is
}

// startMachine starts the borglet of a machine that the cell does not know yet.
func (rc *realCell) startMachine(name string) *realMachine {
	rc.t.Helper()
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		rc.t.Fatal(err)
	}
	m := &realMachine{name: name, dir: rc.t.TempDir(), addr: l.Addr().String()}
	kernel := borglet.NewFake()
	kernel.Refuse = rc.refuse
	who := rc.source(identity.Borglet, name)
	agent, err := borglet.New(borglet.Config{
		Name: name, Dir: m.dir, Build: "test", Boot: "boot1", Runtime: kernel, Log: slog.New(slog.DiscardHandler),
		Spec: &borgpb.MachineSpec{
			Addr: m.addr, Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 4 << 30, DiskBytes: 4 << 30}, PortFirst: 20000, PortLast: 20999,
			Attributes: map[string]string{"slot": name},
		},
		Backoff:            rc.backoff,
		CertificateExpires: func() time.Time { return who.Current().Expires() },
	})
	if err != nil {
		rc.t.Fatal(err)
	}
	m.agent = agent
	s := door.NewServer(door.Config{
		Identity: who,
		Revoked: func(who identity.Name, _ time.Time) bool {
			return who.Role == identity.Master && agent.Removed(who.Replica())
		},
		Called: func(c door.Call) { agent.Called(c.Method, c.Stream, c.Code, c.Took) },
	})
	borgrpc.RegisterBorgletServiceServer(s, borglet.NewServer(agent))
	stopServing := rc.run(func(context.Context) error { return s.Serve(l) }, s.Stop)
	stopAgent := rc.run(agent.Run, nil)
	m.stop = func() { stopServing(); stopAgent() }
	rc.machines[name] = m
	return m
}

// addMachine starts a borglet and takes its machine into the cell.
func (rc *realCell) addMachine(name string) *realMachine {
	rc.t.Helper()
	m := rc.startMachine(name)
	resp, err := rc.master(identity.User, "root").AddMachine(rc.t.Context(), rc.addMachineRequest(m.addr))
	if err != nil || resp.GetResult().GetRefusal() != nil {
		rc.t.Fatalf("add machine %s: %v, %v", name, resp, err)
	}
	return m
}

func (rc *realCell) addMachineRequest(addr string) *borgrpc.AddMachineRequest {
	rc.made++
	return &borgrpc.AddMachineRequest{Addr: addr, RequestId: fmt.Sprint("add-", rc.made), RequestWallNs: time.Now().UnixNano()}
}

func (rc *realCell) conn(role identity.Role, id string) *grpc.ClientConn {
	return dial(rc.t, rc.addr, rc.source(role, id), name(identity.Master, "1"))
}

func (rc *realCell) master(role identity.Role, id string) borgrpc.MasterServiceClient {
	return borgrpc.NewMasterServiceClient(rc.conn(role, id))
}

// op completes an op with a request id of its own.
func (rc *realCell) op(op *borgpb.Op) *borgpb.Op {
	rc.made++
	op.RequestId, op.RequestWallNs = fmt.Sprint("op-", rc.made), time.Now().UnixNano()
	return op
}

// must makes a mutation in a user's name that is to succeed.
func (rc *realCell) must(user string, op *borgpb.Op) *borgpb.Result {
	rc.t.Helper()
	resp, err := rc.master(identity.User, user).Mutate(rc.t.Context(), &borgrpc.MutateRequest{Op: rc.op(op)})
	if err != nil || resp.GetResult().GetRefusal() != nil {
		rc.t.Fatalf("%v by %s: %v, %v", op, user, resp, err)
	}
	return resp.Result
}

// submit is the op for a service of one task on a machine; an empty machine is
// any.
func (rc *realCell) submit(user, job, machine string) *borgpb.Op {
	rc.t.Helper()
	task := &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 1 << 20}, Args: []string{"/bin/sleep", "1000"}, GraceNs: 1e9}
	if machine != "" {
		task.Constraints = []*borgpb.Constraint{{Key: "slot", Relation: borgpb.Relation_RELATION_EQUAL, Value: machine}}
	}
	spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200, Task: task})
	if err != nil {
		rc.t.Fatal(err)
	}
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: job, Spec: spec}}}
}

// runs submits a job, waits until its task runs, and lets it have written
// something.
func (rc *realCell) runs(user, job, machine string) *borgrpc.CopyID {
	rc.t.Helper()
	uid := rc.must(user, rc.submit(user, job, machine)).Uid
	rc.until(user+"/"+job+" runs on "+machine, func() bool {
		return rc.view(func(c *cell.Cell) bool {
			p := c.Job(cell.JobKey{User: user, Name: job}).Task(0).Current()
			return p != nil && p.PID() != 0 && p.Machine().Name() == machine
		})
	})
	copyOf := &borgrpc.CopyID{JobUid: uid, Attempt: 1}
	rc.wrote(copyOf, machine, "written by "+user+"/"+job)
	return copyOf
}

// wrote lets a copy on a machine have written a text.
func (rc *realCell) wrote(copyOf *borgrpc.CopyID, machine, text string) {
	rc.t.Helper()
	id, err := borglet.IDOf(copyOf)
	if err != nil {
		rc.t.Fatal(err)
	}
	path := filepath.Join(rc.machines[machine].dir, "tasks", id.String(), "stdout")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		rc.t.Fatal(err)
	}
}

func newKey(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public, key
}

// invite makes a token for "user/<name>" or "borglet/<machine>" and returns who
// holds it.
func (rc *realCell) invite(who string) *identity.Credential {
	rc.t.Helper()
	public, key := newKey(rc.t)
	resp, err := borgrpc.NewIdentityServiceClient(rc.conn(identity.User, "root")).Invite(rc.t.Context(), &borgrpc.InviteRequest{Name: who, PublicKey: public})
	if err != nil {
		rc.t.Fatal(err)
	}
	c, err := identity.NewCredential(key, &identity.Issued{Certificate: resp.Certificate.Certificate, Authorities: resp.Certificate.Authorities})
	if err != nil {
		rc.t.Fatal(err)
	}
	return c
}
