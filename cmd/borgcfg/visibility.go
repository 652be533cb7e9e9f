package main

import (
	"fmt"
	"slices"
	"strings"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/protobuf/proto"

	borgcell "borg/borgmaster/cell"
	"borg/cli"
	"borg/proto/borgpb"
)

func visibilityCommands(con *console) *ucli.Command {
	return group("visibility", "what users may read of each other's work",
		command(con, "show", "print whether it is open or private, and the groups", "", 0, 0, visibilityShow, outputFlag()),
		command(con, "open", "every user reads everything, which is the default", "", 0, 0, func(s *session) error { return s.setPrivate(false) }, reasonFlag()),
		command(con, "private", "a user reads what is his own, and jobs and alloc sets with the label share=GROUP of a group of his", "", 0, 0,
			func(s *session) error { return s.setPrivate(true) }, reasonFlag()))
}

func shareGroupCommands(con *console) *ucli.Command {
	return group("group", "with whom jobs and alloc sets are shared that have the label share=GROUP",
		command(con, "list", "print the groups and their members", "", 0, 0, visibilityShow, outputFlag()),
		command(con, "add", "take users into a group, which is made when there is none", "GROUP USER...", 2, -1, groupAdd, reasonFlag()),
		command(con, "remove", "take users out of a group; without users the group itself is removed", "GROUP [USER...]", 1, -1, groupRemove, reasonFlag()))
}

func visibilityShow(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.GetVisibility(s.ctx)
	if err != nil {
		return err
	}
	if s.out.machine() {
		return s.out.one(resp)
	}
	if resp.GetPolicy().GetPrivate() {
		s.say("private: a user reads what is his own, and what is shared with a group of his; admins read everything")
	} else {
		s.say("open: every user reads everything")
	}
	if len(resp.GetPolicy().GetGroups()) == 0 {
		return nil
	}
	var t table
	t.head("GROUP", "MEMBERS")
	for _, g := range resp.Policy.Groups {
		t.add(g.Name, strings.Join(g.Users, ", "))
	}
	return t.write(s.out, "")
}

func (s *session) setPrivate(private bool) error {
	done := "open: every user reads everything"
	if private {
		done = "private: users read their own work, and what is shared with them"
	}
	return s.changeVisibility(done, func(v *borgpb.Visibility) error {
		v.Private = private
		return nil
	})
}

// changeVisibility changes the policy, if nobody else has changed it meanwhile.
func (s *session) changeVisibility(done string, change func(*borgpb.Visibility) error) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.GetVisibility(s.ctx)
	if err != nil {
		return err
	}
	policy := proto.CloneOf(resp.GetPolicy())
	if err := change(policy); err != nil {
		return err
	}
	if r := borgcell.CheckVisibility(policy); r != nil {
		return cli.Errorf(cli.Refused, "%s", r.GetMessage())
	}
	o := &borgpb.SetVisibility{Policy: policy, ExpectVersion: resp.GetVersion()}
	return s.change(&borgpb.Op{Op: &borgpb.Op_SetVisibility{SetVisibility: o}}, "visibility: %s", done)
}

func groupAdd(s *session) error {
	name, users := s.args[0], s.args[1:]
	var strangers []*holder
	for _, u := range users {
		h, err := s.holder(u)
		if err != nil {
			return err
		}
		strangers = append(strangers, h)
	}
	var before []string
	err := s.changeVisibility(fmt.Sprintf("group %s has %s", name, strings.Join(users, ", ")), func(v *borgpb.Visibility) error {
		for _, g := range v.Groups {
			before = append(before, g.Name)
		}
		g := groupNamed(v, name)
		if g == nil {
			g = &borgpb.ShareGroup{Name: name}
			v.Groups = append(v.Groups, g)
		}
		for _, u := range users {
			if !slices.Contains(g.Users, u) {
				g.Users = append(g.Users, u)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if near := cli.Nearest(name, before); near != "" && !slices.Contains(before, name) {
		s.progress("group %s is new; did you mean %s? to take it back: borgcfg policy group remove %s", name, near, name)
	}
	for _, h := range strangers {
		s.stranger(h)
	}
	return nil
}

func groupRemove(s *session) error {
	name, users := s.args[0], s.args[1:]
	return s.changeVisibility(fmt.Sprintf("group %s: removed %s", name, strings.Join(users, ", ")), func(v *borgpb.Visibility) error {
		g := groupNamed(v, name)
		if g == nil {
			var names []string
			for _, g := range v.Groups {
				names = append(names, g.Name)
			}
			e := cli.Errorf(cli.NotFound, "there is no group %s", name)
			if near := cli.Nearest(name, names); near != "" {
				return e.Hint("did you mean %s?", near)
			}
			return e.Hint("see what there is: borgcfg policy group list")
		}
		for _, u := range users {
			if !slices.Contains(g.Users, u) {
				return cli.Errorf(cli.NotFound, "user %s is not in group %s", u, name).Hint("borgcfg policy group list")
			}
		}
		g.Users = slices.DeleteFunc(g.Users, func(u string) bool { return slices.Contains(users, u) })
		if len(users) == 0 || len(g.Users) == 0 {
			v.Groups = slices.DeleteFunc(v.Groups, func(o *borgpb.ShareGroup) bool { return o == g })
		}
		return nil
	})
}

func groupNamed(v *borgpb.Visibility, name string) *borgpb.ShareGroup {
	for _, g := range v.Groups {
		if g.Name == name {
			return g
		}
	}
	return nil
}

// tellShare says that a label shares an object with nobody, because there is no such
// group, or none that the caller is told of.
func (s *session) tellShare(labels map[string]string) {
	group := labels[borgcell.ShareLabel]
	if group == "" {
		return
	}
	resp, err := s.client.GetVisibility(s.ctx)
	if err != nil || slices.ContainsFunc(resp.Policy.GetGroups(), func(g *borgpb.ShareGroup) bool { return g.GetName() == group }) {
		return
	}
	if resp.Policy.GetPrivate() {
		s.progress("%s=%s: you are in no group of that name; if there is none, nobody reads it. An admin can tell: borgcfg policy group list", borgcell.ShareLabel, group)
		return
	}
	s.progress("%s=%s: there is no group of that name, so it is shared with nobody. An admin makes one: borgcfg policy group add %s USER", borgcell.ShareLabel, group, group)
}
