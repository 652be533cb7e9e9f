package trace

import (
	"fmt"
	"iter"
	"math"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// Cell is a cell as a trace has it at one moment.
type Cell struct {
	Machines []Machine
	// AllocSets are what jobs may run in; most traces have none.
	AllocSets []AllocSet
	Jobs      []Job
	// Strangers counts the running tasks whose machine is not among Machines.
	Strangers int
	// Unknown counts the tasks of which the trace never says what they asked
	// for; they are not in Jobs.
	Unknown int
	// Notes count, in words, what else could not be taken as it was.
	Notes map[string]int
	// Arrivals is what came from outside afterwards, in order of time; nil when
	// nobody asked for it.
	Arrivals []Arrival
	// LastNs is when the recording of them ended, since the moment of the cell; zero:
	// there is none.
	LastNs int64
	// Moment says which moment of the trace it is; empty: the trace has one moment.
	Moment string
	// demands are the attributes that stand for what constraints cannot say, by words;
	// empty: all machines meet it.
	demands map[string]string
	// asked are the attributes that some task asks for.
	asked map[string]bool
}

// Recorded tells whether the cell says what came afterwards.
func (c *Cell) Recorded() bool { return c.LastNs > 0 }

// maxNotes bounds the kinds of things that are noted: words of a file may be in them.
const maxNotes = 1000

// note counts something that could not be taken as it was.
func (c *Cell) note(words string) {
	if c.Notes == nil {
		c.Notes = make(map[string]int)
	}
	if _, known := c.Notes[words]; !known && len(c.Notes) >= maxNotes {
		words = "things of more kinds than the 1,000 that are told one by one"
	}
	c.Notes[words]++
}

// Machine is one machine.
type Machine struct {
	Name   string
	Labels map[string]string
	Spec   *borgpb.MachineSpec
	// Down: it did not answer. Draining: it was being emptied.
	Down, Draining bool
}

// Job is one job with the tasks that live at that moment. They are numbered anew
// from 0, those that need the same side by side.
type Job struct {
	User, Name string
	Labels     map[string]string
	Spec       *borgpb.JobSpec
	// Machines has the name of each task's machine, by index; empty: it waits.
	Machines []string
	// Allocs has the name of each task's alloc, by index, of a job that runs in an
	// alloc set.
	Allocs []string
	// Ports has the ports granted to each task, by index; nil: nobody recorded them.
	Ports [][]uint32
}

// enter puts the last task into an alloc; into one that nobody names it cannot go, so
// that it waits.
func (j *Job) enter(alloc string) {
	last := len(j.Machines) - 1
	if j.Machines[last] == "" || alloc == "" {
		j.Machines[last], alloc = "", ""
	}
	j.Allocs = append(j.Allocs, alloc)
}

// AllocSet is a set of places on machines, in which tasks of jobs run.
type AllocSet struct {
	User, Name string
	Spec       *borgpb.AllocSetSpec
	// Machines has the name of each alloc's machine, by index; empty: it waits.
	Machines []string
}

// Op submits the alloc set as the cell itself: what was recorded is not asked whether
// a user of ours may submit it.
func (s AllocSet) Op() *borgpb.Op {
	spec, err := proto.Marshal(s.Spec)
	if err != nil {
		panic(fmt.Sprintf("alloc set %s/%s: %v", s.User, s.Name, err))
	}
	return &borgpb.Op{
		Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: s.User, Name: s.Name, Spec: spec}},
	}
}

// Ops makes the cell: the machines first, then alloc sets and jobs, all of whose tasks wait.
func (c *Cell) Ops() iter.Seq[*borgpb.Op] {
	return func(yield func(*borgpb.Op) bool) {
		for _, m := range c.Machines {
			if !yield(addMachine(m)) {
				return
			}
		}
		for _, s := range c.AllocSets {
			if !yield(s.Op()) {
				return
			}
		}
		for _, j := range c.Jobs {
			if !yield(j.Op()) {
				return
			}
		}
	}
}

func addMachine(m Machine) *borgpb.Op {
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: "trace", Role: borgpb.Role_ROLE_USER},
		Op:        &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: m.Name, Labels: m.Labels, Spec: m.Spec}},
	}
}

// Op submits the job, as that of an alloc set does.
func (j Job) Op() *borgpb.Op {
	spec, err := proto.Marshal(j.Spec)
	if err != nil {
		// Text was checked when it was read.
		panic(fmt.Sprintf("job %s/%s: %v", j.User, j.Name, err))
	}
	return &borgpb.Op{
		Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: j.User, Name: j.Name, Labels: j.Labels, Spec: spec}},
	}
}

// Largest is what a machine has that is the largest by both. Google's traces give
// all amounts as shares of it, CPU and memory each by itself.
type Largest struct {
	CPUMilli int64 `json:"largestCpuMilli"`
	MemBytes int64 `json:"largestMemBytes"`
}

// defaultLargest is what we take it to have where nobody says.
var defaultLargest = Largest{CPUMilli: 64_000, MemBytes: 256 << 30}

// A share is rounded up where it is asked for and down where it is offered, but what
// is a whole number save for the error of its division is that number.
func asked(share float64, largest int64) int64 {
	return int64(math.Ceil(whole(share * float64(largest))))
}

func offered(share float64, largest int64) int64 { return int64(whole(share * float64(largest))) }

func whole(amount float64) float64 {
	if near := math.Round(amount); math.Abs(amount-near) <= amount*0x1p-51 {
		return near
	}
	return amount
}

// placeholder is what tasks of a trace run, as nobody knows what they ran.
var placeholder = []string{"/bin/true"}
