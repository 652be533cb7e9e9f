package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"borg/cli"
)

// TestScenarioD13: masters of a later build say states and reasons of which borgcfg has never
// heard, and fields. It shows what it knows, and of what it does not know the number; it
// refuses to take away what it cannot see; and what it asks for is done. No task of the cell
// is restarted by any of that.
func TestScenarioD13(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 5, 1)
	c.hasLatestFormat(t)
	file := filepath.Join(t.TempDir(), "web.borg")
	if err := os.WriteFile(file, []byte(`alloc_set(name = "pool", allocs = 1, resources = resources(cpu = 0.1, mem = "64MiB"))
job(name = "huge", task = task(args = ["/bin/x"], resources = resources(cpu = 100, mem = "16MiB")))
job(name = "web", tasks = 2, task = task(args = ["/bin/sh", "-c", "exec sleep 1000000"], grace = "1s", resources = resources(cpu = 0.01, mem = "16MiB")))
`), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, code := c.says(t, "borgcfg", "--cell", c.cellFile(), "up", file); code != cli.CannotFit {
		t.Fatalf("exit code %d: %s", code, out)
	}
	if _, err := c.jobIs(shortly(t), "web", "all tasks run", started); err != nil {
		t.Fatal(err)
	}
	before, err := c.snap(shortly(t), "web")
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "why huge/0 waits is known", func() string {
		if out, _ := c.says(t, "borgcfg", "--cell", c.cellFile(), "why", "huge/0"); !strings.Contains(out, "0 of 1 machine") {
			return out
		}
		return ""
	})

	later := c.seenLater(t)
	for _, q := range []struct {
		args string
		code int
		want []string
	}{
		{"status", cli.OK, []string{"web", "huge"}},
		{"status web", cli.OK, []string{"web", "7777"}},
		{"status web -o json", cli.OK, []string{"7777"}},
		{"status web -o yaml", cli.OK, []string{"7777"}},
		{"tasks web --attempts", cli.OK, []string{"web/0 ", "web/1 ", "7777", c.machineName(1)}},
		{"machine list", cli.OK, []string{c.machineName(1), "7777"}},
		{"alloc list", cli.OK, []string{"pool"}},
		{"alloc list pool", cli.OK, []string{"pool/0"}},
		{"why web/0", cli.OK, []string{"web/0"}},
		// Its kind is unheard of too; the text of the reason is the cell's.
		{"why huge/0", cli.OK, []string{"huge/0", "0 of 1 machine"}},
		{"events --job web --last 100", cli.OK, []string{"7777", c.user + "/web"}},
		{"audit web", cli.OK, []string{"web"}},
		{"resolve web/0", cli.OK, []string{"web/0"}},
		{"quota list", cli.OK, nil},
		// Of a refusal too: what it says is told, whatever its kind means.
		{"quarantine web/9", cli.Refused, []string{"web/9: the job has 2 tasks"}},
		// What it does not know it does not take away either.
		{"diff " + file, cli.Refused, []string{"says something that this borgcfg does not know"}},
		{"up " + file, cli.Refused, []string{"says something that this borgcfg does not know"}},
		// And it is heard.
		{"resize web 3", cli.OK, nil},
	} {
		out, code := c.says(t, "borgcfg", append([]string{"--cell", later}, strings.Fields(q.args)...)...)
		if code != q.code {
			t.Errorf("borgcfg %s: exit code %d, want %d:\n%s", q.args, code, q.code, out)
		}
		for _, want := range q.want {
			if !strings.Contains(out, want) {
				t.Errorf("borgcfg %s does not say %q:\n%s", q.args, want, out)
			}
		}
		if strings.Contains(out, "panic") {
			t.Errorf("borgcfg %s:\n%s", q.args, out)
		}
	}
	if _, err := c.jobIs(shortly(t), "web", "three tasks run", started); err != nil {
		t.Fatal(err)
	}
	if tasks, err := c.tasks(shortly(t), "web"); err != nil || len(tasks) != 3 {
		t.Errorf("after the resize there are %d tasks, %v", len(tasks), err)
	}
	c.stillSame(t, before, "web")
}
