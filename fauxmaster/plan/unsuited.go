package plan

import (
	"slices"
	"strconv"

	"borg/borgmaster/cell"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
)

// daemonsLast is 1 for a daemon job, which comes after all others.
func daemonsLast(j *trace.Job) int {
	if j.Spec.Kind == borgpb.JobKind_JOB_KIND_DAEMON {
		return 1
	}
	return 0
}

// freeDaemons takes away the constraints of a daemon job that a machine where one runs does
// not meet: it would have to leave.
func (m *maker) freeDaemons() {
	attributes := make(map[string]map[string]string)
	for _, o := range m.from.Machines {
		attributes[o.Name] = o.Spec.GetAttributes()
	}
	for _, j := range m.from.Jobs {
		if j.Spec.Kind != borgpb.JobKind_JOB_KIND_DAEMON {
			continue
		}
		for _, name := range j.Machines {
			has, here := attributes[name]
			j.Spec.Task.Constraints = slices.DeleteFunc(j.Spec.Task.Constraints, func(k *borgpb.Constraint) bool {
				v, ok := has[k.Key]
				if !here || k.Soft || cell.Meets(k, v, ok) {
					return false
				}
				m.made.Notes["constraints of daemons that a machine where one runs does not meet: they are left out"]++
				return true
			})
		}
	}
}

// constraints are those of a task of a spec.
func constraints(spec *borgpb.JobSpec, index int) []*borgpb.Constraint {
	all := spec.Task.GetConstraints()
	for _, o := range spec.Overrides {
		if o.First <= uint32(index) && uint32(index) <= o.Last && len(o.Spec.Constraints) > 0 {
			all = o.Spec.Constraints
		}
	}
	return all
}

// raiseMost raises the limits per value of an attribute to what really had one value.
func raiseMost(machines []string, attributes map[string]map[string]string, most map[string]uint32) (raised bool) {
	for key := range most {
		in := make(map[string]uint32)
		for _, name := range machines {
			v, ok := attributes[name][key]
			if !ok {
				continue
			}
			in[v]++
			if in[v] > most[key] {
				most[key], raised = in[v], true
			}
		}
	}
	return raised
}

// unsuited is a place on a machine that does not meet the constraints.
type unsuited struct {
	at     *borgpb.Assignment
	wanted []*borgpb.Constraint
}

// placeAnyhow places also where the constraints do not hold: it did run there. Others
// ignore a label that changes later, as the cell ignores an attribute.
func (p *placer) placeAnyhow(a *borgpb.Assignment, wanted []*borgpb.Constraint) {
	m := p.cell.Machine(a.Machine)
	if m == nil {
		p.place(a)
		return
	}
	for _, k := range wanted {
		if !k.Soft && !cell.Holds(k, m) {
			p.unsuited = append(p.unsuited, unsuited{a, wanted})
			return
		}
	}
	p.place(a)
}

// finish places what is left. A machine has the attributes that are wanted while it is
// given such a task.
func (p *placer) finish() {
	p.flush()
	for _, u := range p.unsuited {
		m := p.cell.Machine(u.at.Machine)
		set, back := suiting(m, u.wanted)
		refused := p.refused
		p.Do(set)
		p.place(u.at)
		p.flush()
		p.Do(back)
		if p.refused == refused {
			p.made.Unsuited++
		}
	}
	p.unsuited = nil
}

// suiting returns the ops that make a machine meet constraints, and that undo it.
func suiting(m *cell.Machine, wanted []*borgpb.Constraint) (set, back *borgpb.Op) {
	give := &borgpb.SetMachine{Name: m.Name(), SetAttributes: make(map[string]string)}
	undo := &borgpb.SetMachine{Name: m.Name(), SetAttributes: make(map[string]string)}
	for _, k := range wanted {
		if k.Soft || cell.Holds(k, m) {
			continue
		}
		if v, ok := m.Attribute(k.Key); ok {
			undo.SetAttributes[k.Key] = v
		} else {
			undo.RemoveAttributes = append(undo.RemoveAttributes, k.Key)
		}
		if v, ok := meeting(k.Key, wanted); ok {
			give.SetAttributes[k.Key] = v
		} else {
			give.RemoveAttributes = append(give.RemoveAttributes, k.Key)
		}
	}
	return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: give}}, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: undo}}
}

// meeting finds a value of an attribute that meets all hard constraints on it; ok is false
// if only its absence does, or nothing.
func meeting(key string, wanted []*borgpb.Constraint) (value string, ok bool) {
	candidates := []string{"any"}
	for _, k := range wanted {
		if k.Key != key {
			continue
		}
		candidates = append(candidates, k.Value, k.Value+"~")
		if n, err := strconv.ParseInt(k.Value, 10, 64); err == nil {
			candidates = append(candidates, strconv.FormatInt(n-1, 10), strconv.FormatInt(n+1, 10))
		}
	}
	for _, v := range candidates {
		if !slices.ContainsFunc(wanted, func(k *borgpb.Constraint) bool { return k.Key == key && !k.Soft && !cell.Meets(k, v, true) }) {
			return v, true
		}
	}
	return "", false
}
