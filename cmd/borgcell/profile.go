package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// profileText is what a task may see and do, for people and for the comparison.
//
//go:embed testdata/profile.txt
var profileText string

// sharedUsersText is what differs where tasks have no user ids of their own.
//
//go:embed testdata/profile-userns-none.txt
var sharedUsersText string

// ownNetworkText is what differs for tasks with networks of their own.
//
//go:embed testdata/profile-network-own.txt
var ownNetworkText string

// wantedFact is a line of the table: what the probe is to say, and why.
type wantedFact struct {
	name, wanted, why string
}

// checkedFact is what the probe said beside what was wanted.
type checkedFact struct {
	wantedFact
	got string
	ok  bool
}

const (
	notTold    = "(the probe does not tell it)"
	notInTable = "(not in the table)"
)

// parseProfile reads the table: `name | wanted | why`, with empty lines and lines
// that begin with # for people.
func parseProfile(text string) ([]wantedFact, error) {
	var facts []wantedFact
	seen := make(map[string]bool)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, "|")
		if len(parts) != 3 {
			return nil, fmt.Errorf("the table of the profile has %q; want NAME | WANTED | WHY", line)
		}
		f := wantedFact{strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1]), strings.TrimSpace(parts[2])}
		if f.name == "" || f.why == "" || seen[f.name] {
			return nil, fmt.Errorf("the table of the profile has %q, which is there twice or says nothing", line)
		}
		seen[f.name] = true
		facts = append(facts, f)
	}
	return facts, nil
}

// profileOf is the table for tasks of machines with these attributes, in that network.
func profileOf(attributes map[string]string, network borgpb.Network) ([]wantedFact, error) {
	table, err := parseProfile(profileText)
	if err == nil && attributes["userns"] == "none" {
		err = change(table, "userns=none", sharedUsersText)
	}
	if err == nil && network == borgpb.Network_NETWORK_OWN {
		err = change(table, "network=own", ownNetworkText)
	}
	return table, err
}

// change puts what is other in one case in the place of what the table has.
func change(table []wantedFact, what, text string) error {
	changes, err := parseProfile(text)
	if err != nil {
		return err
	}
	for _, c := range changes {
		i := slices.IndexFunc(table, func(f wantedFact) bool { return f.name == c.name })
		if i < 0 || table[i].wanted == c.wanted {
			return fmt.Errorf("the table for %s has %q, which changes nothing of the profile", what, c.name)
		}
		table[i] = c
	}
	return nil
}

// parseFacts reads what the probe printed.
func parseFacts(text string) (map[string]string, error) {
	facts := make(map[string]string)
	for line := range strings.Lines(text) {
		var f struct {
			Name *string `json:"name"`
			Got  *string `json:"got"`
		}
		if err := json.Unmarshal([]byte(line), &f); err != nil || f.Name == nil || f.Got == nil {
			return nil, fmt.Errorf("the probe printed %q, which is no fact", strings.TrimSpace(line))
		}
		if _, twice := facts[*f.Name]; twice {
			return nil, fmt.Errorf("the probe told %s twice", *f.Name)
		}
		facts[*f.Name] = *f.Got
	}
	return facts, nil
}

// compareFacts puts what was told beside what was wanted, in the order of the
// table. A fact that only one of both has is a difference.
func compareFacts(table []wantedFact, told map[string]string) []checkedFact {
	told = maps.Clone(told)
	var all []checkedFact
	for _, w := range table {
		got, ok := told[w.name]
		if !ok {
			got = notTold
		}
		all = append(all, checkedFact{w, got, ok && got == w.wanted})
		delete(told, w.name)
	}
	for _, name := range slices.Sorted(maps.Keys(told)) {
		all = append(all, checkedFact{wantedFact{name, notInTable, "nobody has said what is wanted"}, told[name], false})
	}
	return all
}

// differing are those that are not as wanted.
func differing(all []checkedFact) []checkedFact {
	return slices.DeleteFunc(slices.Clone(all), func(f checkedFact) bool { return f.ok })
}

// tellFacts writes the comparison, a line for each fact.
func tellFacts(w io.Writer, all []checkedFact) {
	fmt.Fprintln(w, "OK       FACT                                 GOT, AND WHAT WAS WANTED IF IT DIFFERS")
	for _, f := range all {
		if f.ok {
			fmt.Fprintf(w, "ok       %-36s %s\n", f.name, f.got)
		} else {
			fmt.Fprintf(w, "DIFFERS  %-36s %s; wanted: %s (%s)\n", f.name, f.got, f.wanted, f.why)
		}
	}
}
