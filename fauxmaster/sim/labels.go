package sim

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S32: objects have the labels that they were given and that their owners changed since,
// no label comes in that the policy of then does not allow, and none is refused that
// it does. What labels there are, and what rules, is followed here from the ops alone.

// labelModel is what the ops make of labels.
type labelModel struct {
	epoch  uint64
	policy *borgpb.LabelPolicy
	of     map[labelledObject]map[string]string
}

type labelledObject struct {
	kind borgpb.Labelled
	// "user/name", or the name of a machine.
	name string
}

// labelPolicies are those that the admin goes to and fro between.
var labelPolicies = []*borgpb.LabelPolicy{
	{},
	{Rules: []*borgpb.LabelRule{
		{Kinds: []borgpb.Labelled{borgpb.Labelled_LABELLED_JOB, borgpb.Labelled_LABELLED_ALLOC_SET}, Key: "team", DefaultValue: new("none")},
		{Kinds: []borgpb.Labelled{borgpb.Labelled_LABELLED_JOB, borgpb.Labelled_LABELLED_MACHINE}, Key: "tmp-*", Forbidden: true},
	}},
	{Rules: []*borgpb.LabelRule{
		{Kinds: []borgpb.Labelled{borgpb.Labelled_LABELLED_JOB}, Key: "tier", Required: true, Values: []string{"front", "b?ck"}},
		{Kinds: []borgpb.Labelled{borgpb.Labelled_LABELLED_JOB}, Key: "team", Values: []string{"n*", "ads"}},
	}},
}

// labelled gives what is submitted or updated labels, and now and then asks for a
// change of labels alone, or of the rules, instead; op comes back as it is in a world
// without labels.
func (c *client) labelled(op *borgpb.Op) *borgpb.Op {
	if !c.w.swarm.labels || c.i == operatorClient || c.w.truth.cell.Format() < cell.FormatLabels {
		return op
	}
	r, user := c.rand, c.user()
	switch n := r.IntN(100); {
	case n < 4 && user == adminUser:
		policy := labelPolicies[r.IntN(len(labelPolicies))]
		return &borgpb.Op{Op: &borgpb.Op_SetLabelPolicy{SetLabelPolicy: &borgpb.SetLabelPolicy{Policy: policy}}}
	case n < 30:
		return c.relabel()
	}
	labels := map[string]string{"tier": []string{"front", "back", "front", "odd"}[r.IntN(4)]}
	if r.IntN(3) == 0 {
		labels["team"] = []string{"ads", "nobody", "maps"}[r.IntN(3)]
	}
	if r.IntN(6) == 0 {
		labels["tmp-1"] = "x"
	}
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		o.SubmitJob.Labels = labels
	case *borgpb.Op_UpdateJob:
		o.UpdateJob.Labels = labels
	case *borgpb.Op_SubmitAllocSet:
		o.SubmitAllocSet.Labels = labels
	}
	return op
}

func (c *client) relabel() *borgpb.Op {
	r := c.rand
	o := &borgpb.SetLabels{Kind: borgpb.Labelled_LABELLED_JOB, User: c.user(), Name: fmt.Sprintf("j%d", r.IntN(c.w.swarm.jobs))}
	switch n := r.IntN(10); {
	case n == 0:
		o.Kind, o.Name = borgpb.Labelled_LABELLED_ALLOC_SET, allocSetName
	case n == 1 && c.user() == adminUser:
		o.Kind, o.User, o.Name = borgpb.Labelled_LABELLED_MACHINE, "", c.w.machines[r.IntN(len(c.w.machines))].name
	}
	if r.IntN(4) > 0 {
		o.SetLabels = map[string]string{[]string{"tier", "team", "seen", "tmp-1"}[r.IntN(4)]: []string{"front", "ads", "maps", "bXck"}[r.IntN(4)]}
	}
	if r.IntN(3) == 0 || o.SetLabels == nil {
		o.RemoveLabels = []string{[]string{"tier", "team", "seen", "tmp-1"}[r.IntN(4)]}
	}
	return &borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: o}}
}

// labels follows one entry and holds the cell against it.
func (t *truth) labels(e borgmaster.CommittedEntry, results []*borgpb.Result) {
	if !t.w.swarm.labels {
		return
	}
	m := &t.labelled
	if m.epoch != t.cell.Epoch() {
		// The cell is new, or another one since it was restored.
		*m = labelModel{epoch: t.cell.Epoch(), of: map[labelledObject]map[string]string{}}
		m.policy, _ = t.cell.LabelPolicy()
		t.eachLabelled(func(o labelledObject, labels map[string]string) { m.of[o] = labels })
		return
	}
	entry := new(borgpb.Entry)
	if proto.Unmarshal(e.Data, entry) != nil {
		return
	}
	moved := false
	for i, data := range entry.Ops {
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) == nil && !results[i].GetRepeated() {
			moved = t.labelsBy(op, results[i].GetRefusal()) || moved
			t.runLabels(op.GetFireCron(), results[i])
		}
	}
	if moved {
		t.labelsAre()
	}
}

// runLabels: a run has the labels of its cron job, whatever rules there are by now.
func (t *truth) runLabels(o *borgpb.FireCron, res *borgpb.Result) {
	uid, err := cell.ParseUID(res.GetUid())
	if o == nil || err != nil {
		return
	}
	if run := t.cell.JobByUID(uid); run != nil {
		m := &t.labelled
		labels := maps.Clone(m.of[labelledObject{borgpb.Labelled_LABELLED_JOB, o.User + "/" + o.Name}])
		m.of[labelledObject{borgpb.Labelled_LABELLED_JOB, run.Key().String()}] = labels
	}
}

// labelsBy follows one op, and judges what came of it; changed tells that it was about
// labels.
func (t *truth) labelsBy(op *borgpb.Op, refused *borgpb.Refusal) (changed bool) {
	m := &t.labelled
	if o := op.GetSetLabelPolicy(); o != nil && refused == nil {
		m.policy = o.Policy
		t.w.mark("rules for labels changed")
		return true
	}
	object, labels, given := labelsOf(op)
	if object.kind == 0 {
		return false
	}
	set := op.GetSetLabels()
	next := maps.Clone(labels)
	if next == nil {
		next = map[string]string{}
	}
	if set != nil {
		next = maps.Clone(m.of[object])
		if next == nil {
			next = map[string]string{}
		}
		for _, k := range set.RemoveLabels {
			delete(next, k)
		}
		maps.Copy(next, set.SetLabels)
	}
	broken := m.give(object.kind, next, set, given)
	switch {
	case refused == nil && broken != "":
		t.w.fail("S32: the labels %v of %s are let in at index %d, and %s", next, object.name, t.index, broken)
	case refused.GetField() == "labels" && broken == "":
		t.w.fail("S32: the labels %v of %s are refused at index %d, and no rule is against them: %s", next, object.name, t.index, refused.Message)
	case refused.GetField() == "labels":
		t.w.mark("label refused by a rule")
	}
	if refused != nil {
		return false
	}
	if set != nil {
		t.w.mark("labels changed alone")
	}
	m.of[object] = next
	return true
}

// labelsOf is the object that an op gives labels, with those that it gives.
func labelsOf(op *borgpb.Op) (object labelledObject, labels map[string]string, given bool) {
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		return labelledObject{borgpb.Labelled_LABELLED_JOB, o.SubmitJob.User + "/" + o.SubmitJob.Name}, o.SubmitJob.Labels, true
	case *borgpb.Op_UpdateJob:
		return labelledObject{borgpb.Labelled_LABELLED_JOB, o.UpdateJob.User + "/" + o.UpdateJob.Name}, o.UpdateJob.Labels, true
	case *borgpb.Op_AdoptJob:
		return labelledObject{borgpb.Labelled_LABELLED_JOB, o.AdoptJob.User + "/" + o.AdoptJob.Name}, nil, false
	case *borgpb.Op_SubmitAllocSet:
		return labelledObject{borgpb.Labelled_LABELLED_ALLOC_SET, o.SubmitAllocSet.User + "/" + o.SubmitAllocSet.Name}, o.SubmitAllocSet.Labels, true
	case *borgpb.Op_AddMachine:
		return labelledObject{borgpb.Labelled_LABELLED_MACHINE, o.AddMachine.Name}, o.AddMachine.Labels, true
	case *borgpb.Op_SetLabels:
		name := o.SetLabels.Name
		if o.SetLabels.Kind != borgpb.Labelled_LABELLED_MACHINE {
			name = o.SetLabels.User + "/" + name
		}
		return labelledObject{o.SetLabels.Kind, name}, nil, false
	}
	return labelledObject{}, nil, false
}

// give adds what the rules give to labels, and says which rule they break; empty:
// none. A change of labels alone is judged by what it changes.
func (m *labelModel) give(kind borgpb.Labelled, labels map[string]string, set *borgpb.SetLabels, given bool) string {
	if !given && set == nil {
		return ""
	}
	concerns := func(k string) bool {
		return set == nil || slices.Contains(set.RemoveLabels, k)
	}
	broken := ""
	for _, rule := range m.policy.GetRules() {
		if !slices.Contains(rule.Kinds, kind) {
			continue
		}
		if _, has := labels[rule.Key]; !has && concerns(rule.Key) {
			switch {
			case rule.DefaultValue != nil:
				labels[rule.Key] = *rule.DefaultValue
			case rule.Required:
				broken = rule.Key + " is required"
			}
		}
	}
	for _, rule := range m.policy.GetRules() {
		for k, v := range labels {
			_, changes := set.GetSetLabels()[k]
			if match, _ := path.Match(rule.Key, k); !match || !slices.Contains(rule.Kinds, kind) || set != nil && !changes {
				continue
			}
			allowed := len(rule.Values) == 0
			for _, glob := range rule.Values {
				match, _ := path.Match(glob, v)
				allowed = allowed || match
			}
			if rule.Forbidden || !allowed {
				broken = k + " may not be " + v
			}
		}
	}
	return broken
}

func (t *truth) eachLabelled(f func(labelledObject, map[string]string)) {
	for j := range t.cell.Jobs() {
		f(labelledObject{borgpb.Labelled_LABELLED_JOB, j.Key().String()}, j.Labels())
	}
	for s := range t.cell.AllocSets() {
		f(labelledObject{borgpb.Labelled_LABELLED_ALLOC_SET, s.Key().String()}, s.Labels())
	}
	for m := range t.cell.Machines() {
		f(labelledObject{borgpb.Labelled_LABELLED_MACHINE, m.Name()}, m.Labels())
	}
}

// labelsAre holds all objects of the cell against the model.
func (t *truth) labelsAre() {
	if !t.w.swarm.labels {
		return
	}
	t.eachLabelled(func(o labelledObject, labels map[string]string) {
		if want := t.labelled.of[o]; !maps.Equal(labels, want) {
			t.w.fail("S32: %s has the labels %v at index %d, and was given %v", o.name, labels, t.index, want)
		}
	})
}
