package cell

import "borg/proto/borgpb"

// merge lets an update keep what was changed since, and often repeat what was given.
func (g *generator) merge(o *borgpb.UpdateJob) {
	j := g.c.Job(JobKey{o.User, o.Name})
	if g.c.format < FormatGiven || j == nil || g.one(2) {
		return
	}
	o.Merge = true
	if g.one(2) {
		_, o.Labels, o.Annotations = j.Given()
	}
	if g.one(3) {
		o.Spec = j.latest().Bytes
	}
}
