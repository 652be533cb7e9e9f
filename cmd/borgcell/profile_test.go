package main

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// asWanted is what a probe says of a task that is as the table wants it.
func asWanted(table []wantedFact) map[string]string {
	facts := make(map[string]string)
	for _, w := range table {
		facts[w.name] = w.wanted
	}
	return facts
}

// TestProfileDiffers: a fact that changed, is missing or is new is told, with why it
// matters.
func TestProfileDiffers(t *testing.T) {
	table, err := parseProfile(profileText)
	if err != nil {
		t.Fatal(err)
	}
	if differ := differing(compareFacts(table, asWanted(table))); len(differ) > 0 {
		t.Errorf("what is as wanted differs: %v", differ)
	}
	const name = "self.capabilities.effective"
	for what, c := range map[string]struct {
		change func(map[string]string)
		fact   string
		want   []string
	}{
		"changed": {func(f map[string]string) { f[name] = "00000000a80425fb" }, name, []string{"DIFFERS", "00000000a80425fb; wanted: 0000000000000000", "no capability"}},
		"missing": {func(f map[string]string) { delete(f, name) }, name, []string{"DIFFERS", notTold, "wanted: 0000000000000000"}},
		"new":     {func(f map[string]string) { f["self.wings"] = "two" }, "self.wings", []string{"DIFFERS", "two", notInTable}},
	} {
		facts := asWanted(table)
		c.change(facts)
		all := compareFacts(table, facts)
		differ := differing(all)
		if len(differ) != 1 || differ[0].name != c.fact {
			t.Errorf("%s: %v differ, want %s", what, differ, c.fact)
			continue
		}
		var text strings.Builder
		tellFacts(&text, all)
		var line string
		for l := range strings.Lines(text.String()) {
			if strings.Contains(l, "DIFFERS  ") {
				line = l
			}
		}
		for _, want := range c.want {
			if !strings.Contains(line, want) {
				t.Errorf("%s: it says %q, without %q", what, line, want)
			}
		}
	}
}

// TestFactsAreRead: what is no table or no fact is refused, not skipped.
func TestFactsAreRead(t *testing.T) {
	for _, text := range []string{"a | b", "a | b |", "a|b|c\na|d|e", " | b | c"} {
		if facts, err := parseProfile(text); err == nil {
			t.Errorf("the table %q is taken as %v", text, facts)
		}
	}
	for _, text := range []string{"panic: no", `{"name":"a"}`, "{\"name\":\"a\",\"got\":\"b\"}\n{\"name\":\"a\",\"got\":\"c\"}\n", `{"got":"a"}`} {
		if facts, err := parseFacts(text); err == nil {
			t.Errorf("the output %q is taken as %v", text, facts)
		}
	}
	got, err := parseFacts("{\"name\":\"a\",\"got\":\"\"}\n{\"name\":\"b\",\"got\":\"c\"}\n")
	if want := map[string]string{"a": "", "b": "c"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("the output is taken as %v, %v; want %v", got, err, want)
	}
}

// TestProfileHasTheTaskRole: the table names the calls that the role task may make.
func TestProfileHasTheTaskRole(t *testing.T) {
	var want []string
	for method, roles := range door.Access() {
		if slices.Contains(roles, identity.Task) {
			want = append(want, strings.TrimPrefix(method, "/borgrpc."))
		}
	}
	slices.Sort(want)
	table, err := parseProfile(profileText)
	if err != nil {
		t.Fatal(err)
	}
	if got := asWanted(table)["door.master.answers"]; got != strings.Join(want, " ") {
		t.Errorf("tasks may make the calls\n%s, and the table has\n%s", strings.Join(want, " "), got)
	}
}

// TestProbe: a task on a machine of a cell sees and can do what the table says, beside
// another one.
func TestProbe(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("containers need root")
	}
	alongside(t)
	c := chaosCell(t, 1, 1)
	resp, err := c.client.ListMachines(shortly(t), &borgrpc.ListMachinesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range resp.Machines {
		a := m.Spec.GetAttributes()
		if a["runtime"] != "container" || a["seccomp"] == "none" || a["userns"] == "none" {
			t.Skipf("the profile is not whole here: runtime %s, seccomp %s, userns %s", a["runtime"], a["seccomp"], a["userns"])
		}
	}
	all, err := c.probed(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Errorf("only %d facts were compared", len(all))
	}
	for _, f := range differing(all) {
		t.Errorf("%s: got %q, want %q: %s", f.name, f.got, f.wanted, f.why)
	}
}
