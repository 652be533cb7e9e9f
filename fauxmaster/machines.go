package fauxmaster

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borglet"
	"borg/borgmaster/cell"
	"borg/borgmaster/linkshard"
	"borg/fauxmaster/pretend"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// errNoLogs answers whoever asks for what a pretended task wrote, or wants to go into it.
var errNoLogs = status.Error(codes.FailedPrecondition, "the cell is simulated: its tasks have no processes and write nothing; what they once wrote is on the machines of the real cell")

// machines are the borglets of a simulated cell, by name of the machine. They
// live in the world: everything below is touched only by what is done in it.
type machines struct {
	world *World
	// The wall clock when the world began.
	wallNs int64
	// How long the process of a batch task runs; 0: for ever.
	batchNs int64
	byName  map[string]*pretended
	// What most machines are like; nil: there are none.
	shape *borgpb.MachineSpec
	// Machines of which a poll would tell something new.
	untold int
	// news says that a poll of a machine would tell something.
	news func(machine string)
}

// pretended is one machine, with its part of the world.
type pretended struct {
	*pretend.Machine
	all  *machines
	name string
	// A poll would tell something new.
	untold bool
}

// newMachines makes the machines of a cell, as they are in it: those that are up
// run what the cell says they run, those that are down stay so.
func newMachines(w *World, c *cell.Cell, cellName string, batch time.Duration, news func(string)) *machines {
	all := &machines{world: w, wallNs: wallOf(c), batchNs: int64(batch), byName: map[string]*pretended{}, news: func(string) {}}
	shapes, most := map[string]int{}, 0
	w.Do(func() {
		for x := range c.Machines() {
			m := all.add(x.Name())
			shape := x.Capacity()
			key := shape.Proto().String()
			if shapes[key]++; shapes[key] > most {
				most, all.shape = shapes[key], shapeOf(x)
			}
			if !x.Up() {
				continue
			}
			for p := range x.Copies() {
				if held, ok := heldBy(p, cellName); ok {
					m.Hold(held)
				}
			}
			m.Start()
		}
	})
	all.news = news
	return all
}

// shapeOf is what the borglet of a machine like that would say of it.
func shapeOf(x *cell.Machine) *borgpb.MachineSpec {
	capacity := x.Capacity()
	first, last := x.PortRange()
	spec := &borgpb.MachineSpec{Capacity: capacity.Proto(), PortFirst: uint32(first), PortLast: uint32(last), Attributes: map[string]string{}}
	for key, value := range x.Attributes() {
		if linkshard.IsFact(key) && key != "hostname" {
			spec.Attributes[key] = value
		}
	}
	return spec
}

// wallOf is a cell's wall clock, or that of whoever opens a cell that has none yet.
func wallOf(c *cell.Cell) int64 {
	if ns := c.WallNs(); ns > 0 {
		return ns
	}
	return time.Now().UnixNano()
}

// heldBy is what the borglet of a machine had of a copy; false: nothing.
func heldBy(p *cell.Copy, cellName string) (pretend.Held, bool) {
	r := borglet.Record{
		ID:      borglet.ID{JobUID: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt()},
		Desired: linkshard.Desired(p, cellName), Run: p.Restarts() + 1, RunVersion: p.Version(),
		Restarts: p.Restarts(), StartedWallNs: p.StartedWallNs(),
	}
	switch p.State() {
	case borgpb.AttemptState_ATTEMPT_STATE_RUNNING, borgpb.AttemptState_ATTEMPT_STATE_STOPPING:
		return pretend.Held{Record: r, Pid: p.PID(), Addr: p.Addr()}, p.PID() != 0
	case borgpb.AttemptState_ATTEMPT_STATE_BACKOFF:
		r.RunEnded, r.Exit = true, p.Exit()
		if r.Exit == nil {
			r.Exit = &borgpb.Exit{Unknown: true}
		}
		return pretend.Held{Record: r, Addr: p.Addr()}, true
	}
	// What has not begun begins here.
	return pretend.Held{}, false
}

// add makes a machine that holds nothing and is switched off.
func (all *machines) add(name string) *pretended {
	m := &pretended{all: all, name: name}
	h := fnv.New64a()
	h.Write([]byte(name))
	m.Machine = pretend.New(pretend.Config{
		Name: name, Env: m, Witness: m, Rand: rand.New(rand.NewPCG(uint64(all.wallNs), h.Sum64())),
		Backoff: borglet.DefaultBackoff, Lasts: all.lasts, StartNs: stepNs, StopNs: stepNs,
	})
	all.byName[name] = m
	return m
}

// stepNs is how long each start and each stop takes here. What was ordered at one moment is
// done within one leap of the world, so that what a session does depends on no chance.
func stepNs(*rand.Rand) int64 { return int64(50 * time.Millisecond) }

// lasts: services run for ever, and so does batch unless it was said how long it
// takes.
func (all *machines) lasts(d *borgrpc.Desired) (int64, int32) {
	switch d.GetKind() {
	case borgpb.JobKind_JOB_KIND_BATCH, borgpb.JobKind_JOB_KIND_CRON:
		return all.batchNs, 0
	}
	return 0, 0
}

// told tells whether every poll has told all there is.
func (all *machines) told() (yes bool) {
	all.world.look(func() { yes = all.untold == 0 })
	return yes
}

// Borglet finds a machine; one that is not known is a new one, which is just
// being added to the cell.
func (all *machines) Borglet(machine, _ string) (borgrpc.BorgletServiceClient, error) {
	var m *pretended
	all.world.Do(func() {
		if m = all.byName[machine]; m == nil && machine != "" {
			m = all.add(machine)
			m.Start()
		}
	})
	if m == nil {
		return nil, status.Error(codes.FailedPrecondition, "the cell is simulated and cannot ask a machine for its name; say --name NAME")
	}
	return m, nil
}

// StandBy has nothing to do: a simulated machine is always connected.
func (all *machines) StandBy(string, string) bool { return false }

// Connected is true of every simulated machine.
func (all *machines) Connected(string, string) bool { return true }

// errOff is what nobody's answer looks like.
var errOff = status.Error(codes.Unavailable, "the machine is off in this picture")

// Poll is a poll of the link shard. No time passes meanwhile, so that time can
// stand still.
func (m *pretended) Poll(_ context.Context, req *borgrpc.PollRequest, _ ...grpc.CallOption) (resp *borgrpc.PollResponse, err error) {
	m.all.world.Do(func() {
		if !m.Agent() {
			err = errOff
			return
		}
		if m.untold {
			m.untold = false
			m.all.untold--
		}
		resp, err = m.Answer(req)
	})
	if err != nil && status.Code(err) == codes.Unknown {
		err = status.Error(codes.FailedPrecondition, err.Error())
	}
	return resp, err
}

// Polls has nothing to save here, where a poll is a call of a function.
func (m *pretended) Polls(context.Context, ...grpc.CallOption) (borgrpc.BorgletService_PollsClient, error) {
	return nil, status.Error(codes.Unimplemented, "a simulated machine answers one poll at a time")
}

// Describe says that a machine is of the shape that most in the cell have.
func (m *pretended) Describe(context.Context, *borgrpc.DescribeRequest, ...grpc.CallOption) (resp *borgrpc.DescribeResponse, err error) {
	m.all.world.Do(func() {
		if !m.Agent() {
			err = errOff
			return
		}
		resp = &borgrpc.DescribeResponse{Name: m.name, Spec: proto.CloneOf(m.all.shape)}
	})
	return resp, err
}

// ReadLog has nothing to read.
func (m *pretended) ReadLog(context.Context, *borgrpc.ReadLogRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[borgrpc.ReadLogResponse], error) {
	return nil, errNoLogs
}

// ExecCopy has no process to run a program beside.
func (m *pretended) ExecCopy(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[borgrpc.ExecCopyRequest, borgrpc.ExecResponse], error) {
	return nil, errNoLogs
}

// The machine's part of the world. Its clocks are right.

func (m *pretended) Now() borglet.Now {
	ns := m.all.world.atNs
	return borglet.Now{MonoNs: ns, WallNs: m.all.wallNs + ns}
}

func (m *pretended) TrueNs(ns int64) int64     { return ns }
func (m *pretended) After(ns int64, do func()) { m.all.world.After(ns, do) }
func (m *pretended) Say(string, ...any)        {}

// Nobody looks for violations here.

func (m *pretended) Starts(borglet.Record)    {}
func (m *pretended) Stops(borglet.ID)         {}
func (m *pretended) Reaches(string)           {}
func (m *pretended) Deletes(borglet.VolumeID) {}
func (m *pretended) Mark(string)              {}

// Changed has the machine polled: time may go on much faster than polls do.
func (m *pretended) Changed() {
	if !m.untold {
		m.untold = true
		m.all.untold++
	}
	m.all.news(m.name)
}
