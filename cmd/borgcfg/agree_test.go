package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"borg/borglet"
	"borg/borgmaster/memlog"
	"borg/cfg"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// evaluate evaluates one job file.
func evaluate(t *testing.T, text string) (*cfg.File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.borg")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return cfg.Evaluate(path, cfg.Options{User: "alice"})
}

// Job files and borglets know the same late-bound names.
func TestLateBoundNamesAreBound(t *testing.T) {
	args := []string{"/bin/a", "{{port.http}}", "{{alloc.dir}}"}
	for _, name := range cfg.LateBound() {
		args = append(args, "{{"+name+"}}")
	}
	f, err := evaluate(t, fmt.Sprintf(`job(name = "web", alloc_set = "place", task = task(
		args = [%s], ports = ["http"], resources = resources(cpu = 1, mem = "1GiB")))`, `"`+strings.Join(args, `", "`)+`"`))
	if err != nil {
		t.Fatal(err)
	}
	launch, err := borglet.NewLaunch(&borgrpc.Desired{
		Copy: &borgrpc.CopyID{JobUid: "1-2-0", Attempt: 1}, User: "alice", Job: "web", Cell: "test", Alloc: "alice/place/0", Ports: []uint32{20001}, Spec: f.Objects[0].Job.Task,
	}, 0, borglet.Places{Dir: "/d", AllocDir: "/a", Machine: "m1", Papers: "/p"})
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range launch.Args {
		if a == "" || strings.Contains(a, "{{") {
			t.Errorf("%s was bound to %q", args[i], a)
		}
	}
}

// What job files take at their limits, the cell takes too.
func TestLimitsAgree(t *testing.T) {
	group, err := memlog.NewGroup(memlog.Config{CellID: "test", Epoch: 1, Clock: func() (int64, int64) { return 1, 1 }})
	if err != nil {
		t.Fatal(err)
	}
	group.Elect(1)
	const task = `task(args = ["/bin/a"], resources = resources(cpu = 1, mem = "1GiB"), %s)`
	times := func(n int, f string) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(f, i))
		}
		return strings.Join(out, ", ")
	}
	for name, tc := range map[string]struct{ job, task string }{
		"tasks":       {job: `tasks = 100000`},
		"priority":    {job: `priority = 450`},
		"zero":        {job: `priority = 0`},
		"gang":        {job: `gang = True, tasks = 10000`},
		"failures":    {job: `kind = "batch", max_failures = 1000000`},
		"batch":       {job: `update = update(batch = 100000)`},
		"labels":      {job: `labels = {` + times(64, `"k%d": "`+strings.Repeat("v", 255)+`"`) + `}`},
		"label key":   {job: `labels = {"` + strings.Repeat("k", 63) + `": ""}`},
		"name":        {job: `labels = {}, scheduler = "` + strings.Repeat("s", 63) + `"`},
		"overrides":   {job: `tasks = 1000, overrides = [` + times(1000, `override(index = %d, task = task(args = ["/bin/b"]))`) + `]`},
		"env runs":    {job: `tasks = 440, overrides = [` + times(440, `override(index = %d, task = task(env = {"A": "1"}))`) + `]`},
		"ports":       {task: `ports = [` + times(16, `"p%d"`) + `]`},
		"constraints": {task: `constraints = [` + times(32, `"k%d=v"`) + `]`},
		"relations":   {task: `constraints = ["a=1", "a!=1", "a<1", "a<=1", "a>1", "a>=-9223372036854775808", "a", "!a"]`},
		"tolerations": {task: `tolerations = [` + times(32, `toleration(key = "k%d", forgiveness = "365d")`) + `]`},
		"mounts":      {task: `mounts = [` + times(64, `mount(source = "/s", path = "/m%d")`) + `]`},
		"secrets":     {task: `secrets = [` + times(32, `"s%d"`) + `]`},
		"grace":       {task: `grace = "24h"`},
		"health":      {task: `ports = ["http"], health = health(http = "/", period = "24h", timeout = "24h", start_grace = "24h")`},
		"env":         {task: `env = {"_A1": "x=y"}`},
		"devices":     {task: `base = task(resources = resources(devices = {` + times(16, `"d%d": 1048576`) + `}))`},
		"spec":        {task: `env = {"A": "x" * 260000}`},
	} {
		t.Run(name, func(t *testing.T) {
			text := fmt.Sprintf(`job(name = "j", %s, task = `+task+`)`, orWord(tc.job, "labels = {}"), tc.task)
			f, err := evaluate(t, text)
			if err != nil {
				t.Fatal(err)
			}
			op, err := declared{f.Objects[0], f}.submit()
			if err != nil {
				t.Fatal(err)
			}
			op.GetSubmitJob().Name = strings.ReplaceAll(name, " ", "-")
			op.Principal = &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}
			op.RequestId, op.RequestWallNs = name, 1
			result, err := group.Replica(1).Propose(t.Context(), op)
			if err != nil || result.Refusal != nil {
				t.Errorf("the cell says %v, %v", result.GetRefusal(), err)
			}
		})
	}
}
