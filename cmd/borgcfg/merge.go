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
	"borg/proto/borgrpc"
)

// merge decides what a job is to be whose file repeats what it said before, while the
// cell has something else since: the cell decides the same when it is told to merge.
func (st *step) merge(resp *borgrpc.GetJobResponse) {
	given, now := resp.Given, resp.Job
	if given == nil || now.GetStatus().GetState() == borgpb.State_STATE_DEAD {
		return
	}
	o := *st.Object
	o.Job = proto.CloneOf(st.Job)
	o.Job.Tasks = borgcell.MergeTasks(given.Tasks, now.GetSpec().GetTasks(), st.Job.Tasks)
	o.Labels = borgcell.MergeMap(given.Labels, now.GetMeta().GetLabels(), st.Labels)
	o.Annotations = borgcell.MergeMap(given.Annotations, now.GetMeta().GetAnnotations(), st.Annotations)
	st.merged = &o
	if o.Job.Tasks != st.Job.Tasks {
		st.kept = append(st.kept, fmt.Sprintf("tasks: stays %d, as it was resized to since the file said %d (%d again: --exactly)", o.Job.Tasks, st.Job.Tasks, st.Job.Tasks))
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

// repeats tells that the file says what the cell knows that it said. If it does not, the
// cell is told, even where it has come to the same by itself.
func (st *step) repeats(given *borgrpc.Given) bool {
	return st.merged == nil || given.GetTasks() == st.Job.Tasks &&
		sameMap(given.GetLabels(), st.Labels) && sameMap(given.GetAnnotations(), st.Annotations)
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
