package door_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// thief has the key and the certificate of the borglet of m1, and no other.
type thief struct {
	borgrpc.UnimplementedBorgletServiceServer
	// What it calls itself.
	name string
	// What it says of copies that are not its own.
	lies []*borgpb.TaskReport

	mu sync.Mutex
	// Calls that reached it, and jobs of which it was told. Guarded by mu.
	calls int
	told  map[string]bool
}

func (x *thief) Describe(context.Context, *borgrpc.DescribeRequest) (*borgrpc.DescribeResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calls++
	return &borgrpc.DescribeResponse{Name: x.name, Spec: &borgpb.MachineSpec{Capacity: &borgpb.Resources{CpuMilli: 1 << 20}}}, nil
}

func (x *thief) Poll(_ context.Context, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calls++
	for _, d := range req.Desired {
		x.told[d.User+"/"+d.Job] = true
	}
	// It has obeyed nobody yet who was so far, says that all others' copies are
	// lost, and that it is another and larger machine.
	return &borgrpc.PollResponse{
		Highest: req.Fence, Tasks: x.lies, Versions: make([]uint64, len(x.lies)), Incarnation: fmt.Sprint(x.calls), Hash: fmt.Append(nil, x.calls),
		Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:9", Capacity: &borgpb.Resources{CpuMilli: 1 << 20, MemBytes: 1 << 40}, Attributes: map[string]string{"slot": "m2"}, PortFirst: 1, PortLast: 65535},
	}, nil
}

// heard is how many calls reached it.
func (x *thief) heard() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.calls
}

// countingListener counts who knocks.
type countingListener struct {
	net.Listener
	mu sync.Mutex
	n  int
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.n++
	}
	return conn, err
}

func (l *countingListener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// listen has the thief answer at an address, which somebody else may have had.
func (rc *realCell) listen(x *thief, addr string, who *identity.Source) (*countingListener, func()) {
	rc.t.Helper()
	var l net.Listener
	rc.until("the address "+addr+" is free", func() bool {
		var err error
		l, err = door.Listen(addr)
		return err == nil
	})
	counting := &countingListener{Listener: l}
	s := door.NewServer(door.Config{Identity: who})
	borgrpc.RegisterBorgletServiceServer(s, x)
	borgrpc.RegisterMasterServiceServer(s, caller{})
	return counting, rc.run(func(context.Context) error { return s.Serve(counting) }, s.Stop)
}

// TestStolenBorglet tries everything that can be done with the certificate of one
// machine's borglet, in a cell with other machines and the jobs of several users.
// testdata/stolen.txt is all that comes of it.
func TestStolenBorglet(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	others := m.runs("alice", "other", "m2")
	stolen := m.certify(name(identity.Borglet, "m1"))
	who := identity.NewSource(stolen, nil, nil)
	var got strings.Builder
	got.WriteString("# What came of everything that was tried with the certificate of the borglet of m1.\n# Made by go test ./proto/door -run Stolen -rewrite.\n\n")
	note := func(format string, args ...any) { fmt.Fprintf(&got, format+"\n", args...) }

	// Every call that there is, at every door that there is, as the right caller
	// would make it; then in the name of others.
	doors := map[string]string{"the master": m.addr, "the borglet of m1": m.machines["m1"].addr, "the borglet of m2": m.machines["m2"].addr}
	behalf := map[string][]string{"": nil}
	for _, n := range []identity.Name{root, alice, name(identity.Master, "1"), name(identity.Borglet, "m2"), name(identity.Scheduler, "1")} {
		behalf[" in the name of "+n.Words()] = []string{"borg-behalf", n.String(), "borg-behalf-issued", fmt.Sprint(time.Now().UnixNano())}
	}
	tried := 0
	for _, at := range slices.Sorted(maps.Keys(doors)) {
		conn := show(t, doors[at], stolen)
		for _, as := range slices.Sorted(maps.Keys(behalf)) {
			for _, call := range calls() {
				for _, a := range m.rows[path(call)].asks {
					tried++
					h := m.outcomeOn(metadata.AppendToOutgoingContext(t.Context(), behalf[as]...), conn, call, a.req)
					// No such service is behind that door, whoever asks.
					if h.word == "no" || h.code == codes.Unimplemented {
						continue
					}
					if line := fmt.Sprintf("%s%s, at %s: %s", strings.TrimPrefix(path(call), "/borgrpc."), as, at, h.word); !strings.Contains(got.String(), line) {
						note("%s", line)
					}
				}
			}
		}
	}
	t.Logf("%d calls were tried", tried)

	// What it is certified as.
	public, _ := newKey(t)
	resp, err := borgrpc.NewIdentityServiceClient(dial(t, m.addr, who, name(identity.Master, ""))).Renew(t.Context(), &borgrpc.RenewRequest{PublicKey: public})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(resp.Certificate.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	is, err := identity.NameOf(leaf)
	note("\nits certificate is renewed as %v, %v, an authority: %v", is, err, leaf.IsCA)

	// In the place of another machine: the master knocks and says nothing.
	x := &thief{name: "m2", told: map[string]bool{}}
	m2 := m.machines["m2"]
	m2.stop()
	knocks, stop := m.listen(x, m2.addr, who)
	m.until("the master has tried the address of m2 for a while", func() bool { return knocks.count() >= 5 })
	stop()
	note("\nat the address of m2: %d calls were made to it", x.heard())
	// As a master, to those who look for one.
	l, stop := m.listen(x, "127.0.0.1:0", who)
	_, err = borgrpc.NewMasterServiceClient(dial(t, l.Addr().String(), source(t, identity.User, "root"), name(identity.Master, ""))).GetCell(t.Context(), &borgrpc.GetCellRequest{})
	note("as a master, to an admin: %s", door.Reason(err))
	// As another machine that an admin adds.
	for _, x.name = range []string{"m8", "m1"} {
		added, err := m.master(identity.User, "root").AddMachine(t.Context(), m.addMachineRequest(l.Addr().String()))
		note("as a new machine %s: %s %s", x.name, reasonOf(err, l.Addr().String()), added.GetResult().GetRefusal().GetMessage())
	}
	stop()

	// In its own place, with lies about what runs on m2.
	uid, err := cell.ParseUID(others.JobUid)
	if err != nil {
		t.Fatal(err)
	}
	before := m.machine("m2")
	x = &thief{name: "m1", told: map[string]bool{}}
	for _, state := range []borgpb.AttemptState{borgpb.AttemptState_ATTEMPT_STATE_FAILED, borgpb.AttemptState_ATTEMPT_STATE_LOST} {
		x.lies = append(x.lies, &borgpb.TaskReport{JobUid: others.JobUid, Attempt: others.Attempt, State: int32(state), Exit: &borgpb.Exit{Code: 1}})
	}
	m1 := m.machines["m1"]
	m1.stop()
	_, stop = m.listen(x, m1.addr, who)
	m.until("the master has polled it often", func() bool { return x.heard() > 30 })
	note("\nat the address of m1: told of %s", strings.Join(slices.Sorted(maps.Keys(x.told)), ", "))
	m.replica.View(func(c *cell.Cell) {
		p := c.Machine("m2").Copy(cell.CopyID{Job: uid, Attempt: 1})
		note("what it says of a copy on m2: the cell has it as %v, attempt %d", p.State(), p.Attempt())
		note("what it says of itself: m1 is at %v with %d cpu, slot %s", addrWord(c.Machine("m1").Addr(), m1.addr), c.Machine("m1").Capacity().Proto().CpuMilli, c.Machine("m1").Attributes()["slot"])
	})
	if after := m.machine("m2"); !proto.Equal(after, before) {
		t.Errorf("m2 was\n%v\nand is\n%v", before, after)
	}
	stop()

	// Once the machine has been removed.
	m.must("root", &borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: "m1", Force: true}}})
	_, err = borgrpc.NewIdentityServiceClient(dial(t, m.addr, who, name(identity.Master, ""))).Renew(t.Context(), &borgrpc.RenewRequest{PublicKey: public})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("m1, which was removed, renews: %v", err)
	}
	note("\nwhen m1 was removed: %s", door.Reason(err))
	golden(t, "testdata/stolen.txt", got.String())
}

// reasonOf is an error without the address in it, which is another each time.
func reasonOf(err error, addr string) string {
	return strings.ReplaceAll(door.Reason(err), addr, "ADDR")
}

func addrWord(addr, own string) string {
	if addr == own {
		return "its own address"
	}
	return addr
}

// machine is what the cell has of one, as far as only its borglet or an admin
// could change it.
func (rc *realCell) machine(machine string) (is *borgpb.Machine) {
	rc.replica.View(func(c *cell.Cell) { is = c.MachineProto(c.Machine(machine)) })
	is.Status = nil
	return is
}
