package cell

import "borg/proto/borgpb"

// allocIndex now and then has the tasks of a job in allocs take them by index.
func (g *generator) allocIndex(s *borgpb.JobSpec) {
	if g.c.format >= FormatAllocIndex {
		s.AllocByIndex = s.AllocSet != "" && g.one(2) || g.one(60)
	}
}

// allocFor is an alloc of a set for a task: mostly its own, where it has one.
func (g *generator) allocFor(j *Job, index uint32, s *AllocSet) *Alloc {
	if a := s.Alloc(index); a != nil && j.AllocByIndex() && !g.one(6) {
		return a
	}
	return pick(g.r, s.allocs)
}
