package scheduler_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// workload draws a cell and what is to be packed into it, the same from the
// same seed everywhere. Its shape follows what is published of Borg's cells:
// machines of several shapes in racks and power domains; jobs whose sizes and
// requests have heavy tails; four bands, most work below production; a fifth of
// the jobs picky about where they run; a fifth of the CPU in allocs.
type workload struct {
	seed            uint64
	machines, tasks int
	// distinct: every job has one task, with needs of its own, so that no class
	// helps.
	distinct bool
	// plain: no allocs.
	plain bool
	// uniform: no job has constraints.
	uniform bool
	// fillPercent is how much of the cell's CPU and memory is asked for; zero: 75.
	fillPercent int
}

// ops returns what makes the cell: machines first, then alloc sets and jobs.
func (w workload) ops() []*borgpb.Op {
	d := &draw{workload: w, rand: rand.New(rand.NewPCG(w.seed, 0xb0b9)), room: make(map[string]int64)}
	if d.fillPercent == 0 {
		d.fillPercent = 75
	}
	for i := range w.machines {
		d.machine(i)
	}
	d.jobs()
	return d.out
}

// draw is a workload being drawn.
type draw struct {
	workload
	rand *rand.Rand
	out  []*borgpb.Op
	// Of all machines.
	cpuMilli, memBytes int64
	// room is the CPU of the machines that meet a constraint, less what the
	// jobs that have it ask for.
	room map[string]int64
}

// Machine shapes: thousandths of a core, memory in GiB, and how many of 100.
var shapes = []struct{ cpuMilli, memGiB, share int64 }{
	{32_000, 128, 30}, {16_000, 64, 25}, {64_000, 256, 15}, {32_000, 64, 15}, {16_000, 128, 10}, {96_000, 384, 5},
}

// The constraints of picky jobs and the share of machines that meet them, in
// thousandths: each between 1 % and 50 %.
var picky = []struct {
	text  string
	share int64
}{
	{"gen>=5", 500}, {"gen>=6", 300}, {"gen>=7", 120}, {"gen>=8", 30},
	{"disk=ssd", 300}, {"arch=arm", 50}, {"nic=fast", 20}, {"pool=p3", 100}, {"pool=p7", 100},
}

func (d *draw) machine(i int) {
	at := d.rand.Int64N(100)
	n := 0
	for at >= shapes[n].share {
		at -= shapes[n].share
		n++
	}
	shape := shapes[n]
	attributes := []string{fmt.Sprintf("rack=r%d", i/40), fmt.Sprintf("power=p%d", i/400), fmt.Sprintf("pool=p%d", d.rand.IntN(10))}
	gen := 1 + d.rand.IntN(4)
	switch p := d.rand.IntN(1000); {
	case p < 30:
		gen = 8
	case p < 120:
		gen = 7
	case p < 300:
		gen = 6
	case p < 500:
		gen = 5
	}
	attributes = append(attributes, fmt.Sprintf("gen=%d", gen))
	for _, k := range []struct {
		text  string
		share int
	}{{"disk=ssd", 300}, {"arch=arm", 50}, {"nic=fast", 20}} {
		if d.rand.IntN(1000) < k.share {
			attributes = append(attributes, k.text)
		}
	}
	d.cpuMilli += shape.cpuMilli
	d.memBytes += shape.memGiB << 30
	d.out = append(d.out, addMachine(fmt.Sprintf("m%06d", i), machineSpec(shape.cpuMilli, shape.memGiB<<30, attributes...)))
}

// drawnJob is a job before its requests are scaled to the cell.
type drawnJob struct {
	tasks    int
	cpu, mem float64
	prod     bool
	priority int32
}

// asks is what each task of the job asks for.
func (j drawnJob) asks(scaleCPU, scaleMem float64) (cpuMilli, memBytes int64) {
	return step(j.cpu*scaleCPU, 10, 14_000), step(j.mem*scaleMem, 16<<20, 56<<30)
}

// jobs draws all jobs, scales what they ask for to the share of the cell that
// is to be filled, and submits them in the order drawn.
func (d *draw) jobs() {
	for _, k := range picky {
		d.room[k.text] = d.cpuMilli * k.share / 1000 * 30 / 100
	}
	var all []drawnJob
	for _, n := range d.sizes() {
		all = append(all, d.job(n))
	}
	// What is asked for is cut to what people ask for at most, so the share is
	// met in a few steps.
	scaleCPU, scaleMem := 1.0, 1.0
	for range 5 {
		var cpu, mem int64
		for _, j := range all {
			cpuMilli, memBytes := j.asks(scaleCPU, scaleMem)
			cpu += cpuMilli * int64(j.tasks)
			mem += memBytes * int64(j.tasks)
		}
		scaleCPU *= float64(d.cpuMilli) * float64(d.fillPercent) / 100 / float64(cpu)
		scaleMem *= float64(d.memBytes) * float64(d.fillPercent) / 100 / float64(mem)
	}
	inAllocs := d.cpuMilli * int64(d.fillPercent) / 100 / 5
	for i, j := range all {
		cpuMilli, memBytes := j.asks(scaleCPU, scaleMem)
		if d.distinct {
			// Nobody else asks for exactly that much.
			memBytes += int64(i) * 4096
		}
		spec := service(uint32(j.tasks), j.priority, cpuMilli, memBytes)
		if !j.prod {
			spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
		}
		user, name := fmt.Sprintf("user%d", d.rand.IntN(40)), fmt.Sprintf("job%d", i)
		need := cpuMilli * int64(j.tasks)
		if d.rand.IntN(5) == 0 && !d.uniform {
			d.pick(spec, need)
		} else if j.prod && inAllocs > 0 && j.tasks >= 2 && j.tasks <= 2000 && !d.plain {
			inAllocs -= need * 5 / 4
			spec.AllocSet = user + "/set" + name
			d.out = append(d.out, submitAllocSet(user, "set"+name, &borgpb.AllocSetSpec{
				Allocs: uint32(j.tasks), Priority: j.priority,
				Resources: &borgpb.Resources{CpuMilli: cpuMilli * 5 / 4, MemBytes: memBytes * 5 / 4},
			}))
		}
		d.out = append(d.out, submitJob(user, name, spec))
	}
}

// pick gives a job a constraint, if the machines that meet one have room left.
func (d *draw) pick(spec *borgpb.JobSpec, need int64) {
	first := d.rand.IntN(len(picky))
	for i := range picky {
		k := picky[(first+i)%len(picky)].text
		if d.room[k] >= need {
			d.room[k] -= need
			spec.Task.Constraints = constraints([]string{k}, false)
			return
		}
	}
}

// sizes are the numbers of tasks: most jobs have one or two, the tail is a
// Pareto's, none has above 3 % of all.
func (d *draw) sizes() []int {
	if d.distinct {
		ones := make([]int, d.tasks)
		for i := range ones {
			ones[i] = 1
		}
		return ones
	}
	var sizes []int
	for left := d.tasks; left > 0; {
		n := int(min(math.Pow(1-d.rand.Float64(), -1/0.82), float64(max(d.tasks*3/100, 1)), float64(left)))
		sizes = append(sizes, n)
		left -= n
	}
	return sizes
}

func (d *draw) job(tasks int) drawnJob {
	j := drawnJob{tasks: tasks}
	switch p := d.rand.IntN(100); {
	case p < 1:
		j.prod, j.priority = true, 400
	case p < 35:
		j.prod, j.priority = true, []int32{200, 210, 240}[d.rand.IntN(3)]
	case p < 75:
		j.priority = []int32{105, 110, 115}[d.rand.IntN(3)]
	default:
		j.priority = []int32{0, 25, 50}[d.rand.IntN(3)]
	}
	median := 600.0
	if !j.prod {
		median = 300
	}
	j.cpu = median * math.Exp(1.1*d.rand.NormFloat64())
	j.mem = j.cpu * 3e6 * math.Exp(0.8*d.rand.NormFloat64())
	return j
}

// step rounds as people do: to a multiple of unit while small, to one of eight
// steps between powers of two beyond.
func step(v, unit, most float64) int64 {
	v = min(max(v, unit), most)
	grain := max(unit, math.Exp2(math.Floor(math.Log2(v)))/8)
	return int64(math.Round(v/grain) * grain)
}

func submitAllocSet(user, name string, spec *borgpb.AllocSetSpec) *borgpb.Op {
	data, err := proto.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return asUser(user, &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: name, Spec: data}}})
}

// TestWorkload holds the generator to what the figures are published with.
func TestWorkload(t *testing.T) {
	const machines, tasks = 10_000, 150_000
	wl := workload{seed: 1, machines: machines, tasks: tasks}
	type needs struct {
		cpuMilli, memBytes int64
		priority           int32
		constraint         string
	}
	classes := make(map[needs]bool)
	var jobs, pickyJobs, n int
	var cpu, cpuInAllocs, capacity int64
	bands := make(map[bool]int)
	meets := make(map[string]int)
	ops := wl.ops()
	for _, op := range ops {
		switch o := op.Op.(type) {
		case *borgpb.Op_AddMachine:
			capacity += o.AddMachine.Spec.Capacity.CpuMilli
			c := cell.New("test", 1)
			w := &world{cell: c, wallNs: 1e18, timeNs: 1e9}
			if n%10 == 0 {
				w.must(t, op)
				for _, k := range picky {
					if cell.Holds(constraints([]string{k.text}, false)[0], c.Machine(o.AddMachine.Name)) {
						meets[k.text]++
					}
				}
			}
			n++
		case *borgpb.Op_SubmitAllocSet:
			spec := new(borgpb.AllocSetSpec)
			if err := proto.Unmarshal(o.SubmitAllocSet.Spec, spec); err != nil {
				t.Fatal(err)
			}
			cpuInAllocs += int64(spec.Allocs) * spec.Resources.CpuMilli
		case *borgpb.Op_SubmitJob:
			spec := new(borgpb.JobSpec)
			if err := proto.Unmarshal(o.SubmitJob.Spec, spec); err != nil {
				t.Fatal(err)
			}
			jobs++
			bands[spec.Priority >= 120] += int(spec.Tasks)
			cpu += int64(spec.Tasks) * spec.Task.Resources.CpuMilli
			k := needs{spec.Task.Resources.CpuMilli, spec.Task.Resources.MemBytes, spec.Priority, ""}
			if len(spec.Task.Constraints) > 0 {
				pickyJobs++
				k.constraint = cell.ConstraintWords(spec.Task.Constraints[0])
			}
			classes[k] = true
		}
	}
	if got := bands[true] + bands[false]; got != tasks || jobs < 8000 || len(classes) < 3000 {
		t.Errorf("%d tasks in %d jobs and %d classes, want %d in at least 8,000 and 3,000", got, jobs, len(classes), tasks)
	}
	if p := 100 * pickyJobs / jobs; p < 18 || p > 22 {
		t.Errorf("%d %% of the jobs have constraints, want 20", p)
	}
	for _, k := range picky {
		if n := meets[k.text]; n < machines/10/100 || n > machines/10*55/100 {
			t.Errorf("%d of %d machines meet %s, want 1 to 50 %%", n, machines/10, k.text)
		}
	}
	if p := 100 * cpuInAllocs / cpu; p < 18 || p > 24 {
		t.Errorf("%d %% of the CPU is in allocs, want 20", p)
	}
	if p := 100 * cpu / capacity; p < 70 || p > 80 {
		t.Errorf("the tasks ask for %d %% of the CPU, want 75", p)
	}
	if bands[true] == 0 || bands[false] < bands[true] {
		t.Errorf("%d production tasks and %d others, want fewer of the first", bands[true], bands[false])
	}
	again := wl.ops()
	for i, op := range ops {
		if !proto.Equal(op, again[i]) {
			t.Fatalf("op %d is not the same from the same seed", i)
		}
	}
}
