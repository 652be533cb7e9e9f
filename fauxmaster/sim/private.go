package sim

import (
	"fmt"
	"slices"

	"borg/borgmaster/cell"
	"borg/borgmaster/watch"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// S47: while the policy of visibility is private, a watcher who is no admin is told of its
// own user's work and of what is shared with a group of that user, all of it and nothing
// else; a watch ends when what its user may read changes. Who may read what is worked out
// here, without the cell's Sight.

// reading is who may read what from an index on.
type reading struct {
	index           uint64
	version, admins uint64
	private         bool
	groups          []*borgpb.ShareGroup
	readAll         map[string]bool
}

// groupNames are those that jobs are shared with; the last is no group.
var groupNames = []string{"ads", "maps", "nobody"}

// private gives what is submitted a group to be shared with, and now and then changes
// that, or the policy, instead.
func (c *client) private(op *borgpb.Op) *borgpb.Op {
	if !c.w.swarm.private || c.i == operatorClient || c.w.truth.cell.Format() < cell.FormatVisibility {
		return op
	}
	r, user := c.rand, c.user()
	switch n := r.IntN(100); {
	case n < 10 && user == adminUser:
		policy := &borgpb.Visibility{Private: r.IntN(4) > 0}
		for _, name := range groupNames[:2] {
			g := &borgpb.ShareGroup{Name: name}
			for i := range 3 {
				if r.IntN(3) == 0 {
					g.Users = append(g.Users, userOf(i))
				}
			}
			policy.Groups = append(policy.Groups, g)
		}
		return &borgpb.Op{Op: &borgpb.Op_SetVisibility{SetVisibility: &borgpb.SetVisibility{Policy: policy}}}
	case n < 25:
		o := &borgpb.SetLabels{Kind: borgpb.Labelled_LABELLED_JOB, User: user, Name: fmt.Sprintf("j%d", r.IntN(c.w.swarm.jobs))}
		if r.IntN(3) == 0 {
			o.RemoveLabels = []string{cell.ShareLabel}
		} else {
			o.SetLabels = map[string]string{cell.ShareLabel: groupNames[r.IntN(3)]}
		}
		return &borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: o}}
	case n < 60:
		return op
	}
	labels := map[string]string{cell.ShareLabel: groupNames[r.IntN(3)]}
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

// noteReading notes who may read what after an entry.
func (t *truth) noteReading() {
	if !t.w.swarm.private {
		return
	}
	policy, version := t.cell.Visibility()
	admins := t.cell.AdminChanges()
	if n := len(t.readings); n > 0 && t.readings[n-1].version == version && t.readings[n-1].admins == admins {
		return
	}
	now := reading{index: t.index, version: version, admins: admins, private: policy.GetPrivate(), groups: policy.GetGroups(), readAll: map[string]bool{}}
	for i := range 3 {
		now.readAll[userOf(i)] = t.cell.Has(userOf(i), cell.Admin)
	}
	t.readings = append(t.readings, now)
	if now.private {
		t.w.mark("private policy set")
	}
}

// readingAt is who may read what at an index.
func (t *truth) readingAt(index uint64) reading {
	for _, r := range slices.Backward(t.readings) {
		if r.index <= index {
			return r
		}
	}
	return reading{}
}

// shows reports whether a user may read a job or alloc set, or what is of it.
func (r *reading) shows(reader, owner string, labels map[string]string) bool {
	if !r.private || r.readAll[reader] || reader == owner {
		return true
	}
	for _, g := range r.groups {
		if g.Name == labels[cell.ShareLabel] && slices.Contains(g.Users, reader) {
			return true
		}
	}
	return false
}

// same reports whether a user may read the same by both.
func (r *reading) same(o *reading, reader string) bool {
	of := func(r *reading) (names []string) {
		for _, g := range r.groups {
			if slices.Contains(g.Users, reader) {
				names = append(names, g.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	all := !r.private || r.readAll[reader]
	return all == (!o.private || o.readAll[reader]) && (all || slices.Equal(of(r), of(o)))
}

// asReader has a watcher watch as a user.
func (x *watcher) asReader(reader string) {
	x.reader = reader
	x.query.Sight = func(c *cell.Cell) cell.Sight {
		return x.at.master.gate.Sight(c, identity.Name{Role: identity.User, ID: reader})
	}
	if x.query.Kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE {
		return
	}
	x.check.Only(func(owner string, labels map[string]string) bool { return x.reading.shows(reader, owner, labels) })
}

// judge holds a message against what the watcher's user may read at that moment.
func (x *watcher) judge(m *borgrpc.WatchResponse) {
	now := x.w.truth.readingAt(m.Index)
	switch {
	case m.State:
		x.reading = now
	case !now.same(&x.reading, x.reader):
		x.w.fail("S47: watcher %d of %s goes on at index %d, and what it may read has changed since its state", x.i, x.reader, m.Index)
	}
	if x.query.Kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE {
		return
	}
	for _, c := range m.Changes {
		for _, o := range []*borgrpc.WatchObject{c.Object, c.Previous} {
			if o == nil {
				continue
			}
			meta, labels := watch.Labels(o)
			switch {
			case !now.shows(x.reader, meta.User, labels):
				x.w.fail("S47: watcher %d of %s is told at index %d of %s of %s", x.i, x.reader, m.Index, watch.NameOf(c), meta.User)
			case now.private && meta.User != x.reader && !now.readAll[x.reader]:
				x.w.mark("told of what is shared")
			}
		}
	}
}
