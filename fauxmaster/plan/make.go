package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// Made says what became of what others had recorded, so that nothing is dropped
// without a word.
type Made struct {
	Machines int `json:"machines"`
	Jobs     int `json:"jobs"`
	// Running tasks have their place, Pending ones none.
	Running int `json:"running"`
	Pending int `json:"pending"`
	// OvercommittedCPU and OvercommittedMem count machines whose tasks ask for more
	// than it has.
	OvercommittedCPU int `json:"machinesOvercommittedCpu"`
	OvercommittedMem int `json:"machinesOvercommittedMem"`
	// Strangers ran on machines that are not listed; they were put where most is
	// free.
	Strangers int `json:"strangers"`
	// Crowded jobs had more tasks in one failure domain than they allow; the limit
	// was raised to what was there.
	Crowded int `json:"crowdedJobs"`
	// Unsuited tasks and allocs ran on machines that do not meet their constraints. They
	// stay there until they end or move.
	Unsuited int `json:"unsuited"`
	// Misplaced tasks could not be placed where they ran: they wait now. By the cell's
	// words.
	Misplaced map[string]int `json:"misplaced,omitempty"`
	// Refused machines and jobs are not in the cell. By the cell's words.
	Refused map[string]int `json:"refused,omitempty"`
	// Unknown tasks are not in the cell: nobody says what they asked for.
	Unknown int `json:"unknown"`
	// Notes count what else was not taken as it was, in words.
	Notes map[string]int `json:"notes,omitempty"`
	// Capacity is that of the machines; Asked what the tasks that run ask for,
	// Waiting what the others do.
	Capacity cell.Resources `json:"-"`
	Asked    cell.Resources `json:"-"`
	Waiting  cell.Resources `json:"-"`
}

// maker makes a cell.
type maker struct {
	*Model
	from *trace.Cell
	made *Made
	// load is the sum of the limits of what runs on each machine.
	load map[string]cell.Resources
	// real is the capacity of each machine that was given more for a while.
	real map[string]*borgpb.Resources
	// taints are given last: what runs there stays.
	taints map[string][]*borgpb.Taint
	// given is how much of each single device is given out, by machine and name.
	given map[string]map[string][]int64
}

// Make makes a cell of what others have recorded: machines, jobs, and tasks where
// they ran. A real cell is packed into what its tasks do not use, so placements
// whose limits are beyond the machine are taken as they are: it is given the room
// until all are placed. Wall time is that of the cell.
func Make(id string, wallNs int64, from *trace.Cell, reserved scheduler.Reserved) (*cell.Cell, *Made, error) {
	c := cell.New(id, 1)
	model, err := New(c, scheduler.Config{})
	if err != nil {
		return nil, nil, err
	}
	m := &maker{Model: model, from: from, made: &Made{
		Misplaced: make(map[string]int), Refused: make(map[string]int), Notes: maps.Clone(from.Notes), Unknown: from.Unknown,
	}, load: make(map[string]cell.Resources), real: make(map[string]*borgpb.Resources), taints: make(map[string][]*borgpb.Taint), given: make(map[string]map[string][]int64)}
	if m.made.Notes == nil {
		m.made.Notes = make(map[string]int)
	}
	first := &borgpb.Entry{CellTimeNs: 1, WallTimeNs: wallNs, Ops: [][]byte{
		marshal(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}}),
		marshal(cell.WholeState()),
	}}
	c.Apply(1, 1, marshal(first))
	// Constraints of others are broken while they are placed; no daemon may leave meanwhile.
	slices.SortStableFunc(from.Jobs, func(a, b trace.Job) int { return cmp.Compare(daemonsLast(&a), daemonsLast(&b)) })
	m.settleStrangers()
	m.addMachines()
	m.loosen()
	m.freeDaemons()
	m.addSets()
	m.addJobs()
	m.obey()
	if reserved != nil {
		m.reserve(reserved)
	}
	if err := m.trueUp(); err != nil {
		return nil, nil, err
	}
	m.count()
	return c, m.made, nil
}

// settleStrangers puts tasks and allocs whose machine is not there on those with the most
// memory free, since they did run.
func (m *maker) settleStrangers() {
	here := make(map[string]*borgpb.Resources, len(m.from.Machines))
	for _, o := range m.from.Machines {
		here[o.Name] = o.Spec.GetCapacity()
	}
	type stranger struct {
		machine *string
		need    cell.Resources
	}
	var lost []stranger
	settle := func(machines []string, i int, need cell.Resources) {
		switch name := machines[i]; {
		case name == "":
		case here[name] == nil:
			lost = append(lost, stranger{&machines[i], need})
		default:
			m.load[name] = m.load[name].Add(need)
		}
	}
	for _, s := range m.from.AllocSets {
		for i := range s.Machines {
			settle(s.Machines, i, cell.FromProto(s.Spec.GetResources()))
		}
	}
	for k := range m.from.Jobs {
		j := &m.from.Jobs[k]
		if j.Allocs != nil {
			// The allocs hold what the tasks have.
			continue
		}
		for i := range j.Machines {
			settle(j.Machines, i, request(j.Spec, i))
		}
	}
	if len(lost) == 0 || len(m.from.Machines) == 0 {
		return
	}
	names := slices.Sorted(maps.Keys(here))
	free := func(name string) int64 { return here[name].GetMemBytes() - m.load[name].MemBytes }
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(free(b), free(a)) })
	for n, s := range lost {
		name := names[n%len(names)]
		*s.machine = name
		m.load[name] = m.load[name].Add(s.need)
		m.made.Strangers++
	}
}

// request is what a task of a spec asks for.
func request(spec *borgpb.JobSpec, index int) cell.Resources {
	r := spec.Task.GetResources()
	for _, o := range spec.Overrides {
		if o.First <= uint32(index) && uint32(index) <= o.Last && o.Spec.Resources != nil {
			r = o.Spec.Resources
		}
	}
	return cell.FromProto(r)
}

// addMachines adds the machines, with room for all that ran on each.
func (m *maker) addMachines() {
	var ops []*borgpb.Op
	for _, o := range m.from.Machines {
		spec := proto.CloneOf(o.Spec)
		if len(spec.Taints) > 0 {
			m.taints[o.Name], spec.Taints = spec.Taints, nil
		}
		capacity, load := cell.FromProto(spec.Capacity), m.load[o.Name]
		if load.CPUMilli > capacity.CPUMilli {
			m.made.OvercommittedCPU++
		}
		if load.MemBytes > capacity.MemBytes {
			m.made.OvercommittedMem++
		}
		if !load.Fits(capacity) {
			m.real[o.Name] = spec.Capacity
			spec.Capacity = atLeast(capacity, load).Proto()
		}
		ops = append(ops, &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: o.Name, Labels: o.Labels, Spec: spec}}})
	}
	m.try(ops, "machine")
}

// atLeast is the larger of each amount.
func atLeast(a, b cell.Resources) cell.Resources { return a.Add(b).Sub(a.Min(b)) }

// try does ops of which some may be refused, and counts those.
func (m *maker) try(ops []*borgpb.Op, what string) (results []*borgpb.Result) {
	for len(ops) > 0 {
		n, bytes := 0, 0
		for n < len(ops) && n < maxReports {
			size := proto.Size(ops[n])
			if n > 0 && bytes+size > maxEntryBytes {
				break
			}
			n, bytes = n+1, bytes+size
		}
		for _, r := range m.Do(ops[:n]...) {
			if why := r.GetRefusal(); why != nil {
				m.made.Refused[refusalWords(what, why)]++
			}
			results = append(results, r)
		}
		ops = ops[n:]
	}
	return results
}

func refusalWords(what string, why *borgpb.Refusal) string {
	if why.GetField() != "" {
		return fmt.Sprintf("%s: %s: %s", what, why.GetField(), why.GetMessage())
	}
	return fmt.Sprintf("%s: %s", what, why.GetMessage())
}

// loosen raises the limits per failure domain to what really was in one.
func (m *maker) loosen() {
	racks, powers := make(map[string]string), make(map[string]string)
	for _, o := range m.from.Machines {
		racks[o.Name], powers[o.Name] = "machine "+o.Name, "machine "+o.Name
		if v, ok := o.Spec.GetAttributes()["rack"]; ok {
			racks[o.Name] = v
		}
		if v, ok := o.Spec.GetAttributes()["power"]; ok {
			powers[o.Name] = v
		}
	}
	attributes := make(map[string]map[string]string)
	for _, o := range m.from.Machines {
		attributes[o.Name] = o.Spec.GetAttributes()
	}
	raise := func(machines []string, perMachine, perRack, perPower *uint32, most map[string]uint32) {
		raised := raiseMost(machines, attributes, most)
		for _, d := range []struct {
			most *uint32
			of   func(string) string
		}{
			{perMachine, func(name string) string { return name }},
			{perRack, func(name string) string { return racks[name] }},
			{perPower, func(name string) string { return powers[name] }},
		} {
			if *d.most == 0 {
				continue
			}
			in := make(map[string]uint32)
			for _, name := range machines {
				if name == "" {
					continue
				}
				in[d.of(name)]++
				if n := in[d.of(name)]; n > *d.most {
					*d.most, raised = n, true
				}
			}
		}
		if raised {
			m.made.Crowded++
		}
	}
	for _, s := range m.from.AllocSets {
		raise(s.Machines, &s.Spec.MaxPerMachine, &s.Spec.MaxPerRack, &s.Spec.MaxPerPower, s.Spec.MaxPer)
	}
	for _, j := range m.from.Jobs {
		raise(j.Machines, &j.Spec.MaxPerMachine, &j.Spec.MaxPerRack, &j.Spec.MaxPerPower, j.Spec.MaxPer)
	}
}

// placer places tasks and allocs where they were, many at once.
type placer struct {
	*maker
	batch []*borgpb.Assignment
	bytes int
	// Assignments that the cell refused.
	refused int
	// Left for the end.
	unsuited []unsuited
}

func (p *placer) place(a *borgpb.Assignment) {
	p.batch = append(p.batch, a)
	if p.bytes += proto.Size(a) + 4; p.bytes > maxEntryBytes || len(p.batch) == maxReports {
		p.flush()
	}
}

func (p *placer) flush() {
	if len(p.batch) == 0 {
		return
	}
	r := p.Do(&borgpb.Op{
		Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER},
		Op:        &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: p.batch}},
	})[0]
	for _, why := range r.GetItems() {
		if why.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED {
			p.made.Misplaced[misplacedWords(why)]++
			p.refused++
		}
	}
	p.batch, p.bytes = nil, 0
}

// addSets submits the alloc sets and places their allocs.
func (m *maker) addSets() {
	ops := make([]*borgpb.Op, len(m.from.AllocSets))
	for i := range m.from.AllocSets {
		ops[i] = m.from.AllocSets[i].Op()
	}
	results := m.try(ops, "alloc set")
	p := &placer{maker: m}
	for i, s := range m.from.AllocSets {
		if results[i].GetRefusal() != nil {
			continue
		}
		for index, name := range s.Machines {
			if name != "" {
				p.placeAnyhow(&borgpb.Assignment{Uid: results[i].GetUid(), Index: uint32(index), Machine: name}, s.Spec.Constraints)
			}
		}
	}
	p.finish()
}

// addJobs submits the jobs and places their tasks.
func (m *maker) addJobs() {
	ops := make([]*borgpb.Op, len(m.from.Jobs))
	for i := range m.from.Jobs {
		ops[i] = m.from.Jobs[i].Op()
	}
	results := m.try(ops, "job")
	p := &placer{maker: m}
	for i, j := range m.from.Jobs {
		if results[i].GetRefusal() != nil {
			continue
		}
		for index, name := range j.Machines {
			if name == "" {
				continue
			}
			a := &borgpb.Assignment{Uid: results[i].GetUid(), Index: uint32(index), Machine: name}
			if j.Ports != nil {
				a.Ports = j.Ports[index]
			}
			if j.Spec.Kind == borgpb.JobKind_JOB_KIND_DAEMON {
				// Which of its tasks a machine has is the cell's to say.
				seat, ok := m.seat(&j, name)
				if !ok {
					m.made.Misplaced["a daemon whose machine does not match its job"]++
					continue
				}
				a.Index = seat
			}
			a.Devices = m.grant(name, request(j.Spec, index))
			if j.Allocs != nil {
				a.Machine, a.Alloc = "", j.Allocs[index]
				p.place(a)
				continue
			}
			p.placeAnyhow(a, constraints(j.Spec, index))
		}
	}
	p.finish()
}

// seat is the task that a daemon job has on a machine.
func (m *maker) seat(j *trace.Job, machine string) (index uint32, ok bool) {
	of, at := m.cell.Job(cell.JobKey{User: j.User, Name: j.Name}), m.cell.Machine(machine)
	if of == nil || at == nil {
		return 0, false
	}
	return of.SeatOn(at)
}

// wholeDevice is a device in the units of cell.Device.
const wholeDevice = 1000

// grant chooses the devices that a task has: those who recorded it say how many,
// not which. Each takes the first with room.
func (m *maker) grant(machine string, need cell.Resources) (grants []*borgpb.DeviceGrant) {
	for _, d := range need.Devices {
		if m.given[machine] == nil {
			m.given[machine] = make(map[string][]int64)
		}
		of := m.given[machine][d.Name]
		g := &borgpb.DeviceGrant{Name: d.Name}
		for left, i := d.Milli, 0; left > 0; i++ {
			if i == len(of) {
				of = append(of, 0)
			}
			part := min(left, wholeDevice)
			if of[i]+part > wholeDevice {
				continue
			}
			of[i] += part
			left -= part
			g.Numbers = append(g.Numbers, uint32(i))
		}
		m.given[machine][d.Name] = of
		grants = append(grants, g)
	}
	return grants
}

// misplacedWords is the test that a place failed, without names and amounts, so
// that they can be counted.
func misplacedWords(why *borgpb.Refusal) string {
	if f := why.GetField(); f != "" {
		return f
	}
	return why.GetMessage()
}

// reserve gives what runs reservations.
func (m *maker) reserve(reserved scheduler.Reserved) {
	reports, n := &borgpb.Reports{}, 0
	flush := func() {
		if n > 0 {
			m.Do(reportsOp(reports))
		}
		reports, n = &borgpb.Reports{}, 0
	}
	for at := range m.cell.Machines() {
		said := &borgpb.MachineReport{Machine: at.Name()}
		for p := range at.Copies() {
			j := m.cell.JobByUID(p.JobUID())
			r := reserved(j, p.Index())
			said.Reservations = append(said.Reservations, &borgpb.TaskReservation{
				JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), CpuMilli: r.CPUMilli, MemBytes: r.MemBytes,
			})
			n++
		}
		reports.Machines = append(reports.Machines, said)
		if n >= maxReports {
			flush()
		}
	}
	flush()
}

// trueUp gives machines the capacity and the taints that they really have, and
// says which of them are drained or down.
func (m *maker) trueUp() error {
	var ops []*borgpb.Op
	for _, o := range m.from.Machines {
		if m.cell.Machine(o.Name) == nil {
			continue
		}
		if capacity, taints := m.real[o.Name], m.taints[o.Name]; capacity != nil || len(taints) > 0 {
			ops = append(ops, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: o.Name, Capacity: capacity, SetTaints: taints}}})
		}
	}
	if err := m.Must(ops...); err != nil {
		return err
	}
	ops = nil
	for _, o := range m.from.Machines {
		switch at := m.cell.Machine(o.Name); {
		case at == nil:
		case o.Down:
			ops = append(ops, &borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: o.Name, Term: 1, Reason: "it was down when it was recorded"}}})
		case o.Draining:
			ops = append(ops, &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: o.Name, Drain: true}}})
		}
	}
	return m.Must(ops...)
}

// count sums up what came of it.
func (m *maker) count() {
	made := m.made
	made.Machines, made.Jobs = m.cell.NumMachines(), m.cell.NumJobs()
	for at := range m.cell.Machines() {
		made.Capacity = made.Capacity.Add(at.Capacity())
	}
	for j := range m.cell.Jobs() {
		for i, t := range j.Tasks() {
			switch t.State() {
			case borgpb.State_STATE_RUNNING:
				made.Running++
				made.Asked = made.Asked.Add(j.Need(i).Resources)
			case borgpb.State_STATE_PENDING:
				made.Pending++
				made.Waiting = made.Waiting.Add(j.Need(i).Resources)
			}
		}
	}
}
