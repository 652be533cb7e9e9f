package sim

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"borg/borglet"
	"borg/fauxmaster/pretend"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// slotAttribute names the machine among its attributes, for jobs that are tied
// to one.
const slotAttribute = "slot"

// shelfAttribute is the same for two machines, for jobs that are limited by it.
const shelfAttribute = "shelf"

// machine is one machine in the World, which has its time and its faults, and
// looks on.
type machine struct {
	*pretend.Machine
	w     *World
	i     int
	name  string
	clock clock
}

var (
	_ pretend.Env     = (*machine)(nil)
	_ pretend.Witness = (*machine)(nil)
)

func newMachine(w *World, i int) *machine {
	m := &machine{w: w, i: i, name: fmt.Sprintf("m%02d", i)}
	r := stream(w.cfg.Seed, fmt.Sprint("machine ", i))
	m.clock = w.swarm.drawClock(r)
	m.Machine = m.pretend(r)
	return m
}

func (m *machine) pretend(r *rand.Rand) *pretend.Machine {
	cfg := pretend.Config{
		Name: m.name, Env: m, Witness: m, Rand: r, Backoff: m.w.swarm.backoff, DeafPermille: 100,
		Lasts: func(d *borgrpc.Desired) (int64, int32) { return behaviour(d.GetSpec().GetArgs(), m.name) },
	}
	if m.w.swarm.mishaps {
		cfg.Mishaps = stream(m.w.cfg.Seed, fmt.Sprint("mishaps of machine ", m.i))
	}
	if m.w.swarm.reclaims {
		cfg.Uses = func(id borglet.ID, d *borgrpc.Desired, ageNs int64) *borgrpc.Usage {
			u := usage(id, d, ageNs)
			u.MemBytesPeak = min(m.memUsed(id, d, ageNs), d.GetSpec().GetResources().GetMemBytes())
			m.w.truth.used(id, u)
			return u
		}
	}
	cfg.Memory = m.memory()
	return pretend.New(cfg)
}

// behaviour is what the args of a simulated task say: it ends with code after
// so long; 0: never. With a fourth one only on the machine of that name.
func behaviour(args []string, machine string) (lastsNs int64, code int32) {
	if len(args) < 3 || len(args) > 3 && args[3] != machine {
		return 0, 0
	}
	ms, _ := strconv.ParseInt(args[1], 10, 64)
	c, _ := strconv.ParseInt(args[2], 10, 32)
	return ms * millisecond, int32(c)
}

func (w *World) machineNamed(name string) *machine {
	for _, m := range w.machines {
		if m.name == name {
			return m
		}
	}
	panic("there is no machine " + name)
}

func (m *machine) spec() *borgpb.MachineSpec {
	capacity := &borgpb.Resources{CpuMilli: m.w.swarm.machineMilli, MemBytes: 32 << 30, DiskBytes: 100 << 30, Ports: 100}
	if m.w.swarm.memBytes > 0 {
		capacity.MemBytes = m.w.swarm.memBytes
	}
	if m.w.swarm.rich && m.i%2 == 0 {
		capacity.Devices = map[string]int64{deviceName: 2}
	}
	spec := &borgpb.MachineSpec{
		Addr:      m.name + ":7101",
		Capacity:  capacity,
		PortFirst: 20000, PortLast: 20099,
		Attributes: map[string]string{"arch": "amd64", slotAttribute: m.name, shelfAttribute: fmt.Sprint(m.i / 2)},
	}
	m.w.swarm.offers(spec)
	return spec
}

// poll is a master's poll that has arrived.
func (m *machine) poll(req *borgrpc.PollRequest, done func(*borgrpc.PollResponse, error)) {
	m.Poll(req, func(resp *borgrpc.PollResponse, err error) {
		if resp != nil {
			resp.Spec = m.spec()
		}
		done(resp, err)
	})
}

// The machine's part of the world: its clocks, and time.

func (m *machine) Now() borglet.Now {
	return borglet.Now{MonoNs: m.clock.monoNs(m.w.now), WallNs: m.clock.wallNs(m.w.now)}
}

func (m *machine) TrueNs(ns int64) int64          { return m.clock.trueNs(ns) }
func (m *machine) After(ns int64, do func())      { m.w.after(ns, do) }
func (m *machine) Say(format string, args ...any) { m.w.say(format, args...) }

// What happens on it is held to the rules.

func (m *machine) Starts(r borglet.Record)     { m.w.truth.starts(m, r) }
func (m *machine) Stops(id borglet.ID)         { m.w.truth.stops(m, id) }
func (m *machine) Deletes(id borglet.VolumeID) { m.w.truth.deletes(m, id) }
func (m *machine) Mark(what string)            { m.w.mark(what) }

// Changed needs nothing: masters poll.
func (m *machine) Changed() {}

// Reaches is reach for a borglet, which is then killed.
func (m *machine) Reaches(point string) {
	if len(m.w.aimed) > 0 {
		m.w.reach(point, func(f *fault) {
			m.StopAgent()
			m.w.after(between(f.rand, 10*millisecond, 2*second), m.StartAgent)
		})
	}
}
