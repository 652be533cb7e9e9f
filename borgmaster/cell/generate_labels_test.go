package cell

import "borg/proto/borgpb"

// Ops about labels, for the random walk.

// labelOp changes the labels of something, or now and then the rules for labels or what
// users may read.
func (g *generator) labelOp() *borgpb.Op {
	if g.one(16) {
		return &borgpb.Op{Op: &borgpb.Op_SetVisibility{SetVisibility: &borgpb.SetVisibility{Policy: g.visibility(), ExpectVersion: g.version()}}}
	}
	if g.one(8) {
		return &borgpb.Op{Op: &borgpb.Op_SetLabelPolicy{SetLabelPolicy: &borgpb.SetLabelPolicy{Policy: g.labelPolicy(), ExpectVersion: g.version()}}}
	}
	r := g.r
	o := &borgpb.SetLabels{Kind: borgpb.Labelled(1 + r.IntN(3)), ExpectVersion: g.version()}
	switch o.Kind {
	case borgpb.Labelled_LABELLED_JOB:
		o.User, o.Name = g.key()
	case borgpb.Labelled_LABELLED_ALLOC_SET:
		o.User, o.Name = "ann", pick(r, []string{"p", "q", "z"})
	default:
		o.Name = g.machineName()
	}
	if !g.one(4) {
		o.SetLabels = map[string]string{pick(r, []string{"tier", "team", "tmp-x"}): pick(r, []string{"web", "db", "ads", "odd"})}
	}
	if g.one(3) {
		o.RemoveLabels = []string{pick(r, []string{"tier", "team", "none"})}
	}
	if g.one(3) {
		o.SetAnnotations = map[string]string{"seen": pick(r, []string{"1", "2"})}
	}
	if g.one(4) {
		o.RemoveAnnotations = []string{"seen"}
	}
	switch {
	case g.one(40):
		o.Kind = 0
	case g.one(40):
		o.SetLabels = g.labels()
	}
	return &borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: o}}
}

// visibility makes a policy of a few groups, now and then a wrong one.
func (g *generator) visibility() *borgpb.Visibility {
	v := &borgpb.Visibility{Private: g.one(2)}
	if g.one(2) {
		v.Groups = append(v.Groups, &borgpb.ShareGroup{Name: "web", Users: []string{"zoe", "ann"}})
	}
	if g.one(2) {
		v.Groups = append(v.Groups, &borgpb.ShareGroup{Name: "ads", Users: []string{"bob", "ann"}})
	}
	switch {
	case g.one(20):
		v.Groups = append(v.Groups, &borgpb.ShareGroup{Name: "ads", Users: []string{"cid"}})
	case g.one(20):
		v.Groups = append(v.Groups, &borgpb.ShareGroup{Name: "empty"})
	case g.one(20):
		v.Groups = append(v.Groups, &borgpb.ShareGroup{Name: "twice", Users: []string{"bob", "bob"}})
	}
	return v
}

// labelPolicy makes a few rules, most times such as let most in.
func (g *generator) labelPolicy() *borgpb.LabelPolicy {
	const job, set, machine = borgpb.Labelled_LABELLED_JOB, borgpb.Labelled_LABELLED_ALLOC_SET, borgpb.Labelled_LABELLED_MACHINE
	p := &borgpb.LabelPolicy{}
	add := func(chance int, rule *borgpb.LabelRule) {
		if g.one(chance) {
			p.Rules = append(p.Rules, rule)
		}
	}
	add(2, &borgpb.LabelRule{Kinds: []borgpb.Labelled{job, machine}, Key: "team", DefaultValue: new("none")})
	add(2, &borgpb.LabelRule{Kinds: []borgpb.Labelled{job, set, machine}, Key: "tmp-*", Forbidden: true})
	add(3, &borgpb.LabelRule{Kinds: []borgpb.Labelled{job, set}, Key: "tier", Required: true, Values: []string{"web", "d?"}})
	add(10, &borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: "team", Required: true, Values: []string{"ads"}})
	add(20, &borgpb.LabelRule{Kinds: []borgpb.Labelled{job, job}, Key: "team", Required: true})
	add(20, &borgpb.LabelRule{Kinds: []borgpb.Labelled{set}, Key: "t*", Required: true})
	return p
}
