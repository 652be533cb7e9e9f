package trace

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// Openb is the openb trace: the machines of a cell with GPUs, and the pods that
// were run there (Weng et al., USENIX ATC 2023). It says of a pod what it asked
// for and nothing of what it used.
type Openb struct {
	Machines []OpenbMachine
	Pods     []OpenbPod
	kept     ledger
}

// OpenbMachine is one machine.
type OpenbMachine struct {
	Name     string
	CPUMilli int64
	MemBytes int64
	// GPUs are all of the same model; zero: none, and no model.
	GPUs  int64
	Model string
}

// OpenbPod is one task.
type OpenbPod struct {
	Name     string
	CPUMilli int64
	MemBytes int64
	// GPUs is how many it asks for; of one it may ask for a part, in
	// thousandths.
	GPUs     int64
	GPUMilli int64
	// Models are those that would do; nil: any.
	Models []string
	// QoS is LS, Guaranteed, Burstable or BE.
	QoS string
	// Seconds of the trace at which it came, was placed (negative: never) and went, and
	// what it was last, such as Running. Timed: the list says so.
	SubmitS, ScheduleS, EndS int64
	Phase                    string
	Timed                    bool
}

// MilliGPUs is what a pod asks for in all.
func (p *OpenbPod) MilliGPUs() int64 { return p.GPUs * p.GPUMilli }

const (
	maxOpenbCPUMilli = 1_000_000_000
	maxOpenbMemMiB   = 1 << 30
	maxOpenbGPUs     = 1024
	maxOpenbS        = 1 << 40
	// maxInflatedPods is what a cell may have of tasks.
	maxInflatedPods = 2_000_000
)

// LoadOpenb reads the machines and the pods of a file each.
func LoadOpenb(machines, pods string) (*Openb, error) {
	o := &Openb{}
	if err := readFile(machines, o.ReadMachines); err != nil {
		return nil, err
	}
	if err := readFile(pods, o.ReadPods); err != nil {
		return nil, err
	}
	return o, nil
}

// Inflate is the workload of the published measurements: all pods in an order
// that follows from the seed, then pods drawn again and again until those of the
// list ask for so many percent of the GPUs. That may be of more pods than a cell has tasks,
// as a pod may ask for a thousandth of a GPU.
func (o *Openb) Inflate(seed uint64, percent int64) ([]OpenbPod, error) {
	r := rand.New(rand.NewPCG(seed, 0))
	pods := slices.Clone(o.Pods)
	r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	milli, want := int64(0), int64(0)
	for i := range pods {
		milli += pods[i].MilliGPUs()
	}
	for i := range o.Machines {
		want += o.Machines[i].GPUs * 10 * percent
	}
	if milli == 0 {
		return pods, nil
	}
	for milli < want {
		if len(pods) >= maxInflatedPods {
			return nil, fmt.Errorf("%d percent of the GPUs are more than %d pods", percent, maxInflatedPods)
		}
		p := o.Pods[r.IntN(len(o.Pods))]
		milli += p.MilliGPUs()
		pods = append(pods, p)
	}
	return pods, nil
}

// Cell is a cell of the machines that have GPUs, with a job of one task for each
// pod, in their order: all of one user and of one priority, so that they are
// placed one by one.
func (o *Openb) Cell(pods []OpenbPod) *Cell {
	c := &Cell{}
	var models []string
	for i := range o.Machines {
		m := &o.Machines[i]
		if m.GPUs == 0 {
			continue
		}
		if !slices.Contains(models, m.Model) {
			models = append(models, m.Model)
		}
		c.Machines = append(c.Machines, m.machine())
	}
	slices.Sort(models)
	for i := range pods {
		c.Jobs = append(c.Jobs, Job{
			User: "openb", Name: fmt.Sprintf("pod-%d", i), Machines: []string{""},
			Spec: &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200, Task: pods[i].spec(models)},
		})
	}
	return c
}

// machine is a machine of ours like that.
func (m *OpenbMachine) machine() Machine {
	spec := &borgpb.MachineSpec{
		Addr: "127.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: m.CPUMilli, MemBytes: m.MemBytes},
		PortFirst: borgpb.TaskPortFirst, PortLast: borgpb.TaskPortLast,
	}
	if m.GPUs > 0 {
		spec.Capacity.Devices = map[string]int64{gpu: m.GPUs}
		spec.Attributes = map[string]string{gpuModel: m.Model}
	}
	return Machine{Name: m.Name, Spec: spec}
}

// What GPUs and their models are called in our cells.
const (
	gpu      = "gpu"
	gpuModel = "gpu-model"
)

func (p *OpenbPod) spec(models []string) *borgpb.TaskSpec {
	r := &borgpb.Resources{CpuMilli: p.CPUMilli, MemBytes: p.MemBytes}
	switch {
	case p.GPUs == 0:
	case p.GPUMilli == 1000:
		r.Devices = map[string]int64{gpu: p.GPUs}
	default:
		r.DeviceMilli = map[string]int64{gpu: p.GPUMilli}
	}
	spec := &borgpb.TaskSpec{Args: placeholder, Resources: r}
	// Any of some models is none of the others.
	if p.Models != nil {
		for _, m := range models {
			if !slices.Contains(p.Models, m) {
				spec.Constraints = append(spec.Constraints, &borgpb.Constraint{Key: gpuModel, Relation: borgpb.Relation_RELATION_NOT_EQUAL, Value: m})
			}
		}
	}
	return spec
}

// ReadMachines reads the list of nodes.
func (o *Openb) ReadMachines(file string, in io.Reader) error {
	o.kept.from(in)
	r := newHeadedRows(file, in)
	name, cpu, mem := r.column("machine_id", "sn"), r.column("cpu_milli"), r.column("mem_mib", "memory_mib")
	gpus, model := r.column("gpu"), r.column("gpu_model", "model")
	seen := make(map[string]bool)
	for r.next() {
		m := OpenbMachine{
			Name: o.name(r, name, seen), CPUMilli: r.integer(cpu, 0, maxOpenbCPUMilli), MemBytes: r.integer(mem, 0, maxOpenbMemMiB) << 20,
			GPUs: r.integer(gpus, 0, maxOpenbGPUs), Model: o.kept.text(r.text(model)),
		}
		if (m.GPUs > 0) != (m.Model != "") {
			r.fail(model, "%s is the model of %d GPUs", brief(m.Model), m.GPUs)
		}
		o.model(r, model, m.Model)
		r.keep(&o.kept, keptItemBytes)
		o.Machines = append(o.Machines, m)
	}
	return r.err
}

// ReadPods reads a list of pods.
func (o *Openb) ReadPods(file string, in io.Reader) error {
	o.kept.from(in)
	r := newHeadedRows(file, in)
	name, cpu, mem := r.column("job_id", "name"), r.column("cpu_milli"), r.column("mem_mib", "memory_mib")
	gpus, milli, spec := r.column("gpu_count", "num_gpu"), r.column("gpu_milli_each", "gpu_milli"), r.column("gpu_spec")
	qos := r.optional("qos")
	submit, schedule, end, phase := r.optional("submit_s", "creation_time"), r.optional("schedule_s", "scheduled_time"), r.optional("end_s", "deletion_time"), r.optional("phase", "pod_phase")
	timed := submit >= 0 && schedule >= 0 && end >= 0 && phase >= 0
	seen := make(map[string]bool)
	for r.next() {
		p := OpenbPod{
			Name: o.name(r, name, seen), CPUMilli: r.integer(cpu, 0, maxOpenbCPUMilli), MemBytes: r.integer(mem, 0, maxOpenbMemMiB) << 20,
			GPUs: r.integer(gpus, 0, maxOpenbGPUs), GPUMilli: r.integer(milli, 0, 1000),
		}
		switch {
		case p.GPUs > 1 && p.GPUMilli != 1000:
			r.fail(milli, "%d thousandths of each of %d GPUs; of several each has to be whole (1000)", p.GPUMilli, p.GPUs)
		case p.GPUs == 1 && p.GPUMilli == 0:
			r.fail(milli, "0 thousandths of a GPU; want 1 to 1000")
		case p.GPUs == 0:
			p.GPUMilli = 0
		}
		if text := r.text(spec); text != "" {
			for model := range strings.SplitSeq(text, "|") {
				o.model(r, spec, model)
				r.keep(&o.kept, keptTextBytes)
				p.Models = append(p.Models, o.kept.text(model))
			}
		}
		if qos >= 0 {
			p.QoS = o.kept.text(r.text(qos))
		}
		r.keep(&o.kept, 2*keptItemBytes)
		if timed {
			p.Phase, p.ScheduleS = o.kept.text(r.text(phase)), -1
			// Mixes of pods that were drawn have no times.
			if p.SubmitS, p.Timed = r.maybeInteger(submit, 0, maxOpenbS); !p.Timed {
				o.Pods = append(o.Pods, p)
				continue
			}
			if v, ok := r.maybeInteger(schedule, p.SubmitS, maxOpenbS); ok {
				p.ScheduleS = v
			}
			p.EndS = r.integer(end, max(p.SubmitS, p.ScheduleS), maxOpenbS)
		}
		o.Pods = append(o.Pods, p)
	}
	return r.err
}

// name reads a name that has not been seen.
func (o *Openb) name(r *rows, column int, seen map[string]bool) string {
	text := o.kept.text(r.text(column))
	if !validName(text) {
		r.fail(column, "%s is no name: want at most %d of a-z, 0-9 and -", brief(text), maxKeyBytes)
	}
	if seen[text] {
		r.fail(column, "%s comes twice", brief(text))
	}
	seen[text] = true
	return text
}

func (o *Openb) model(r *rows, column int, text string) {
	if len(text) > maxValueBytes {
		r.fail(column, "%s has %d bytes, want at most %d", brief(text), len(text), maxValueBytes)
	}
}

// validName tells whether the cell takes a name.
func validName(s string) bool {
	if s == "" || len(s) > maxKeyBytes || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-'
	})
}
