package container

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"borg/borglet"
)

// TestProcessorsDivided works on a tree of files as both versions of the kernel have
// them: what the kernel makes of them, tasks show (cmd/borglet).
func TestProcessorsDivided(t *testing.T) {
	for name, all := range map[string]string{"version 1": "0-7\n", "version 2": "\n"} {
		dir := tree(t, map[string]string{
			"cpuset.cpus":                       all,
			"1-1-0.0.1/cpuset.cpus":             all,
			"1-1-0.1.1/cpuset.cpus":             all,
			"alloc-a.b.0/cpuset.cpus":           all,
			"alloc-a.b.0/1-2-0.0.1/cpuset.cpus": all,
			"other/cpuset.cpus":                 all,
		})
		p := newProcessors(borglet.DivideCores([][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, 9), dir)
		check := func(when string, want map[string]string) {
			t.Helper()
			for file, cpus := range want {
				text, err := os.ReadFile(filepath.Join(dir, file, "cpuset.cpus"))
				if err != nil || strings.TrimSpace(string(text)) != strings.TrimSpace(cpus) {
					t.Errorf("%s, %s: %s is %q, want %q (%v)", name, when, file, text, cpus, err)
				}
			}
		}
		owner := borglet.ID{JobUID: "1-1-0", Index: 1, Attempt: 1}
		_, _, before, err := p.take(borglet.ID{JobUID: "1-9-0", Attempt: 1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		cpus, set, _, err := p.take(owner, []uint32{2, 3})
		if err != nil || set != "2,6" || !slices.Equal(cpus, []int{2, 6}) {
			t.Fatalf("%s: take: %v %q %v", name, cpus, set, err)
		}
		check("one alone", map[string]string{
			"": all, "other": all, "alloc-a.b.0": all,
			"1-1-0.0.1": "0-1,3-5,7", "1-1-0.1.1": "2,6", "alloc-a.b.0/1-2-0.0.1": "0-1,3-5,7",
		})
		if got := p.setFor(borglet.ID{JobUID: "1-9-0", Attempt: 1}); got != "0-1,3-5,7" {
			t.Errorf("%s: who comes now runs on %s", name, got)
		}
		if _, _, _, err := p.take(borglet.ID{JobUID: "1-7-0", Attempt: 1}, []uint32{2, 3}); err == nil {
			t.Errorf("%s: two copies have the same processors", name)
		}
		// One that was being made meanwhile has heard nothing.
		late := filepath.Join(dir, "1-9-0.0.1")
		if err := os.Mkdir(late, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(late, "cpuset.cpus"), []byte(all), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := p.started(before); err != nil {
			t.Fatal(err)
		}
		check("one that came meanwhile", map[string]string{"1-9-0.0.1": "0-1,3-5,7"})

		// The next borglet is told by the orders who has what.
		p = newProcessors(p.cores, dir)
		p.keep(owner, cpus)
		if err := p.settle(); err != nil {
			t.Fatal(err)
		}
		check("another borglet", map[string]string{"1-1-0.0.1": "0-1,3-5,7", "1-1-0.1.1": "2,6"})
		if err := p.free(owner); err != nil {
			t.Fatal(err)
		}
		check("none alone", map[string]string{"1-1-0.0.1": "0-7", "1-9-0.0.1": "0-7", "alloc-a.b.0/1-2-0.0.1": "0-7", "other": all})
		if got := p.setFor(owner); got != "" {
			t.Errorf("%s: who comes now runs on %q, want everywhere", name, got)
		}
	}
}

func TestListOfProcessors(t *testing.T) {
	for text, want := range map[string][]int{"": nil, "0\n": {0}, "0-2,5": {0, 1, 2, 5}, "7,0-1": {0, 1, 7}} {
		got, err := parseList(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is %v (%v), want %v", text, got, err, want)
		}
		if again, err := parseList(listText(got)); err != nil || !slices.Equal(again, want) {
			t.Errorf("%v written and read is %v (%v)", want, again, err)
		}
	}
	for _, text := range []string{"a", "3-1", "-1", "0-", "0-99999999"} {
		if got, err := parseList(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

// TestCoresOfMachine reads a machine of four cores with two threads, of which the borglet
// may not use all.
func TestCoresOfMachine(t *testing.T) {
	files := map[string]string{}
	for cpu, list := range []string{"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"} {
		files["cpu"+string(rune('0'+cpu))+"/topology/thread_siblings_list"] = list + "\n"
	}
	root := tree(t, files)
	cores, err := coresIn(root, []int{0, 1, 2, 3, 4, 5, 6, 7})
	if err != nil || len(cores) != 4 || !slices.Equal(cores[3], []int{3, 7}) {
		t.Errorf("got %v, %v", cores, err)
	}
	cores, err = coresIn(root, []int{0, 1, 4, 5, 7})
	if err != nil || len(cores) != 2 || !slices.Equal(cores[1], []int{1, 5}) {
		t.Errorf("of a part: got %v, %v", cores, err)
	}
	list := []hierarchy{{mount: root}, {controllers: []string{"cpuset"}, mount: "/cg/cpuset"}}
	if dir, ok := cpusetDir(list, "/borg/m"); !ok || dir != "/cg/cpuset/borg/m" {
		t.Errorf("version 1: %q %v", dir, ok)
	}
	if dir, ok := cpusetDir(list[:1], "/borg/m"); ok {
		t.Errorf("a tree without controllers: %q", dir)
	}
	v2 := tree(t, map[string]string{"cgroup.controllers": "cpuset cpu memory\n"})
	if dir, ok := cpusetDir([]hierarchy{{mount: v2}}, "/borg/m"); !ok || dir != filepath.Join(v2, "borg/m") {
		t.Errorf("version 2: %q %v", dir, ok)
	}
}
