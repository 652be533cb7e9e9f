package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	borgcell "borg/borgmaster/cell"
	"borg/cfg"
	"borg/proto/borgpb"
)

// merge decides what a job or alloc set is to be whose file repeats what it said before,
// while the cell has something else since: meta, and as many tasks or allocs as has. The
// cell decides the same when it is told to merge.
func (st *step) merge(meta *borgpb.Meta, has uint32) {
	o := *st.Object
	what, says := st.number()
	stays := borgcell.MergeTasks(st.given.Tasks, has, says)
	if st.Kind == cfg.KindAllocSet {
		o.AllocSet = proto.CloneOf(st.AllocSet)
		o.AllocSet.Allocs = stays
	} else {
		o.Job = proto.CloneOf(st.Job)
		o.Job.Tasks = stays
	}
	o.Labels = borgcell.MergeMap(st.given.Labels, meta.GetLabels(), st.Labels)
	o.Annotations = borgcell.MergeMap(st.given.Annotations, meta.GetAnnotations(), st.Annotations)
	st.merged = &o
	if stays != says {
		st.kept = append(st.kept, fmt.Sprintf("%s: stays %d, as it was resized to since the file said %d (%d again: --exactly)", what, stays, says, says))
	}
	st.kept = append(append(st.kept, keptOf("labels", st.Labels, o.Labels)...), keptOf("annotations", st.Annotations, o.Annotations)...)
}

// keptOf says which keys stay although the file has them otherwise.
func keptOf(what string, file, merged map[string]string) (lines []string) {
	keys := slices.Collect(maps.Keys(file))
	for k := range merged {
		if _, ok := file[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		says, inFile := file[k]
		has, stays := merged[k]
		switch {
		case !stays:
			lines = append(lines, fmt.Sprintf("%s.%s: stays away, as it was taken away in the cell (as in the file: --exactly)", what, k))
		case !inFile || has != says:
			lines = append(lines, fmt.Sprintf("%s.%s: stays %s, as it was set in the cell (as in the file: --exactly)", what, k, strconv.Quote(has)))
		}
	}
	return lines
}

// wanted is what the cell is to hold.
func (st *step) wanted() *cfg.Object {
	if st.merged != nil {
		return st.merged
	}
	return st.Object
}

// number is what a resize changes, and what the file says of it.
func (st *step) number() (what string, n uint32) {
	if st.Kind == cfg.KindAllocSet {
		return "allocs", st.AllocSet.Allocs
	}
	return "tasks", st.Job.Tasks
}

// repeats tells that the file says what the cell knows that it said. If it does not, the
// cell is told, even where it has come to the same by itself.
func (st *step) repeats() bool {
	_, n := st.number()
	return st.merged == nil || st.given.GetTasks() == n &&
		sameMap(st.given.GetLabels(), st.Labels) && sameMap(st.given.GetAnnotations(), st.Annotations)
}

// update is the mutation that gives a job the spec of its file.
func (st *step) update() (*borgpb.Op, error) {
	spec, err := st.SpecBytes()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", st.Key(), err)
	}
	return &borgpb.Op{ConfigHash: st.file.Hash, Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{
		User: st.User, Name: st.Name, ExpectVersion: st.job.GetMeta().GetVersion(), Labels: st.Labels, Annotations: st.Annotations,
		Spec: spec, Merge: st.merged != nil}}}, nil
}
