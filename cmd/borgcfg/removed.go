package main

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// hasAll refuses to remove a key that an object does not have, which is mostly a mistake in
// typing. The cell itself takes it: programs may remove what may be there.
func hasAll(object, what string, have, remove []string) error {
	for _, key := range remove {
		if slices.Contains(have, key) {
			continue
		}
		e := cli.Errorf(cli.NotFound, "%s has no %s %s, and nothing was changed", object, what, key)
		if near := cli.Nearest(key, have); near != "" {
			return e.Hint("did you mean %s-?", near)
		}
		if len(have) == 0 {
			return e.Hint("it has none")
		}
		return e.Hint("it has: %s", strings.Join(slices.Sorted(slices.Values(have)), ", "))
	}
	return nil
}

// labelsThere are the labels and annotations that an object has; nil, without an error, if
// there is no such object: what follows says so.
func (s *session) labelsThere(o *borgpb.SetLabels) (*borgpb.Meta, error) {
	m, err := s.master()
	if err != nil {
		return nil, err
	}
	var meta *borgpb.Meta
	switch o.Kind {
	case borgpb.Labelled_LABELLED_JOB:
		resp, failed := m.GetJob(s.ctx, &borgrpc.GetJobRequest{User: o.User, Name: o.Name})
		meta, err = resp.GetJob().GetMeta(), failed
	case borgpb.Labelled_LABELLED_ALLOC_SET:
		resp, failed := m.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{User: o.User, Name: o.Name, Limit: 1})
		if len(resp.GetAllocSets()) > 0 {
			meta = resp.AllocSets[0].GetMeta()
		}
		err = failed
	default:
		x, failed := s.machineThere(o.Name)
		return x.GetMeta(), failed
	}
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		err = nil
	}
	return meta, err
}

// machineThere is the machine of a name; nil, without an error, if there is none.
func (s *session) machineThere(name string) (*borgpb.Machine, error) {
	m, err := s.master()
	if err != nil {
		return nil, err
	}
	resp, err := m.ListMachines(s.ctx, &borgrpc.ListMachinesRequest{Name: name})
	var missing *client.NotFoundError
	if errors.As(err, &missing) || err == nil && len(resp.Machines) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return resp.Machines[0], nil
}

// hasRemoved refuses a change that removes labels or annotations which are not there.
func (s *session) hasRemoved(object string, o *borgpb.SetLabels) error {
	if len(o.RemoveLabels)+len(o.RemoveAnnotations) == 0 {
		return nil
	}
	meta, err := s.labelsThere(o)
	if err != nil || meta == nil {
		return err
	}
	if err := hasAll(object, "label", slices.Collect(maps.Keys(meta.Labels)), o.RemoveLabels); err != nil {
		return err
	}
	return hasAll(object, "annotation", slices.Collect(maps.Keys(meta.Annotations)), o.RemoveAnnotations)
}

// machineHasRemoved refuses a change that removes attributes or taints which are not there.
func (s *session) machineHasRemoved(o *borgpb.SetMachine) error {
	if len(o.RemoveAttributes)+len(o.RemoveTaints) == 0 {
		return nil
	}
	x, err := s.machineThere(o.Name)
	if err != nil || x == nil {
		return err
	}
	var taints []string
	for _, t := range x.GetSpec().GetTaints() {
		taints = append(taints, t.GetKey())
	}
	if err := hasAll("machine "+o.Name, "attribute", slices.Collect(maps.Keys(x.GetSpec().GetAttributes())), o.RemoveAttributes); err != nil {
		return err
	}
	return hasAll("machine "+o.Name, "taint", taints, o.RemoveTaints)
}

// changedWords are the arguments KEY=VALUE and KEY- as what was done.
func changedWords(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = arg
		if key, ok := strings.CutSuffix(arg, "-"); ok && !strings.Contains(key, "=") {
			words[i] = key + " removed"
		}
	}
	return strings.Join(words, ", ")
}
