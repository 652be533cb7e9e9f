package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"borg/cli"
)

// configView tells which cell is meant, where that was found, and who asks.
func configView(s *session) error {
	place, err := s.lookup().Find()
	if err != nil {
		return err
	}
	who, err := s.user()
	if err != nil {
		return err
	}
	if s.out.format == "name" {
		return s.out.names([]string{place.Cell})
	}
	if s.out.machine() {
		b, err := json.Marshal(struct {
			Cell    string   `json:"cell"`
			CellID  string   `json:"cell_id"`
			Masters []string `json:"masters"`
			Origin  string   `json:"origin"`
			User    string   `json:"user"`
		}{place.Cell, place.CellID, place.Masters, place.Origin, who})
		if err != nil {
			return fmt.Errorf("print as JSON: %w", err)
		}
		return s.out.raw(b)
	}
	var t table
	t.add("cell", place.Cell)
	t.add("cell id", place.CellID)
	t.add("masters", strings.Join(place.Masters, ", "))
	t.add("found by", place.Origin)
	t.add("user", who)
	return t.write(s.out, "")
}

func version(s *session) error {
	switch {
	case s.out.format == "name":
		return s.out.names([]string{cli.Build()})
	case s.out.machine():
		return s.out.value(struct {
			Build string `json:"build"`
		}{cli.Build()})
	}
	s.say("borgcfg %s", cli.Build())
	return nil
}
