package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
)

// Sampled says what a sample has of its cell.
type Sampled struct {
	// Machines of each shape, in the cell and in the sample; the most first.
	Strata []Stratum `json:"strata"`
	// Jobs with at least one task in the sample, of so many.
	Jobs   int `json:"jobs"`
	OfJobs int `json:"ofJobs"`
	// RunningPercent of the tasks that run and PendingPercent of those that wait
	// are in it.
	RunningPercent float64 `json:"runningPercent"`
	PendingPercent float64 `json:"pendingPercent"`
	Made           *Made   `json:"made"`
}

// Stratum is the machines of one shape.
type Stratum struct {
	Shape    string `json:"shape"`
	Of       int    `json:"of"`
	Machines int    `json:"machines"`
}

// Sample makes a smaller cell of the same mix with so many machines: of each shape
// of machines as large a part, drawn; of what runs what runs on these, with its
// reservations; of what waits as large a part, drawn. Tasks are numbered anew. It
// is a function of the cell and the seed.
//
// Alloc sets become jobs that ask for what an alloc has, and who runs in one is
// left out. What a job says of other jobs, and its secrets, are left out too.
func Sample(c *cell.Cell, machines int, seed uint64) (*cell.Cell, *Sampled, error) {
	if n := c.NumMachines(); machines < 1 || machines > n {
		return nil, nil, fmt.Errorf("a sample of %d machines of a cell that has %d", machines, n)
	}
	s := &sampling{cell: c, seed: seed, chosen: make(map[string]bool), from: &trace.Cell{Notes: make(map[string]int)},
		of: make(map[sampledTask]*cell.Copy), daemonOn: make(map[sampledDaemon]*cell.Copy), sets: make(map[cell.JobKey]bool)}
	out := &Sampled{Strata: s.choose(machines)}
	permille := uint64(machines) * 1000 / uint64(c.NumMachines())
	s.takeMachines()
	s.takeSets(permille)
	s.takeJobs(permille)
	made, m, err := Make(fmt.Sprintf("%s-%d-sample-%d-%d", c.ID(), c.Index(), machines, seed), c.WallNs(), s.from, s.reserved)
	if err != nil {
		return nil, nil, err
	}
	out.Made, out.OfJobs = m, s.jobs
	s.sum(made, out)
	return made, out, nil
}

// sampling is a sample being drawn.
type sampling struct {
	cell   *cell.Cell
	seed   uint64
	chosen map[string]bool
	from   *trace.Cell
	// of is the copy that a task of the sample was, and daemonOn that of a daemon's task,
	// whose number the sample gives anew.
	of       map[sampledTask]*cell.Copy
	daemonOn map[sampledDaemon]*cell.Copy
	// sets are the jobs that were alloc sets.
	sets map[cell.JobKey]bool
	// What the cell has.
	jobs, running, pending int
}

type sampledDaemon struct {
	job     cell.JobKey
	machine string
}

// was returns the copy that a task of the sample was; nil if it waited, or was an alloc.
func (s *sampling) was(j *cell.Job, index uint32) *cell.Copy {
	if m := j.Seat(index); m != nil && isDaemonJob(j) {
		return s.daemonOn[sampledDaemon{j.Key(), m.Name()}]
	}
	return s.of[sampledTask{j.Key(), index}]
}

// sum counts what of the cell's jobs and tasks is in the sample.
func (s *sampling) sum(made *cell.Cell, out *Sampled) {
	running, pending := 0, 0
	for j := range made.Jobs() {
		if s.sets[j.Key()] {
			continue
		}
		out.Jobs++
		for i, t := range j.Tasks() {
			switch ran := s.was(j, i) != nil; {
			case ran && t.State() == borgpb.State_STATE_RUNNING:
				running++
			case !ran && t.State() == borgpb.State_STATE_PENDING:
				pending++
			}
		}
	}
	out.RunningPercent = 100 * float64(running) / float64(max(s.running, 1))
	out.PendingPercent = 100 * float64(pending) / float64(max(s.pending, 1))
}

type sampledTask struct {
	job   cell.JobKey
	index uint32
}

// shapeOf is what machines of a stratum have in common: all but names, addresses
// and failure domains.
func shapeOf(m *cell.Machine) string {
	words := []string{fmt.Sprintf("%d milli-cores, %d MiB", m.Capacity().CPUMilli, m.Capacity().MemBytes>>20)}
	for _, d := range m.Capacity().Devices {
		words = append(words, fmt.Sprintf("%s=%s", d.Name, cell.DeviceText(d.Milli)))
	}
	for _, k := range slices.Sorted(maps.Keys(m.Attributes())) {
		if k != "rack" && k != "power" {
			words = append(words, k+"="+m.Attributes()[k])
		}
	}
	for _, t := range m.Taints() {
		words = append(words, "taint "+t.Key)
	}
	if !m.Up() {
		words = append(words, "down")
	}
	if m.Draining() {
		words = append(words, "draining")
	}
	return strings.Join(words, ", ")
}

// choose draws machines, of each shape its part: whole numbers by the largest
// remainder, of equal ones the shape that was drawn first.
func (s *sampling) choose(machines int) []Stratum {
	byShape := make(map[string][]string)
	for m := range s.cell.Machines() {
		byShape[shapeOf(m)] = append(byShape[shapeOf(m)], m.Name())
	}
	type stratum struct {
		Stratum
		rest  int
		order uint64
		names []string
	}
	var all []*stratum
	left, total := machines, s.cell.NumMachines()
	for _, shape := range slices.Sorted(maps.Keys(byShape)) {
		names := byShape[shape]
		n := len(names) * machines
		all = append(all, &stratum{Stratum{shape, len(names), n / total}, n % total, draw(s.seed, shape), names})
		left -= n / total
	}
	slices.SortFunc(all, func(a, b *stratum) int {
		return cmp.Or(cmp.Compare(b.rest, a.rest), cmp.Compare(a.order, b.order), cmp.Compare(a.Shape, b.Shape))
	})
	for _, t := range all[:left] {
		t.Machines++
	}
	var strata []Stratum
	for _, t := range all {
		slices.SortFunc(t.names, func(a, b string) int { return cmp.Or(cmp.Compare(draw(s.seed, a), draw(s.seed, b)), cmp.Compare(a, b)) })
		for _, name := range t.names[:t.Machines] {
			s.chosen[name] = true
		}
		strata = append(strata, t.Stratum)
	}
	slices.SortFunc(strata, func(a, b Stratum) int { return cmp.Or(cmp.Compare(b.Of, a.Of), cmp.Compare(a.Shape, b.Shape)) })
	return strata
}

func (s *sampling) takeMachines() {
	for m := range s.cell.Machines() {
		if s.chosen[m.Name()] {
			s.from.Machines = append(s.from.Machines, trace.Machine{
				Name: m.Name(), Labels: m.Labels(), Spec: proto.CloneOf(s.cell.MachineProto(m).GetSpec()), Down: !m.Up(), Draining: m.Draining(),
			})
		}
	}
}

// drawn tells whether something that has no machine is in the sample.
func (s *sampling) drawn(name string, permille uint64) bool {
	return draw(s.seed, name)%1000 < permille
}

// takeSets takes allocs as the tasks of a job.
func (s *sampling) takeSets(permille uint64) {
	for set := range s.cell.AllocSets() {
		if set.State() == borgpb.State_STATE_DEAD {
			continue
		}
		spec := set.Spec()
		j := trace.Job{User: set.Key().User, Name: set.Key().Name, Labels: set.Labels(), Spec: &borgpb.JobSpec{
			Kind: borgpb.JobKind_JOB_KIND_SERVICE, Priority: set.Priority(), Preempt: spec.GetPreempt(),
			MaxPerMachine: spec.GetMaxPerMachine(), MaxPerRack: spec.GetMaxPerRack(), MaxPerPower: spec.GetMaxPerPower(),
			Task: &borgpb.TaskSpec{Args: []string{"/bin/true"}, Resources: set.Need().Resources.Proto(), Constraints: spec.GetConstraints(), Tolerations: spec.GetTolerations()},
		}}
		for a := range set.Allocs() {
			switch m := a.Machine(); {
			case m != nil && s.chosen[m.Name()]:
				j.Machines = append(j.Machines, m.Name())
			case m == nil && a.State() == borgpb.State_STATE_PENDING && s.drawn(a.Name(), permille):
				j.Machines = append(j.Machines, "")
			}
		}
		if j.Spec.Tasks = uint32(len(j.Machines)); j.Spec.Tasks > 0 {
			s.from.Notes["alloc sets are jobs here that ask for what an alloc has"]++
			s.sets[set.Key()] = true
			s.from.Jobs = append(s.from.Jobs, j)
		}
	}
}

func (s *sampling) takeJobs(permille uint64) {
	for j := range s.cell.Jobs() {
		if j.State() == borgpb.State_STATE_DEAD {
			continue
		}
		s.jobs++
		if _, in := j.AllocSet(); in {
			pending, running, _ := j.Counts()
			s.pending, s.running = s.pending+int(pending), s.running+int(running)
			s.from.Notes["jobs that run in alloc sets are left out"]++
			continue
		}
		// indices are those of the job that are in the sample, in order.
		var indices []uint32
		out := trace.Job{User: j.Key().User, Name: j.Key().Name, Labels: j.Labels()}
		for i, t := range j.Tasks() {
			switch p := t.Current(); {
			case t.State() == borgpb.State_STATE_DEAD:
				continue
			case p == nil:
				s.pending++
				if !s.takesWaiter(j, i, permille) {
					continue
				}
				out.Machines, out.Ports = append(out.Machines, ""), append(out.Ports, nil)
			default:
				name := p.Machine().Name()
				s.running++
				if !s.chosen[name] {
					continue
				}
				s.of[sampledTask{j.Key(), uint32(len(indices))}] = p
				s.daemonOn[sampledDaemon{j.Key(), name}] = p
				out.Machines, out.Ports = append(out.Machines, name), append(out.Ports, p.Ports())
			}
			indices = append(indices, i)
		}
		if len(indices) > 0 {
			out.Spec = s.specFor(j, indices)
			s.from.Jobs = append(s.from.Jobs, out)
		}
	}
}

// takesWaiter reports whether a task that waits is in the sample: a daemon's is with its machine.
func (s *sampling) takesWaiter(j *cell.Job, index uint32, permille uint64) bool {
	if isDaemonJob(j) {
		m := j.Seat(index)
		return m != nil && s.chosen[m.Name()]
	}
	return s.drawn(j.Task(index).ID().String(), permille)
}

// specFor is a job's spec for some of its tasks, numbered anew.
func (s *sampling) specFor(j *cell.Job, indices []uint32) *borgpb.JobSpec {
	spec := proto.CloneOf(j.Spec())
	if spec.Tasks = uint32(len(indices)); isDaemonJob(j) {
		// The machines of the sample say how many it has.
		spec.Tasks = 0
	}
	if spec.Parent != "" || len(spec.StartAfter) > 0 {
		s.from.Notes["jobs do not wait for others, or end with them, any more"]++
		spec.Parent, spec.StartAfter = "", nil
	}
	withoutOwned(spec.Task)
	var overrides []*borgpb.TaskOverride
	for _, o := range spec.Overrides {
		first, _ := slices.BinarySearch(indices, o.First)
		next, _ := slices.BinarySearch(indices, o.Last+1)
		if first == next {
			continue
		}
		o.First, o.Last = uint32(first), uint32(next-1)
		if o.Spec != nil {
			withoutOwned(o.Spec)
		}
		overrides = append(overrides, o)
	}
	spec.Overrides = overrides
	return spec
}

// withoutOwned leaves out what a task names of its owner's.
func withoutOwned(t *borgpb.TaskSpec) {
	t.Secrets, t.Files = nil, nil
	for _, p := range t.Packages {
		p.Credentials = ""
	}
}

// reserved is what a task of the sample reserved where it ran; of one of a job that
// was an alloc set, its limit.
func (s *sampling) reserved(j *cell.Job, index uint32) cell.Resources {
	if p := s.was(j, index); p != nil {
		return p.Held(false)
	}
	return j.Need(index).Resources
}
