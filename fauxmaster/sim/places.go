package sim

import (
	"fmt"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S40: no two processes of a machine have one processor for themselves, and each has whole
// cores. S41: the copies in an alloc with a network of its own have one address, and nobody
// else has it; a copy with a network of its own has an address of its own.

// coreThreads is how many processors of a machine are the threads of one core.
const coreThreads = 2

// offers has a machine offer networks and cores.
func (s *swarm) offers(spec *borgpb.MachineSpec) {
	if !s.places {
		return
	}
	spec.Attributes[cell.NetworkAttribute] = "own"
	spec.Attributes[borgpb.CoreThreads] = fmt.Sprint(coreThreads)
	if spec.Capacity.Devices == nil {
		spec.Capacity.Devices = map[string]int64{}
	}
	spec.Capacity.Devices[borgpb.ExclusiveCPU] = 2 * coreThreads
}

// placeSetName is the alloc set with volumes and perhaps a network that each user has.
const placeSetName = "place"

// placeOp asks for something about an alloc set with volumes, for jobs that work in these, or
// for jobs with networks or cores of their own.
func (c *client) placeOp() *borgpb.Op {
	r, user := c.rand, c.user()
	switch n := r.IntN(20); {
	case n < 3:
		set := &borgpb.AllocSetSpec{
			Allocs: uint32(1 + r.IntN(3)), Priority: 200,
			Resources: &borgpb.Resources{CpuMilli: 1500, MemBytes: 512 << 20, DiskBytes: 64 << 20, Ports: 4},
			Volumes: []*borgpb.Volume{
				{Name: "data", DiskBytes: 4 << 20, KeepNs: between(r, second, 4*second)},
				{Name: "log", DiskBytes: 1 << 20, KeepNs: second},
			},
		}
		if c.i%2 == 0 {
			set.Network = borgpb.Network_NETWORK_OWN
		}
		return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: placeSetName, Spec: encode(set)}}}
	case n < 4:
		return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: user, Name: placeSetName}}}
	case n < 5:
		return &borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{User: user, Name: placeSetName, Allocs: uint32(1 + r.IntN(4))}}}
	case n < 7:
		return &borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{
			User: user, Name: placeSetName, Index: uint32(r.IntN(3)), Volume: []string{"data", "log"}[r.IntN(2)]}}}
	case n < 9:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: fmt.Sprintf("p%d", r.IntN(4))}}}
	}
	// Two kinds of jobs in the allocs, so that several copies share one.
	at := r.IntN(4)
	name, spec := fmt.Sprintf("p%d", at), c.drawSpec()
	spec.Gang, spec.AllocSet, spec.AllocByIndex = false, "", false
	switch at {
	case 0, 1:
		spec.AllocSet, spec.AllocByIndex, spec.BatchQueue = user+"/"+placeSetName, c.byIndex(), false
		spec.Task.Resources.CpuMilli = 100 + 100*r.Int64N(4)
		spec.Task.Volumes = []*borgpb.Volume{{Name: "data", Path: "/data"}}
	case 2:
		spec.Task.Network = borgpb.Network_NETWORK_OWN
	case 3:
		spec.Task.ExclusiveCores, spec.Task.AppClass = true, borgpb.AppClass_APP_CLASS_LATENCY_SENSITIVE
		spec.Task.Resources.CpuMilli = 1000 * (1 + r.Int64N(2)) * coreThreads
	}
	if r.IntN(4) == 0 {
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: name, Spec: encode(c.budgeted(name, spec))}}}
	}
	return c.submit(name, c.budgeted(name, spec))
}

// placedAlloc: an alloc is placed where its volumes are.
func (t *truth) placedAlloc(ev *cell.Event) {
	if set := t.cell.AllocSetByUID(ev.UID); set != nil {
		t.atHome(ev, cell.TaskID{Job: ev.Key, Index: ev.Task}, set.Spec().GetVolumes(), "alloc placed where its volume is")
	}
}

// allocKeeps: the volume of an alloc is not given up while that is on its machine, whoever
// works in it.
func (t *truth) allocKeeps(e borgmaster.CommittedEntry, at volumeAt) {
	set := t.cell.AllocSet(cell.JobKey{User: at.id.User, Name: at.id.Job})
	if set == nil || at.id.Index >= set.Spec().GetAllocs() {
		return
	}
	if a := set.Alloc(at.id.Index); a != nil && a.Machine() != nil && a.Machine().Name() == at.machine {
		t.w.fail("S39: volume %s on %s is given up at index %d, and its alloc is there", at.id, at.machine, e.Index)
	}
}

// coresAlone holds the processes of a machine against S40.
func (t *truth) coresAlone(m *machine) {
	if !t.w.swarm.places {
		return
	}
	holder := map[uint32]borglet.ID{}
	for _, id := range m.Running() {
		if p := t.copyOf(m, id); p != nil {
			t.coreHeld(m.name, id, p.Devices(), holder)
		}
	}
}

// coreHeld takes in what a copy that runs has alone.
func (t *truth) coreHeld(machine string, id borglet.ID, grants []cell.DeviceGrant, holder map[uint32]borglet.ID) {
	threads, last := 0, uint32(0)
	for _, g := range grants {
		if g.Name != borgpb.ExclusiveCPU {
			continue
		}
		if other, taken := holder[g.Number]; taken {
			t.w.fail("S40: copies %s and %s run on %s, and both have processor %d alone", other, id, machine, g.Number)
		}
		holder[g.Number] = id
		// Grants come in the order of their numbers.
		if threads++; threads%coreThreads != 0 && g.Number%coreThreads != 0 || threads%coreThreads == 0 && g.Number != last+1 {
			t.w.fail("S40: copy %s on %s has a part of a core: %v", id, machine, grants)
		}
		last = g.Number
	}
	if threads > 0 {
		t.w.mark("cores of its own")
	}
	if threads%coreThreads != 0 {
		t.w.fail("S40: copy %s on %s has a part of a core: %v", id, machine, grants)
	}
}

// taskNetwork is one of a machine: a copy's or an alloc's.
type taskNetwork struct{ of, machine string }

// addressModel is who has which address at one moment.
type addressModel struct {
	holder map[string]taskNetwork
	addr   map[taskNetwork]string
}

func (m *addressModel) holds(w *World, of, machine, addr string) {
	if m.holder == nil {
		m.holder, m.addr = map[string]taskNetwork{}, map[taskNetwork]string{}
	}
	n := taskNetwork{of, machine}
	if other, held := m.holder[addr]; held && other != n {
		w.fail("S41: %s on %s and %s on %s have the address %s", other.of, other.machine, of, machine, addr)
	}
	if other, said := m.addr[n]; said && other != addr {
		w.fail("S41: %s on %s has the addresses %s and %s", of, machine, other, addr)
	} else if said {
		w.mark("copies share an address")
	}
	m.holder[addr], m.addr[n] = n, addr
}

// addresses holds what machines say against S41. Of one that is down nothing is known.
func (t *truth) addresses() {
	if !t.w.swarm.places {
		return
	}
	var all addressModel
	for m := range t.cell.Machines() {
		for p := range m.Copies() {
			if !m.Up() || !p.Current() || p.Addr() == "" {
				continue
			}
			of := p.ID().String()
			if a := p.Alloc(); a != nil {
				of = a.Name()
			}
			all.holds(t.w, of, m.Name(), p.Addr())
		}
	}
}

// addressed: when all has settled, who has a network has an address, and nobody else.
func (t *truth) addressed() {
	for m := range t.cell.Machines() {
		for p := range m.Copies() {
			if own := p.Network() == borgpb.Network_NETWORK_OWN; p.State() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING && own != (p.Addr() != "") {
				t.w.fail("S41: %v on %s has a network of its own: %v, and the address %q", p.TaskID(), m.Name(), own, p.Addr())
			}
		}
	}
}
