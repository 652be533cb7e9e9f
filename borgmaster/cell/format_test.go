package cell

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// TestFormats lists everything that can be in the log, with the format in which
// it began. What is added to a message of the log must be entered into
// sinceFormat, unless the format that it is added to has never been used; then
// rewrite the list with -rewrite.
func TestFormats(t *testing.T) {
	datadriven.RunTest(t, "testdata/formats.txt", func(t *testing.T, d *datadriven.TestData) string {
		seen := make(map[protoreflect.FullName]bool)
		var lines []string
		var walk func(m protoreflect.MessageDescriptor)
		walk = func(m protoreflect.MessageDescriptor) {
			if seen[m.FullName()] {
				return
			}
			seen[m.FullName()] = true
			for i := range m.Fields().Len() {
				f := m.Fields().Get(i)
				if !m.IsMapEntry() {
					lines = append(lines, fmt.Sprintf("%d %s = %d", max(sinceFormat[f.FullName()], 1), f.FullName(), f.Number()))
				}
				if f.Message() != nil {
					walk(f.Message())
				}
				if e := f.Enum(); e != nil && !seen[e.FullName()] {
					seen[e.FullName()] = true
					for i := range e.Values().Len() {
						v := e.Values().Get(i)
						lines = append(lines, fmt.Sprintf("%d %s %s = %d", max(sinceFormat[v.FullName()], 1), e.FullName(), v.Name(), v.Number()))
					}
				}
			}
		}
		for _, m := range []protoreflect.ProtoMessage{&borgpb.Entry{}, &borgpb.Op{}, &borgpb.JobSpec{}, &borgpb.AllocSetSpec{}} {
			walk(m.ProtoReflect().Descriptor())
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n") + "\n"
	})
}

// TestUnknownIsMalformed wants what a format does not know refused at any
// depth.
func TestUnknownIsMalformed(t *testing.T) {
	odd := []byte{0xF8, 0x07, 0x01} // field 127
	unknownIn := func(m protoreflect.ProtoMessage) { m.ProtoReflect().SetUnknown(odd) }
	l := newTestLog(t)
	l.do(addMachine("m1", 1000, 1<<30))
	for name, op := range map[string]func() *borgpb.Op{
		"op": func() *borgpb.Op {
			op := addMachine("m2", 1, 1)
			unknownIn(op)
			return op
		},
		"capacity": func() *borgpb.Op {
			op := addMachine("m2", 1, 1)
			unknownIn(op.GetAddMachine().Spec.Capacity)
			return op
		},
		"enum": func() *borgpb.Op {
			op := addMachine("m2", 1, 1)
			op.Principal = &borgpb.Principal{Role: 99}
			return op
		},
		"spec": func() *borgpb.Op {
			s := service(1, 1, 1, 1)
			unknownIn(s.Task.Resources)
			return submitJob(t, "j", s)
		},
		"enum in list": func() *borgpb.Op {
			s := service(1, 1, 1, 1)
			s.Task.Constraints = []*borgpb.Constraint{{Key: "k", Relation: 55}}
			return submitJob(t, "j", s)
		},
		"assignment": func() *borgpb.Op {
			a := &borgpb.Assignment{}
			unknownIn(a)
			return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{a}}}}
		},
		"victim": func() *borgpb.Op {
			v := &borgpb.Victim{}
			unknownIn(v)
			return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Victims: []*borgpb.Victim{v}}}}}}
		},
		"exit": func() *borgpb.Op {
			e := &borgpb.Exit{}
			unknownIn(e)
			return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{
				{Machine: "m1", Tasks: []*borgpb.TaskReport{{Exit: e}}}}}}}
		},
		"no op": func() *borgpb.Op { return &borgpb.Op{RequestId: "x"} },
	} {
		res, _ := l.apply(op())
		if k := res[0].Refusal.GetKind(); k != borgpb.RefusalKind_REFUSAL_KIND_MALFORMED {
			t.Errorf("%s: got %v, want MALFORMED", name, res[0])
		}
	}
}

// TestLimits wants each limit to hold.
func TestLimits(t *testing.T) {
	long := strings.Repeat("x", 300)
	many := func(n int) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf("p%d", i))
		}
		return out
	}
	for name, change := range map[string]func(*borgpb.JobSpec){
		"spec.tasks":                    func(s *borgpb.JobSpec) { s.Tasks = 0 },
		"spec.tasks ":                   func(s *borgpb.JobSpec) { s.Tasks = maxTasksPerJob + 1 },
		"spec.priority":                 func(s *borgpb.JobSpec) { s.Priority = -1 },
		"spec.kind":                     func(s *borgpb.JobSpec) { s.Kind = borgpb.JobKind_JOB_KIND_CRON },
		"spec.cron":                     func(s *borgpb.JobSpec) { s.Cron = &borgpb.CronSpec{} },
		"spec.task":                     func(s *borgpb.JobSpec) { s.Task = nil },
		"spec.gang":                     func(s *borgpb.JobSpec) { s.Gang, s.Tasks = true, maxGangTasks+1 },
		"spec.max_failures":             func(s *borgpb.JobSpec) { s.MaxFailures = 1 << 31 },
		"spec.alloc_set":                func(s *borgpb.JobSpec) { s.AllocSet = "nobody" },
		"spec.parent":                   func(s *borgpb.JobSpec) { s.Parent = "u/j" },
		"spec.start_after":              func(s *borgpb.JobSpec) { s.StartAfter = []string{"u/j"} },
		"spec.scheduler":                func(s *borgpb.JobSpec) { s.Scheduler = "A B" },
		"spec.overrides":                func(s *borgpb.JobSpec) { s.Overrides = []*borgpb.TaskOverride{{First: 2, Last: 1}} },
		"spec.extensions":               func(s *borgpb.JobSpec) { s.Extensions = map[string][]byte{"k": make([]byte, maxExtensionBytes)} },
		"spec.task.resources.cpu_milli": func(s *borgpb.JobSpec) { s.Task.Resources.CpuMilli = -1 },
		"spec.task.resources.mem_bytes": func(s *borgpb.JobSpec) { s.Task.Resources.MemBytes = 1<<63 - 1 },
		"spec.task.resources.ports":     func(s *borgpb.JobSpec) { s.Task.Resources.Ports = 2 },
		"spec.task.resources.devices":   func(s *borgpb.JobSpec) { s.Task.Resources.Devices = map[string]int64{"gpu": -1} },
		"spec.task.ports":               func(s *borgpb.JobSpec) { s.Task.Ports = many(maxPorts + 1) },
		"spec.task.ports ":              func(s *borgpb.JobSpec) { s.Task.Ports = []string{"a", "a"} },
		"spec.task.env":                 func(s *borgpb.JobSpec) { s.Task.Env = map[string]string{"A=B": "c"} },
		"spec.task.args":                func(s *borgpb.JobSpec) { s.Task.Args = []string{"a\x00"} },
		"spec.task.cwd":                 func(s *borgpb.JobSpec) { s.Task.Cwd = "here" },
		"spec.task.rootfs":              func(s *borgpb.JobSpec) { s.Task.Rootfs = "there" },
		"spec.task.mounts":              func(s *borgpb.JobSpec) { s.Task.Mounts = []*borgpb.Mount{{Source: "x", Path: "/y"}} },
		"spec.task.packages":            func(s *borgpb.JobSpec) { s.Task.Packages = []*borgpb.Package{{Path: "/y"}} },
		"spec.task.secrets":             func(s *borgpb.JobSpec) { s.Task.Secrets = many(maxSecrets + 1) },
		"spec.task.grace_ns":            func(s *borgpb.JobSpec) { s.Task.GraceNs = -1 },
		"spec.task.health.period_ns":    func(s *borgpb.JobSpec) { s.Task.Health = &borgpb.HealthCheck{PeriodNs: -1} },
		"spec.task.constraints":         func(s *borgpb.JobSpec) { s.Task.Constraints = []*borgpb.Constraint{{Key: long, Relation: 1}} },
		"spec.task.constraints ": func(s *borgpb.JobSpec) {
			s.Task.Constraints = []*borgpb.Constraint{{Key: "k", Relation: 3, Value: "six"}}
		},
		"spec.task.tolerations":  func(s *borgpb.JobSpec) { s.Task.Tolerations = []*borgpb.Toleration{{Key: "k", ForgivenessNs: -1}} },
		"spec.update.batch_size": func(s *borgpb.JobSpec) { s.Update = &borgpb.UpdatePolicy{BatchSize: 1 << 30} },
		"spec.overrides.resources.mem_bytes": func(s *borgpb.JobSpec) {
			s.Overrides = []*borgpb.TaskOverride{{First: 5, Last: 9, Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{MemBytes: -1}}}}
		},
		"spec.overrides ": func(s *borgpb.JobSpec) {
			for i := range uint32(maxOverrides) {
				s.Overrides = append(s.Overrides, &borgpb.TaskOverride{First: i, Last: 5000 - i, Spec: &borgpb.TaskSpec{Cwd: "/x"}})
			}
		},
		"spec.overrides  ": func(s *borgpb.JobSpec) {
			s.Task.Args = make([]string, 30_000)
			for i := range uint32(100) {
				s.Overrides = append(s.Overrides, &borgpb.TaskOverride{First: i, Last: i, Spec: &borgpb.TaskSpec{Cwd: "/x"}})
			}
		},
		"spec ":            func(s *borgpb.JobSpec) { s.Task.Args = make([]string, maxSpecElements) },
		"spec.extensions ": func(s *borgpb.JobSpec) { s.Extensions = numbered[[]byte](maxExtensions + 1) },
		"spec.task.env ":   func(s *borgpb.JobSpec) { s.Task.Env = numbered[string](maxEnv + 1) },
		"spec.overrides.env": func(s *borgpb.JobSpec) {
			s.Task.Env = numbered[string](maxEnv)
			s.Overrides = []*borgpb.TaskOverride{{First: 5, Last: 9, Spec: &borgpb.TaskSpec{Env: map[string]string{"B": ""}}}}
		},
		"spec": func(s *borgpb.JobSpec) { s.Task.Args = []string{strings.Repeat("x", MaxSpecBytes)} },
	} {
		l := newTestLog(t)
		spec := service(1, 100, 1, 1)
		change(spec)
		res, _ := l.apply(submitJob(t, "j", spec))
		r := res[0].Refusal
		if r == nil || r.Field != strings.TrimSpace(name) || r.Object != "u/j" {
			t.Errorf("%s: got %v", name, res[0])
		}
		if l.c.NumJobs() != 0 {
			t.Errorf("%s: there is a job", name)
		}
	}
}

// TestOverrides wants the runs of indices merged in order, maps key by key.
func TestOverrides(t *testing.T) {
	s := service(10, 100, 100, 1)
	s.Task.Args, s.Task.Env = []string{"base"}, map[string]string{"A": "1", "B": "2"}
	s.Overrides = []*borgpb.TaskOverride{
		{First: 2, Last: 5, Spec: &borgpb.TaskSpec{Args: []string{"mid"}, Env: map[string]string{"B": "3"}}},
		{First: 4, Last: 1<<32 - 1, Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 200, MemBytes: 1}, Env: map[string]string{"C": "4"}}},
	}
	l := newTestLog(t)
	l.do(submitJob(t, "j", s))
	j := l.c.Job(JobKey{"u", "j"})
	for _, c := range []struct {
		index uint32
		want  string
	}{
		{0, "[base] 100 map[A:1 B:2]"}, {1, "[base] 100 map[A:1 B:2]"}, {2, "[mid] 100 map[A:1 B:3]"}, {3, "[mid] 100 map[A:1 B:3]"},
		{4, "[mid] 200 map[A:1 B:3 C:4]"}, {5, "[mid] 200 map[A:1 B:3 C:4]"}, {6, "[base] 200 map[A:1 B:2 C:4]"}, {9, "[base] 200 map[A:1 B:2 C:4]"},
	} {
		n := j.Need(c.index)
		if got := fmt.Sprint(n.Task.Args, n.Resources.CPUMilli, n.Merged().Env); got != c.want {
			t.Errorf("task %d needs %s, want %s", c.index, got, c.want)
		}
	}
	if j.Need(0) != j.Need(1) || j.Need(2) == j.Need(4) {
		t.Error("tasks are alike that differ, or the other way round")
	}
}

// What is walked by hand of a submit is what the walk over all that is set finds: of each of
// its fields, with values and fields that nobody knows, in every format.
func TestSubmitIsWalkedByHand(t *testing.T) {
	odd := protowire.AppendVarint(protowire.AppendTag(nil, 50_000, protowire.VarintType), 1)
	told := make(map[bool]int)
	var compare func(op *borgpb.Op, m protoreflect.Message)
	judge := func(op *borgpb.Op, what protoreflect.FullName) {
		data := marshal(t, op)
		for format := uint32(1); format <= BuildFormat; format++ {
			_, r := decodeOp(data, format, new(submitOp))
			if want := knownMessage(op.ProtoReflect(), format) == nil; (r == nil) != want {
				t.Errorf("format %d, %s: got %v, known: %v", format, what, r, want)
			}
			told[r == nil]++
		}
	}
	compare = func(op *borgpb.Op, m protoreflect.Message) {
		d := m.Descriptor()
		m.SetUnknown(odd)
		judge(op, d.FullName())
		m.SetUnknown(nil)
		for i := range d.Fields().Len() {
			fd := d.Fields().Get(i)
			switch was := m.Get(fd); {
			case fd.ContainingOneof() != nil || fd.IsMap() || fd.IsList():
			case fd.Kind() == protoreflect.MessageKind:
				compare(op, m.Mutable(fd).Message())
			case fd.Kind() == protoreflect.EnumKind:
				for n := range protoreflect.EnumNumber(50) {
					m.Set(fd, protoreflect.ValueOfEnum(n))
					judge(op, fd.FullName())
				}
				m.Set(fd, was)
			case fd.Kind() == protoreflect.StringKind:
				m.Set(fd, protoreflect.ValueOfString("x"))
				judge(op, fd.FullName())
				m.Set(fd, was)
			}
		}
	}
	submit := &borgpb.SubmitJob{User: "u", Name: "j", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"a": "b"}}
	op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: submit}}
	compare(op, op.ProtoReflect())
	compare(op, submit.ProtoReflect())
	// What is a map is plain, as everything else of it.
	if l := looksOf["borg.SubmitJob"]; len(l.fields)+len(l.oneofs) != 0 {
		t.Errorf("SubmitJob has %d fields and %d oneofs to look at, and nobody does", len(l.fields), len(l.oneofs))
	}
	if told[true] == 0 || told[false] == 0 {
		t.Errorf("%d were known, %d were not", told[true], told[false])
	}
}

// numbered is a map with so many keys.
func numbered[V any](n int) map[string]V {
	m := make(map[string]V, n)
	for i := range n {
		var none V
		m[fmt.Sprint("A", i)] = none
	}
	return m
}
