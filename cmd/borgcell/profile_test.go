package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"borg/identity"
	"borg/proto/borgpb"
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

// TestProfileOfMachine: only a machine without user ids of tasks' own is held against
// the weaker table, and what that changes is what has to do with user ids.
func TestProfileOfMachine(t *testing.T) {
	own, err := profileOf(map[string]string{"userns": "own"}, borgpb.Network_NETWORK_UNSPECIFIED)
	if err != nil {
		t.Fatal(err)
	}
	none, err := profileOf(map[string]string{"userns": "none"}, borgpb.Network_NETWORK_UNSPECIFIED)
	if err != nil {
		t.Fatal(err)
	}
	if differ := compareFacts(own, asWanted(none)); len(differing(differ)) == 0 || len(none) != len(own) {
		t.Errorf("%d facts of %d differ without user ids of tasks' own", len(differing(differ)), len(none))
	}
	weaker := asWanted(none)
	for _, w := range own {
		for _, same := range []string{"self.capabilities.", "self.no-new-privs", "self.seccomp", "call.", "devices.", "hidden.", "write."} {
			if strings.HasPrefix(w.name, same) && weaker[w.name] != w.wanted {
				t.Errorf("%s may be %q without user ids of tasks' own, want %q as everywhere", w.name, weaker[w.name], w.wanted)
			}
		}
	}
}

// TestProbe: a task on a machine of a cell sees and can do what the table says, beside
// another one.
func TestProbe(t *testing.T) {
	probeCell(t, "own")
}

// TestProbeWithoutOwnUsers: where the file system cannot show other owners tasks have no
// user ids of their own, the machine says so, and all else is as it should be.
func TestProbeWithoutOwnUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("containers need root")
	}
	t.Setenv("TMPDIR", withoutOwners(t))
	probeCell(t, "none")
}

// probeCell compares what a task of a new cell tells with the table for machines with
// user ids of that kind.
func probeCell(t *testing.T, userns string) {
	if os.Getuid() != 0 {
		t.Skip("containers need root")
	}
	if userns == "own" {
		alongside(t)
	}
	c := chaosCell(t, 1, 1)
	a, err := c.attributes(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	if a["runtime"] != "container" || a["seccomp"] == "none" || a["userns"] != userns {
		t.Skipf("the profile is not that here: runtime %s, seccomp %s, userns %s; want user ids: %s", a["runtime"], a["seccomp"], a["userns"], userns)
	}
	all, err := c.probed(shortly(t), borgpb.Network_NETWORK_UNSPECIFIED)
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

// withoutOwners returns a directory of a file system that cannot be mounted with other
// owners.
func withoutOwners(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp("", "ov-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	for _, name := range []string{"lower", "upper", "work", "at"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(base, "at")
	data := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base)
	if err := unix.Mount("overlay", at, "overlay", 0, data); err != nil {
		t.Skipf("there are no overlays here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("unmount %s: %v", at, err)
		}
	})
	return at
}
