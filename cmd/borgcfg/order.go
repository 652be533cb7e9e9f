package main

import (
	"errors"
	"strings"

	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// links are the keys of the objects that must be there before this one.
func (d declared) links() []string {
	if d.Kind == cfg.KindAllocSet {
		return nil
	}
	links := append([]string(nil), d.Job.StartAfter...)
	for _, key := range []string{d.Job.AllocSet, d.Job.Parent} {
		if key != "" {
			links = append(links, key)
		}
	}
	return links
}

// inOrder puts objects after those that they name, and otherwise leaves them in
// the order of the files.
func inOrder(objects []declared) ([]declared, error) {
	byKey := make(map[string]declared)
	for _, d := range objects {
		byKey[d.Key()] = d
	}
	var out []declared
	// 1: on the way to here, 2: done.
	mark := make(map[string]int)
	var visit func(d declared, way []string) error
	visit = func(d declared, way []string) error {
		way = append(way, d.Key())
		switch mark[d.Key()] {
		case 1:
			return cli.Errorf(cli.Invalid, "%s: jobs wait for each other: %s", d.Pos(), strings.Join(way, " -> "))
		case 2:
			return nil
		}
		mark[d.Key()] = 1
		for _, key := range d.links() {
			if next, ok := byKey[key]; ok {
				if err := visit(next, way); err != nil {
					return err
				}
			}
		}
		mark[d.Key()] = 2
		out = append(out, d)
		return nil
	}
	for _, d := range objects {
		if err := visit(d, nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkLinks looks up what the objects name and the files do not declare, so
// that nothing is half done when it is missing.
func (s *session) checkLinks(steps []*step) error {
	known := make(map[string]bool)
	for _, st := range steps {
		known[st.Key()] = true
	}
	for _, st := range steps {
		if st.action == nothing {
			continue
		}
		for _, key := range st.links() {
			if known[key] {
				continue
			}
			if err := s.checkLink(st, key); err != nil {
				return err
			}
			known[key] = true
		}
	}
	return nil
}

func (s *session) checkLink(st *step, key string) error {
	user, name, _ := strings.Cut(key, "/")
	var missing *client.NotFoundError
	if key == st.Job.AllocSet {
		resp, err := s.client.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{User: user, Name: name})
		if err != nil && !errors.As(err, &missing) {
			return err
		}
		if err != nil || len(resp.AllocSets) == 0 || resp.AllocSets[0].GetStatus().GetState() == borgpb.State_STATE_DEAD {
			return cli.Errorf(cli.NotFound, "%s: job %s is to run in alloc set %s, which is not there", st.Pos(), st.Key(), key).
				Hint("declare it in the file: alloc_set(name = %q, ...)", name)
		}
		return nil
	}
	_, err := s.client.GetJob(s.ctx, &borgrpc.GetJobRequest{User: user, Name: name})
	if errors.As(err, &missing) {
		return cli.Errorf(cli.NotFound, "%s: job %s names job %s, which is not there", st.Pos(), st.Key(), key).
			Hint("declare it in the file, or bring it up first")
	}
	return err
}
