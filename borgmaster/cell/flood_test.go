package cell

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// floodBudgets are small enough that a user meets each soon.
var floodBudgets = StateUse{
	measureTasks: 2_000, measureAllocs: 2_000, measureObjects: 120, measureCronJobs: 20, measureBytes: 2 << 20,
	measureDeadObjects: 60, measureDeadTasks: 1_000, measureDeadBytes: 1 << 20, measureFiles: 40, measureFileBytes: 1 << 20,
	measureSecrets: 20, measureVolumes: 100, measureKeptDisk: 1 << 30, measureRequests: 200,
}

// floodSlack is what the heap of a cell may grow beyond what is stated: what the allocator
// rounds up, specs that are remembered to be read once, and lists with room for more.
const floodSlack = 1 << 20

// flood is a cell and a user who sends it as much as it takes.
type flood struct {
	*testLog
	names int
	last  *borgpb.Refusal
}

func newFlood(t *testing.T) *flood {
	f := &flood{testLog: budgetLog(t)}
	f.do(addMachine("m1", 1_000_000, 1<<40))
	for _, m := range Measures {
		f.do(stateBudgetOp("u", m, floodBudgets[m]))
	}
	return f
}

// send applies an op of the user with a new request id; false: it was refused.
func (f *flood) send(op *borgpb.Op) bool {
	f.names++
	if op.RequestId == "" {
		op.RequestId = fmt.Sprintf("%064d", f.names)
	}
	if op.Principal == nil {
		op.Principal = &borgpb.Principal{User: "u"}
	}
	// Marks of forgotten requests are times: each request has its own.
	f.wallNs++
	op.RequestWallNs = f.wallNs
	res, _ := f.apply(op)
	f.last = res[0].Refusal
	return f.last == nil
}

func (f *flood) fresh() string {
	f.names++
	return fmt.Sprint("j", f.names)
}

// job is the name of a new job of the user.
func (f *flood) job(change func(*borgpb.JobSpec)) string {
	name, spec := f.fresh(), service(1, 0, 1, 1)
	change(spec)
	f.send(submitBy(f.t, "u", name, spec))
	return name
}

func (f *flood) set() string {
	name := f.fresh()
	f.send(submitSetBy(f.t, "u", name, 1))
	return name
}

// running is a job with a task that runs.
func (f *flood) running() string {
	name := f.job(func(*borgpb.JobSpec) {})
	if j := f.c.Job(JobKey{"u", name}); j != nil {
		f.apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: j.uid.String(), Machine: "m1", Version: 1}}}}})
	}
	return name
}

func plainJob(*borgpb.JobSpec) {}

// floodBases makes, of each op that a user without capabilities may send, one that is about
// something of its own. The spec in it, if it has one, is spec.
var floodBases = map[protoreflect.Name]func(f *flood, spec []byte) *borgpb.Op{
	"submit_job": func(f *flood, spec []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: f.fresh(), Spec: spec}}}
	},
	"update_job": func(f *flood, spec []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: f.job(plainJob), Spec: spec}}}
	},
	"kill_job": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: f.running()}}}
	},
	"resize_job": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "u", Name: f.job(plainJob), Tasks: 20}}}
	},
	"control_update": func(f *flood, _ []byte) *borgpb.Op {
		name := f.running()
		f.send(by("u", updateJob(f.t, name, service(1, 0, 2, 1))))
		return &borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: "u", Name: name, Verb: borgpb.UpdateVerb_UPDATE_VERB_ABORT}}}
	},
	"judge_gate": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_JudgeGate{JudgeGate: &borgpb.JudgeGate{User: "u", Name: f.running(), Verdict: borgpb.GateVerdict_GATE_VERDICT_FAIL}}}
	},
	"submit_alloc_set": func(f *flood, spec []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "u", Name: f.fresh(), Spec: spec}}}
	},
	"update_alloc_set": func(f *flood, spec []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{User: "u", Name: f.set(), Spec: spec}}}
	},
	"kill_alloc_set": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "u", Name: f.set()}}}
	},
	"resize_alloc_set": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{User: "u", Name: f.set(), Allocs: 20}}}
	},
	"set_labels": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{Kind: borgpb.Labelled_LABELLED_JOB, User: "u", Name: f.job(plainJob), SetLabels: map[string]string{"a": "b"}}}}
	},
	"write_file": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "u", Name: f.fresh()}}}
	},
	"delete_file": func(f *flood, _ []byte) *borgpb.Op {
		name := f.fresh()
		f.send(&borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "u", Name: name}}})
		return &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: "u", Name: name}}}
	},
	"set_secret": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetSecret{SetSecret: &borgpb.SetSecret{User: "u", Name: f.fresh()}}}
	},
	"delete_secret": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: "u", Name: f.fresh()}}}
	},
	"set_task_note": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: &borgpb.SetTaskNote{User: "u", Job: f.running(), Attempt: 1, Text: "x"}}}
	},
	"fire_cron": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: &borgpb.FireCron{User: "u", Name: f.job(cronJob)}}}
	},
	"suspend_cron": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SuspendCron{SuspendCron: &borgpb.SuspendCron{User: "u", Name: f.job(cronJob), Suspend: true}}}
	},
	"quarantine_task": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_QuarantineTask{QuarantineTask: &borgpb.QuarantineTask{User: "u", Name: f.running()}}}
	},
	"release_task": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_ReleaseTask{ReleaseTask: &borgpb.ReleaseTask{User: "u", Name: f.running()}}}
	},
	"delete_volume": func(f *flood, _ []byte) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{}}}
	},
}

func cronJob(s *borgpb.JobSpec) {
	s.Kind, s.Cron = borgpb.JobKind_JOB_KIND_CRON, &borgpb.CronSpec{Schedule: "0 3 * * *", TimeZone: "UTC"}
}

// fieldPath is a field that can hold much, by the way to it from an op's message or its spec.
type fieldPath []protoreflect.FieldDescriptor

func (p fieldPath) String() string {
	var names []string
	for _, fd := range p {
		names = append(names, string(fd.Name()))
	}
	return strings.Join(names, ".")
}

// placesIn are all places of a type of message.
func placesIn(md protoreflect.MessageDescriptor, way fieldPath) (all []fieldPath) {
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		here := append(slices.Clip(way), fd)
		if fd.IsMap() || fd.IsList() || fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind {
			all = append(all, here)
		}
		if fd.Message() != nil && !fd.IsMap() {
			all = append(all, placesIn(fd.Message(), here)...)
		}
	}
	return all
}

// shapes in which a place is filled, and what texts look like that fill it.
var (
	floodShapes = []string{"long", "empty", "short"}
	floodStyles = []string{"a", "/a", "u/a"}
)

// floodSizes are tried from the largest on: what the door lets in, and what bounds leave. The
// door lets in more bytes than elements.
func floodSizes(shape string) []int {
	if shape == "long" {
		return []int{700_000, 250_000, 60_000, 4_000, 1_000, 250, 60, 16}
	}
	return []int{MaxOpElements, 32_000, 10_000, 4_000, 1_000, 60, 30, 8, 3}
}

// fill puts n of a shape into the place. False: the place has no such shape.
func (p fieldPath) fill(m protoreflect.Message, shape, style string, n int) bool {
	for _, fd := range p[:len(p)-1] {
		if fd.IsList() {
			e := m.Mutable(fd).List().AppendMutable().Message()
			fillIn(e, style, 1)
			m = e
			continue
		}
		if m = m.Mutable(fd).Message(); len(p) <= 2 {
			fillIn(m, style, 1)
		}
	}
	fd := p[len(p)-1]
	long := style + strings.Repeat("a", n)
	text := func(i int) string {
		if shape == "empty" {
			return ""
		}
		return style + strconv.FormatInt(int64(i), 36)
	}
	switch {
	case fd.IsMap():
		entries := m.Mutable(fd).Map()
		if shape == "long" {
			if v := floodValue(fd.MapValue(), long); v.IsValid() {
				entries.Set(protoreflect.ValueOfString("a").MapKey(), v)
				return true
			}
			return false
		}
		for i := range n {
			v := floodValue(fd.MapValue(), text(i))
			if !v.IsValid() {
				return false
			}
			entries.Set(protoreflect.ValueOfString("a"+strconv.FormatInt(int64(i), 36)).MapKey(), v)
		}
	case fd.IsList():
		return fillList(m.Mutable(fd).List(), fd, shape, style, n, text)
	default:
		if shape != "long" {
			return false
		}
		m.Set(fd, floodValue(fd, long))
	}
	return true
}

// fillList is fill of a list.
func fillList(list protoreflect.List, fd protoreflect.FieldDescriptor, shape, style string, n int, text func(int) string) bool {
	switch {
	case fd.Message() != nil && shape == "long":
		return false
	case fd.Message() != nil:
		for i := range n {
			if e := list.AppendMutable().Message(); shape == "short" {
				fillIn(e, style, i)
			}
		}
		return true
	case shape == "long":
		v := floodValue(fd, style+strings.Repeat("a", n))
		if v.IsValid() {
			list.Append(v)
		}
		return v.IsValid()
	}
	for i := range n {
		v := floodValue(fd, text(i))
		if !v.IsValid() {
			return false
		}
		list.Append(v)
	}
	return true
}

// floodValue is a value of a field; invalid if the field holds another kind of values.
func floodValue(of protoreflect.FieldDescriptor, text string) protoreflect.Value {
	switch of.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(text))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	}
	return protoreflect.Value{}
}

// fillIn gives a message what most checks want of one: names that differ, some number, the
// first value of an enum, and what it consists of.
func fillIn(m protoreflect.Message, style string, i int) {
	fields := m.Descriptor().Fields()
	for k := range fields.Len() {
		fd := fields.Get(k)
		if fd.IsList() || fd.IsMap() || m.Has(fd) {
			continue
		}
		switch name := string(fd.Name()); {
		case fd.Kind() == protoreflect.StringKind && (strings.Contains(name, "path") || name == "source"):
			m.Set(fd, protoreflect.ValueOfString("/a"+strconv.FormatInt(int64(i), 36)))
		case fd.Kind() == protoreflect.StringKind && name == "key" || name == "name" || name == "path":
			m.Set(fd, protoreflect.ValueOfString("a"+strconv.FormatInt(int64(i), 36)))
		case fd.Kind() == protoreflect.EnumKind:
			m.Set(fd, protoreflect.ValueOfEnum(1))
		case fd.Kind() == protoreflect.Uint32Kind && (name == "first" || name == "last"):
			m.Set(fd, protoreflect.ValueOfUint32(uint32(i)))
		case name == "disk_bytes":
			m.Set(fd, protoreflect.ValueOfInt64(1<<20))
		case fd.Message() != nil && name == "spec":
			m.Mutable(fd)
		}
	}
}

// floodCase is one way to fill a cell.
type floodCase struct {
	op protoreflect.Name
	// Of the op itself, its message, or the spec in it.
	in    string
	place fieldPath
	shape string
}

func (k floodCase) String() string {
	return fmt.Sprintf("%s %s %v %s", k.op, k.in, k.place, k.shape)
}

// make returns an op of the case; nil: there is none of this shape.
func (k floodCase) make(f *flood, style string, n int) *borgpb.Op {
	var spec proto.Message
	switch k.op {
	case "submit_job", "update_job":
		s := service(1, 0, 1, 1)
		s.Task.Resources.DiskBytes = 1 << 30
		spec = s
	case "submit_alloc_set", "update_alloc_set":
		spec = &borgpb.AllocSetSpec{Allocs: 1, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1, DiskBytes: 1 << 30}}
	}
	var data []byte
	if spec != nil {
		if k.in == "spec" && !k.place.fill(spec.ProtoReflect(), k.shape, style, n) {
			return nil
		}
		data = marshal(f.t, spec)
	}
	op := floodBases[k.op](f, data)
	m := op.ProtoReflect()
	switch k.in {
	case "op":
		if !k.place.fill(m, k.shape, style, n) {
			return nil
		}
	case "message":
		inner := m.Mutable(m.WhichOneof(m.Descriptor().Oneofs().ByName("op"))).Message()
		if !k.place.fill(inner, k.shape, style, n) {
			return nil
		}
	}
	return op
}

// floodCases are all of them.
func floodCases(t *testing.T) (all []floodCase) {
	op := new(borgpb.Op).ProtoReflect().Descriptor()
	kinds := op.Oneofs().ByName("op").Fields()
	var own []fieldPath
	for _, p := range placesIn(op, nil) {
		if p[0].ContainingOneof() == nil && p[0].Name() != "principal" {
			own = append(own, p)
		}
	}
	f := newFlood(t)
	for i := range kinds.Len() {
		fd := kinds.Get(i)
		if floodBases[fd.Name()] == nil {
			empty := &borgpb.Op{}
			empty.ProtoReflect().Mutable(fd)
			f.send(empty)
			if f.last.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
				t.Errorf("a user may send %s (%v), and the test does not know how: add it to floodBases", fd.Name(), f.last)
			}
			continue
		}
		add := func(in string, places []fieldPath) {
			for _, p := range places {
				for _, shape := range floodShapes {
					all = append(all, floodCase{fd.Name(), in, p, shape})
				}
			}
		}
		add("op", own)
		add("message", placesIn(fd.Message(), nil))
		switch fd.Name() {
		case "submit_job", "update_job":
			add("spec", placesIn(new(borgpb.JobSpec).ProtoReflect().Descriptor(), nil))
		case "submit_alloc_set", "update_alloc_set":
			add("spec", placesIn(new(borgpb.AllocSetSpec).ProtoReflect().Descriptor(), nil))
		}
	}
	return all
}

// largest finds the style and the size with which the cell takes an op of the case.
func (k floodCase) largest(f *flood) (style string, n int, ok bool) {
	for _, size := range floodSizes(k.shape) {
		for _, style := range floodStyles {
			op := k.make(f, style, size)
			if op == nil || proto.Size(op) > 768<<10 {
				continue
			}
			if f.send(op) {
				return style, size, true
			}
		}
	}
	return "", 0, false
}

// run fills a cell until it takes no more, and compares what it holds with what is stated.
func (k floodCase) run(t *testing.T) (accepted int) {
	if k.make(newFlood(t), "a", 1) == nil {
		return 0
	}
	style, n, ok := k.largest(newFlood(t))
	if !ok {
		return 0
	}
	f := newFlood(t)
	const most = 300
	before := heapInUse()
	refused := 0
	for range most {
		if f.send(k.make(f, style, n)) {
			accepted, refused = accepted+1, 0
		} else if refused++; refused == 3 {
			break
		}
	}
	look := func(what string) {
		t.Helper()
		// What the last entry changed is remembered until the next one.
		f.apply()
		f.c.Flush(func(_, _ []byte) {})
		grown := heapInUse() - before
		held := f.c.StateUseOf("u")
		for _, m := range Measures {
			if held[m] > floodBudgets[m] {
				t.Errorf("%v: %s: %d %s are held, at most %d", k, what, held[m], measures[m].what, floodBudgets[m])
			}
		}
		if stated := StateMemory(&held) + floodSlack; grown > stated {
			t.Errorf("%v, %d each, %d times: %s: the cell grew by %d KiB, and %v is stated to take at most %d KiB", k, n, accepted, what, grown>>10, held, stated>>10)
		}
	}
	look("full")
	for _, j := range slices.Collect(f.c.Jobs()) {
		f.apply(by("root", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: j.key.Name}}}))
	}
	look("dead")
	runtime.KeepAlive(f)
	return accepted
}

// TestFloodOfOps: of each op that a user without capabilities may send, each field that can
// hold much is filled to the most that the cell takes, in each of a few shapes, under fresh
// names until the cell refuses. What the cell grows by is within what docs/limits.md states
// for what the user holds then. With -short some of the cases are run, by the seed:
// BORG_FLOOD_SEED=N repeats those, BORG_FLOOD=TEXT runs those with that text in their names.
func TestFloodOfOps(t *testing.T) {
	all := floodCases(t)
	if len(all) < 300 {
		t.Errorf("only %d cases", len(all))
	}
	seed := rand.Uint64()
	if s := os.Getenv("BORG_FLOOD_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("BORG_FLOOD_SEED=%d", seed)
	ran, took := 0, 0
	for _, k := range all {
		h := fnv.New64a()
		fmt.Fprint(h, seed, k)
		if only := os.Getenv("BORG_FLOOD"); only != "" && !strings.Contains(k.String(), only) ||
			only == "" && testing.Short() && h.Sum64()%12 != 0 {
			continue
		}
		ran++
		if k.run(t) > 0 {
			took++
		}
	}
	t.Logf("%d of %d cases were run, of which the cell took %d", ran, len(all), took)
}
