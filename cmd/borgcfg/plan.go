package main

import (
	"fmt"

	"borg/cfg"
)

// planned is one step of a plan, for programs.
type planned struct {
	Kind string `json:"kind"`
	User string `json:"user"`
	Name string `json:"name"`
	// "none", "create", "change" or "end".
	Action string `json:"action"`
	// Why nothing is done; empty: something is.
	Note string `json:"note"`
	// What changes, a line for each field.
	Changes []string `json:"changes"`
	// What stays otherwise than in the file, and why.
	Kept []string `json:"kept"`
}

// showPlan prints what would be done and the jobs that would be ended.
func (s *session) showPlan(steps []*step, ends []victim) error {
	if !s.out.machine() && s.out.format != "name" {
		s.show(steps)
		s.showPruned(ends)
		return nil
	}
	all, changed := []planned{}, []string{}
	for _, st := range steps {
		p := planned{
			Kind: st.Kind.String(), User: st.User, Name: st.Name, Note: st.note, Changes: []string{}, Kept: append([]string{}, st.kept...),
			Action: map[action]string{nothing: "none", create: "create", change: "change"}[st.action],
		}
		if st.action == change {
			for _, c := range st.diff() {
				p.Changes = append(p.Changes, fmt.Sprint(c))
			}
		}
		if st.action != nothing {
			changed = append(changed, st.Key())
		}
		all = append(all, p)
	}
	for _, v := range ends {
		kind := cfg.KindJob
		if v.set != nil {
			kind = cfg.KindAllocSet
		}
		all = append(all, planned{Kind: kind.String(), User: v.user, Name: v.name, Action: "end", Changes: []string{}, Kept: []string{}})
		changed = append(changed, v.user+"/"+v.name)
	}
	if s.out.format == "name" {
		return s.out.names(changed)
	}
	return s.out.value(all)
}
