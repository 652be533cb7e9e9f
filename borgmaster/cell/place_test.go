package cell

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestOverlay promises a placement in an overlay, and wants the answers about
// the next one to be the same as after it was really made.
func TestOverlay(t *testing.T) {
	r := newRand(9)
	compared, differ := 0, 0
	for round := range 20 {
		c := richCell(t, 300+20*round)
		l := &testLog{t: t, c: c, term: 1, cellNs: c.TimeNs(), wallNs: c.WallNs()}
		l.admitAll("u")
		for i := range 6 {
			s := service(4, 200, int64(500+r.IntN(2000)), 1<<28)
			s.MaxPerMachine, s.Task.Ports = uint32(r.IntN(3)), []string{"http"}
			s.Task.Tolerations = []*borgpb.Toleration{{Key: "dedicated"}, {Key: "old"}}
			l.do(submitJob(t, fmt.Sprintf("extra%d", i), s))
		}
		for range 20 {
			var list []*Task
			for j, i := range c.Pending() {
				// A gang is placed as a whole.
				if _, inside := j.AllocSet(); !inside && !j.Spec().Gang {
					list = append(list, j.rows[i])
				}
			}
			if first, next := pick(r, list), pick(r, list); first != next && next.job.Spec().MaxRunning == 0 {
				did, changed := comparePromise(l, r, first, next)
				compared += did
				differ += changed
			}
		}
	}
	t.Logf("%d compared, %d of them changed by the promise", compared, differ)
	if compared < 50 || differ < 10 {
		t.Errorf("only %d compared, %d of them changed by the promise", compared, differ)
	}
}

// comparePromise asks about next on a machine that is promised to first, makes
// the assignment, and asks again.
func comparePromise(l *testLog, r *rand.Rand, first, next *Task) (did, changed int) {
	c := l.c
	for _, m := range c.machineList {
		need := first.job.Need(first.index)
		p := &Placement{Job: first.job, Index: first.index, Machine: m, Ports: freePorts(m, len(need.Task.Ports), 0)}
		p.Devices = freeDevices(c, m, need)
		if c.Fit(p, nil) != FitOK || len(p.Ports) < len(need.Task.Ports) ||
			c.NumbersDevices() && len(p.Devices) < len(need.Resources.Devices) {
			continue
		}
		o := &Overlay{Limits: need.Resources, Reserved: need.Resources, Ports: p.Ports, Devices: p.Devices}
		if first.job == next.job {
			for kind := range o.InDomain {
				o.InDomain[kind] = 1
			}
		}
		q := &Placement{Job: next.job, Index: next.index, Machine: m,
			Ports: freePorts(m, len(next.job.Need(next.index).Task.Ports), r.IntN(2))}
		q.Devices = freeDevices(c, m, next.job.Need(next.index))
		promised, before := c.Fit(q, o), c.Fit(q, nil)
		res := l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{
			Uid: first.job.uid.String(), Index: first.index, LastAttempt: first.attempt, Machine: m.name, Ports: p.Ports, Devices: GrantsProto(p.Devices),
		}}}}})
		if first.cur == nil {
			l.t.Fatalf("%v was refused on %s although it fits: %v", first.ID(), m.name, res.Items)
		}
		if real := c.Fit(q, nil); real != promised {
			l.t.Errorf("with an overlay %v, after the assignment %v", promised, real)
		}
		if before != promised {
			changed = 1
		}
		return 1, changed
	}
	return 0, 0
}

// freeDevices are such as nobody has; nil: there are not enough, or they have no
// numbers yet.
func freeDevices(c *Cell, m *Machine, need *Need) []DeviceGrant {
	if !c.NumbersDevices() {
		return nil
	}
	q := m.DeviceRoom()
	return q.Choose(need.Resources.Devices)
}

func freePorts(m *Machine, n int, skip int) []uint32 {
	var out []uint32
	for p := uint32(m.portFirst); len(out) < n && p <= uint32(m.portLast); p++ {
		if _, used := slicesBinary(m.ports, p); !used {
			if skip--; skip < 0 {
				out = append(out, p)
			}
		}
	}
	return out
}

// TestConstraints goes through all relations.
func TestConstraints(t *testing.T) {
	m := &Machine{attributes: map[string]string{"arch": "x86", "kernel": "6", "odd": "six"}}
	for _, c := range []struct {
		words string
		r     borgpb.Relation
		want  bool
	}{
		{"arch x86", borgpb.Relation_RELATION_EQUAL, true},
		{"arch arm", borgpb.Relation_RELATION_EQUAL, false},
		{"none x86", borgpb.Relation_RELATION_EQUAL, false},
		{"arch x86", borgpb.Relation_RELATION_NOT_EQUAL, false},
		{"arch arm", borgpb.Relation_RELATION_NOT_EQUAL, true},
		{"none arm", borgpb.Relation_RELATION_NOT_EQUAL, true},
		{"kernel 7", borgpb.Relation_RELATION_LESS_THAN, true},
		{"kernel 6", borgpb.Relation_RELATION_LESS_THAN, false},
		{"kernel 10", borgpb.Relation_RELATION_LESS_THAN, true},
		{"kernel 5", borgpb.Relation_RELATION_GREATER_THAN, true},
		{"kernel -7", borgpb.Relation_RELATION_GREATER_THAN, true},
		{"kernel 6", borgpb.Relation_RELATION_GREATER_THAN, false},
		{"kernel 6", borgpb.Relation_RELATION_LESS_THAN_EQUAL, true},
		{"kernel 6", borgpb.Relation_RELATION_GREATER_THAN_EQUAL, true},
		{"odd 6", borgpb.Relation_RELATION_GREATER_THAN_EQUAL, false},
		{"none 6", borgpb.Relation_RELATION_LESS_THAN, false},
		{"arch ", borgpb.Relation_RELATION_PRESENT, true},
		{"none ", borgpb.Relation_RELATION_PRESENT, false},
		{"arch ", borgpb.Relation_RELATION_NOT_PRESENT, false},
		{"none ", borgpb.Relation_RELATION_NOT_PRESENT, true},
	} {
		key, value, _ := strings.Cut(c.words, " ")
		k := &borgpb.Constraint{Key: key, Relation: c.r, Value: value}
		if got := Holds(k, m); got != c.want {
			t.Errorf("Holds(%s) = %v, want %v", ConstraintWords(k), got, c.want)
		}
	}
}

// TestMachineLimits wants what is said of machines range-checked.
func TestMachineLimits(t *testing.T) {
	many := make(map[string]string)
	for i := range maxLabels + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for field, change := range map[string]func(*borgpb.AddMachine){
		"name":                    func(o *borgpb.AddMachine) { o.Name = "M 1" },
		"spec":                    func(o *borgpb.AddMachine) { o.Spec = nil },
		"spec.addr":               func(o *borgpb.AddMachine) { o.Spec.Addr = "" },
		"spec.capacity.mem_bytes": func(o *borgpb.AddMachine) { o.Spec.Capacity.MemBytes = -1 },
		"spec.attributes":         func(o *borgpb.AddMachine) { o.Spec.Attributes = many },
		"spec.port_first":         func(o *borgpb.AddMachine) { o.Spec.PortFirst, o.Spec.PortLast = 9, 8 },
		"spec.taints":             func(o *borgpb.AddMachine) { o.Spec.Taints = []*borgpb.Taint{{}} },
		"labels":                  func(o *borgpb.AddMachine) { o.Labels = many },
		"annotations": func(o *borgpb.AddMachine) {
			o.Annotations = map[string]string{"a": strings.Repeat("x", maxAnnotationBytes)}
		},
	} {
		l := newTestLog(t)
		op := addMachine("m1", 1000, 1<<30)
		change(op.GetAddMachine())
		res, _ := l.apply(op)
		if res[0].Refusal == nil || res[0].Refusal.Field != field {
			t.Errorf("%s: got %v", field, res[0])
		}
		if l.c.NumMachines() != 0 {
			t.Errorf("%s: there is a machine", field)
		}
	}
	l := newTestLog(t)
	l.do(addMachine("m1", 1000, 1<<30))
	for field, o := range map[string]*borgpb.SetMachine{
		"spec.attributes":    {SetAttributes: map[string]string{"": "x"}},
		"spec.port_first":    {PortLast: 9},
		"addr":               {Addr: strings.Repeat("x", maxAddrBytes+1)},
		"capacity.cpu_milli": {Capacity: &borgpb.Resources{CpuMilli: maxCPUMilli + 1}},
		"expect_version":     {ExpectVersion: 2},
	} {
		o.Name = "m1"
		res, _ := l.apply(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: o}})
		if res[0].Refusal == nil || res[0].Refusal.Field != field {
			t.Errorf("%s: got %v", field, res[0])
		}
	}
}
