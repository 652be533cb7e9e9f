package door_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"borg/borgmaster"
	"borg/borgmaster/memlog"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// memoryDoor is a server whose connections are in memory, so that its time can
// be a pretended one.
type memoryDoor struct {
	listener *bufconn.Listener
	server   *door.Server
	shakes   atomic.Int64
}

func openMemoryDoor(running *sync.WaitGroup, config door.Config, register func(*door.Server)) *memoryDoor {
	d := &memoryDoor{listener: bufconn.Listen(1 << 20), server: door.NewServer(config)}
	register(d.server)
	running.Go(func() { _ = d.server.Serve(d.listener) })
	return d
}

func (d *memoryDoor) dial(t *testing.T, who *identity.Source, want identity.Name) *grpc.ClientConn {
	t.Helper()
	conn, err := door.Dial("memory", who, want, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		d.shakes.Add(1)
		return d.listener.DialContext(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestTwoDaysOfCalls lets 48 hours pass in which a user, a scheduler, a master and
// a borglet call a master and a borglet every minute, follow streams that last
// for all of the time, and renew their certificates through real calls, at half of
// their lives. No call may fail, and no stream may end. Clocks that differ and an
// authority that is replaced are in TestTwoDaysOfRenewals of package identity.
func TestTwoDaysOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := newAuthority("test")
		credential := func(n identity.Name, life time.Duration) *identity.Credential {
			c, err := authority.Certify(n, time.Now(), life)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		var renewals, failed atomic.Int64
		keep := func(s *identity.Source) *identity.Source {
			s.OnRenew = func(_ *identity.Credential, err error) {
				if renewals.Add(1); err != nil {
					failed.Add(1)
					t.Errorf("a renewal of %v failed: %v", s.Name(), err)
				}
			}
			running.Go(func() { s.Run(ctx) })
			return s
		}

		// The master certifies itself; all others ask it.
		master, err := authority.Source(name(identity.Master, "1"), time.Now(), identity.Life)
		if err != nil {
			t.Fatal(err)
		}
		keep(master)
		began := time.Now()
		group, err := memlog.NewGroup(memlog.Config{
			CellID: testCellID, Epoch: 1,
			Clock: func() (int64, int64) { return int64(time.Since(began)) + 1, time.Now().UnixNano() },
		})
		if err != nil {
			t.Fatal(err)
		}
		log := group.Replica(1)
		m, err := borgmaster.New(borgmaster.Config{
			CellName: "test", Replica: 1, Identity: master, Authority: authority, FirstAdmin: "root",
			Log: log, Members: log, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		masterDoor := openMemoryDoor(&running, m.Door(), func(s *door.Server) { m.RegisterServices(s) })
		group.Elect(1)
		renewing := func(n identity.Name, life time.Duration) *identity.Source {
			var s *identity.Source
			s = identity.NewSource(credential(n, life), func(ctx context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
				conn := masterDoor.dial(t, s, name(identity.Master, ""))
				defer conn.Close()
				resp, err := borgrpc.NewIdentityServiceClient(conn).Renew(ctx, &borgrpc.RenewRequest{PublicKey: public})
				return &identity.Issued{Certificate: resp.GetCertificate().GetCertificate(), Authorities: resp.GetCertificate().GetAuthorities()}, err
			}, nil)
			return keep(s)
		}
		alice := renewing(name(identity.User, "alice"), identity.UserLife)
		scheduler := renewing(name(identity.Scheduler, "1"), identity.Life)
		// A machine's lives for a week: this one is renewed twice in two days.
		machine := renewing(name(identity.Borglet, "m1"), 32*time.Hour)
		borgletDoor := openMemoryDoor(&running, door.Config{Identity: machine}, func(s *door.Server) { borgrpc.RegisterBorgletServiceServer(s, caller{}) })

		// What is called again and again.
		asAlice := borgrpc.NewMasterServiceClient(masterDoor.dial(t, alice, name(identity.Master, "")))
		asScheduler := borgrpc.NewSchedulingServiceClient(masterDoor.dial(t, scheduler, name(identity.Master, "1")))
		asMaster := borgrpc.NewBorgletServiceClient(borgletDoor.dial(t, master, name(identity.Borglet, "m1")))
		asked := 0
		op := func(op *borgpb.Op) error {
			asked++
			op.RequestId, op.RequestWallNs = fmt.Sprint("op-", asked), time.Now().UnixNano()
			resp, err := asAlice.Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
			if r := resp.GetResult().GetRefusal(); r != nil {
				return fmt.Errorf("refused: %s", r.Message)
			}
			return err
		}
		rc := &realCell{t: t}
		if err := op(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: rc.submit("alice", "web", "").GetSubmitJob()}}); err != nil {
			t.Fatal(err)
		}
		root := borgrpc.NewMasterServiceClient(masterDoor.dial(t, renewing(name(identity.User, "root"), identity.UserLife), name(identity.Master, "")))
		add := rc.op(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: "m1", Spec: &borgpb.MachineSpec{Addr: "memory:1"}}}})
		add.RequestId, add.RequestWallNs = "add", time.Now().UnixNano()
		if resp, err := root.Mutate(t.Context(), &borgrpc.MutateRequest{Op: add}); err != nil || resp.GetResult().GetRefusal() != nil {
			t.Fatal(resp, err)
		}
		tasks := uint32(1)
		calls := []func() error{
			func() error {
				tasks = 3 - tasks
				return op(&borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "alice", Name: "web", Tasks: tasks}}})
			},
			func() error {
				_, err := asAlice.GetJob(t.Context(), &borgrpc.GetJobRequest{User: "alice", Name: "web"})
				return err
			},
			func() error {
				_, err := asScheduler.Assign(t.Context(), &borgrpc.AssignRequest{Assign: &borgpb.Assign{}})
				return err
			},
			func() error {
				_, err := asMaster.Describe(t.Context(), &borgrpc.DescribeRequest{})
				return err
			},
		}
		// What is followed all the time.
		follow := func(what string, next func() error) *atomic.Int64 {
			messages := new(atomic.Int64)
			running.Go(func() {
				for {
					if err := next(); status.Code(err) == codes.Canceled || ctx.Err() != nil {
						return
					} else if err != nil {
						t.Errorf("%s ended after %v: %v", what, time.Since(began), err)
						return
					}
					messages.Add(1)
				}
			})
			return messages
		}
		events, err := asAlice.Events(ctx, &borgrpc.EventsRequest{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		entries, err := asScheduler.Follow(ctx, &borgrpc.FollowRequest{})
		if err != nil {
			t.Fatal(err)
		}
		streams := map[string]*atomic.Int64{
			"a user's events":       follow("a user's events", func() error { _, err := events.Recv(); return err }),
			"a scheduler's entries": follow("a scheduler's entries", func() error { _, err := entries.Recv(); return err }),
		}

		made := 0
		for time.Since(began) < 48*time.Hour && !t.Failed() {
			for i, call := range calls {
				if err := call(); err != nil {
					t.Errorf("call %d failed after %v: %v", i, time.Since(began), err)
				}
				made++
			}
			time.Sleep(time.Minute)
		}
		for what, n := range streams {
			if n.Load() < int64(made/len(calls)) {
				t.Errorf("%s: %d messages came of %d", what, n.Load(), made/len(calls))
			}
		}
		t.Logf("%d calls over %d connections, %d renewals of which %d failed", made, masterDoor.shakes.Load()+borgletDoor.shakes.Load(), renewals.Load(), failed.Load())
		if renewals.Load() < 200 {
			t.Errorf("%d renewals, want about 200: 95 of the master, 95 of the scheduler, 5 of each user, 2 of the machine", renewals.Load())
		}
		cancel()
		masterDoor.server.Stop()
		borgletDoor.server.Stop()
		for _, s := range []interface{ Close() error }{masterDoor.listener, borgletDoor.listener} {
			s.Close()
		}
		running.Wait()
	})
}
