package fleet

import (
	"math/rand/v2"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borglet"
	"borg/fauxmaster"
	"borg/fauxmaster/pretend"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// machine is one of a fleet. It lives in a world: what is below source is touched
// only by what is done there.
type machine struct {
	*pretend.Machine
	fleet  *Fleet
	k      int
	name   string
	spec   *borgpb.MachineSpec
	source *identity.Source
	world  *fauxmaster.World
	// The wall clock when its world began.
	wallNs int64
	// Last poll that was obeyed: when, of which replica, in which term. 0: none.
	polledNs      int64
	replica, term uint64
	// Of its whole state, and of what its copies use, each as last told.
	stateBytes, usageBytes int
}

func newMachine(f *Fleet, k int, source *identity.Source, wallNs int64, r *rand.Rand) *machine {
	m := &machine{
		fleet: f, k: k, name: f.cfg.Name(k), source: source, world: f.worlds[k%worlds], wallNs: wallNs,
		spec: Spec(f.cfg.Seed, k, f.cfg.Port),
	}
	OfferCores(m.spec, f.cfg.ExclusiveCores)
	life := f.cfg.Life
	m.Machine = pretend.New(pretend.Config{
		Name: m.name, Env: m, Witness: m, Rand: r, Backoff: borglet.DefaultBackoff,
		Lasts:   func(d *borgrpc.Desired) (int64, int32) { return life.lasts(r, d) },
		StartNs: life.startNs,
		Uses: func(id borglet.ID, d *borgrpc.Desired, ageNs int64) *borgrpc.Usage {
			if percent := f.using.Load(); percent > 0 {
				return usesJust(id, d, percent)
			}
			return life.uses(id, d, ageNs)
		},
	})
	m.world.Do(m.Start)
	return m
}

func (m *machine) describe() *borgrpc.DescribeResponse {
	return &borgrpc.DescribeResponse{Name: m.name, Spec: proto.CloneOf(m.spec), Build: m.fleet.cfg.Build}
}

func (m *machine) poll(req *borgrpc.PollRequest) (resp *borgrpc.PollResponse, err error) {
	if req.GetFence().GetCellId() == "" {
		return nil, status.Error(codes.InvalidArgument, "a poll needs a fence with the id of the cell")
	}
	m.world.Do(func() {
		if resp, err = m.Answer(req); err == nil && !resp.Fenced {
			m.polled(req, resp)
		}
	})
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !resp.Fenced {
		m.source.TrustIs(req.GetBelief().GetAuthorities())
	}
	resp.Incarnation, resp.Spec = "pretended", m.spec
	return resp, nil
}

// The machine's part of the world. Its clocks are right.

func (m *machine) Now() borglet.Now {
	ns := m.world.AtNs()
	return borglet.Now{MonoNs: ns, WallNs: m.wallNs + ns}
}

func (m *machine) TrueNs(ns int64) int64     { return ns }
func (m *machine) After(ns int64, do func()) { m.world.After(ns, do) }
func (m *machine) Say(string, ...any)        {}

// Nobody looks for violations here, and polls find by themselves what changed.

func (m *machine) Starts(borglet.Record)    { m.fleet.begun.Add(1) }
func (m *machine) Stops(borglet.ID)         { m.fleet.stopped.Add(1) }
func (m *machine) Reaches(string)           {}
func (m *machine) Deletes(borglet.VolumeID) {}
func (m *machine) Mark(string)              {}
func (m *machine) Changed()                 {}
