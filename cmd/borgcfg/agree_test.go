package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borglet"
	borgcell "borg/borgmaster/cell"
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
		"overrides":   {job: `tasks = 1000, overrides = [` + times(1000, `override(index = %d, task = task(args = ["/bin/b"]))`) + `]`},
		"env runs":    {job: `tasks = 440, overrides = [` + times(440, `override(index = %d, task = task(env = {"A": "1"}))`) + `]`},
		"ports":       {task: `ports = [` + times(16, `"p%d"`) + `]`},
		"constraints": {task: `constraints = [` + times(32, `"k%d=v"`) + `]`},
		"relations":   {task: `constraints = ["a=1", "a!=1", "a<1", "a<=1", "a>1", "a>=-9223372036854775808", "a", "!a"]`},
		"tolerations": {task: `tolerations = [` + times(32, `toleration(key = "k%d", forgiveness = "365d")`) + `]`},
		"mounts":      {task: `mounts = [` + times(64, `mount(source = "/s", path = "/m%d")`) + `]`},
		"secrets":     {task: `secrets = [` + times(32, `"s%d"`) + `]`},
		"grace":       {task: `grace = "24h"`},
		"health":      {task: `ports = ["http"], health = health(http = "/", period = "24h", timeout = "60s", start_grace = "24h")`},
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

// TestWrongIsRefusedAlike submits wrong specs as a file and as an op of a raw client:
// what a job file may not say, nobody may. Each case is the wrong part of a job file
// and the same done to the spec of a good job.
func TestWrongIsRefusedAlike(t *testing.T) {
	group, err := memlog.NewGroup(memlog.Config{CellID: "test", Epoch: 1, Clock: func() (int64, int64) { return 1, 1 }})
	if err != nil {
		t.Fatal(err)
	}
	group.Elect(1)
	result, err := group.Replica(1).Propose(t.Context(), &borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: borgcell.BuildFormat}}})
	if err != nil || result.Refusal != nil {
		t.Fatal(result, err)
	}
	n := 0
	raw := func(change func(*borgpb.JobSpec)) *borgpb.Refusal {
		t.Helper()
		n++
		spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200,
			Task: &borgpb.TaskSpec{Args: []string{"/bin/a"}, Ports: []string{"http"}, Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}}}
		change(spec)
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		result, err := group.Replica(1).Propose(t.Context(), &borgpb.Op{
			RequestId: fmt.Sprint("raw-", n), RequestWallNs: 1, Principal: &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER},
			Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: fmt.Sprint("j", n), Spec: data}}})
		if err != nil {
			t.Fatal(err)
		}
		return result.Refusal
	}
	if r := raw(func(*borgpb.JobSpec) {}); r != nil {
		t.Fatalf("the good job is refused: %v", r)
	}
	for name, c := range map[string]struct {
		job, task string
		change    func(*borgpb.JobSpec)
	}{
		"no resources":       {task: `resources = None`, change: func(s *borgpb.JobSpec) { s.Task.Resources = nil }},
		"no memory":          {task: `resources = resources(cpu = 1)`, change: func(s *borgpb.JobSpec) { s.Task.Resources.MemBytes = 0 }},
		"no cpu":             {task: `resources = resources(mem = "1GiB")`, change: func(s *borgpb.JobSpec) { s.Task.Resources.CpuMilli = 0 }},
		"no cpu at 450":      {job: `priority = 450`, task: `resources = resources(mem = "1GiB")`, change: func(s *borgpb.JobSpec) { s.Priority, s.Task.Resources.CpuMilli = 450, 0 }},
		"free and unlimited": {job: `priority = 0`, task: `resources = None`, change: func(s *borgpb.JobSpec) { s.Priority, s.Task.Resources = 0, nil }},
		"priority":           {job: `priority = 451`, change: func(s *borgpb.JobSpec) { s.Priority = 451 }},
		"tasks":              {job: `tasks = 100001`, change: func(s *borgpb.JobSpec) { s.Tasks = 100001 }},
		"gang":               {job: `tasks = 10001, gang = True`, change: func(s *borgpb.JobSpec) { s.Tasks, s.Gang = 10001, true }},
		"env":                {task: `env = {"A-B": "c"}`, change: func(s *borgpb.JobSpec) { s.Task.Env = map[string]string{"A-B": "c"} }},
		"env digit":          {task: `env = {"1A": "c"}`, change: func(s *borgpb.JobSpec) { s.Task.Env = map[string]string{"1A": "c"} }},
		"port number":        {task: `ports = ["8080"]`, change: func(s *borgpb.JobSpec) { s.Task.Ports = []string{"8080"} }},
		"cwd":                {task: `cwd = "/a/../b"`, change: func(s *borgpb.JobSpec) { s.Task.Cwd = "/a/../b" }},
		"rootfs":             {task: `rootfs = "/a//b"`, change: func(s *borgpb.JobSpec) { s.Task.Rootfs = "/a//b" }},
		"mount of a root":    {task: `mounts = [mount(source = "/x", path = "/")]`, change: func(s *borgpb.JobSpec) { s.Task.Mounts = []*borgpb.Mount{{Source: "/x", Path: "/"}} }},
		"mount in proc":      {task: `mounts = [mount(source = "/x", path = "/proc/sys")]`, change: func(s *borgpb.JobSpec) { s.Task.Mounts = []*borgpb.Mount{{Source: "/x", Path: "/proc/sys"}} }},
		"mount source":       {task: `mounts = [mount(source = "/x/../etc", path = "/y")]`, change: func(s *borgpb.JobSpec) { s.Task.Mounts = []*borgpb.Mount{{Source: "/x/../etc", Path: "/y"}} }},
		"check elsewhere":    {task: `health = health(http = "@127.0.0.1:80/x")`, change: func(s *borgpb.JobSpec) { s.Task.Health = &borgpb.HealthCheck{HttpPath: "@127.0.0.1:80/x"} }},
		"check of both": {task: `health = health(http = "/x", command = ["/bin/a"])`, change: func(s *borgpb.JobSpec) {
			s.Task.Health = &borgpb.HealthCheck{HttpPath: "/x", Command: []string{"/bin/a"}}
		}},
		"check without port": {task: `ports = [], health = health(http = "/x")`, change: func(s *borgpb.JobSpec) {
			s.Task.Ports, s.Task.Health = nil, &borgpb.HealthCheck{HttpPath: "/x"}
		}},
		"check of no port":   {task: `health = health(http = "/x", port = "other")`, change: func(s *borgpb.JobSpec) { s.Task.Health = &borgpb.HealthCheck{HttpPath: "/x", Port: "other"} }},
		"ready with grace":   {task: `ready = health(http = "/x", start_grace = "1s")`, change: func(s *borgpb.JobSpec) { s.Task.Ready = &borgpb.HealthCheck{HttpPath: "/x", StartGraceNs: 1e9} }},
		"limit of a service": {task: `max_runtime = "1h"`, change: func(s *borgpb.JobSpec) { s.Task.MaxRuntimeNs = 3600e9 }},
		"finishes at no limit": {job: `kind = "batch"`, task: `max_runtime_finishes = True`, change: func(s *borgpb.JobSpec) {
			s.Kind, s.Task.MaxRuntimeFinishes = borgpb.JobKind_JOB_KIND_BATCH, true
		}},
		"limit too long": {job: `kind = "batch"`, task: `max_runtime = "367d"`, change: func(s *borgpb.JobSpec) {
			s.Kind, s.Task.MaxRuntimeNs = borgpb.JobKind_JOB_KIND_BATCH, 367*24*3600e9
		}},
		"scheduler":        {job: `scheduler = "other"`, change: func(s *borgpb.JobSpec) { s.Scheduler = "other" }},
		"check takes long": {task: `health = health(http = "/x", timeout = "61s")`, change: func(s *borgpb.JobSpec) { s.Task.Health = &borgpb.HealthCheck{HttpPath: "/x", TimeoutNs: 61e9} }},
		"check too long":   {task: `health = health(http = "/x", period = "25h")`, change: func(s *borgpb.JobSpec) { s.Task.Health = &borgpb.HealthCheck{HttpPath: "/x", PeriodNs: 25 * 3600e9} }},
		"override of nothing": {job: `tasks = 2, overrides = [override(index = 1, task = task(resources = resources(cpu = 1)))]`, change: func(s *borgpb.JobSpec) {
			s.Tasks, s.Overrides = 2, []*borgpb.TaskOverride{{First: 1, Last: 1, Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 1000}}}}
		}},
		"processors as devices": {task: `resources = resources(cpu = 1, mem = "1GiB", devices = {"exclusive-cpu": 1})`, change: func(s *borgpb.JobSpec) {
			s.Task.Resources.Devices = map[string]int64{borgpb.ExclusiveCPU: 1}
		}},
		"surge of a batch job": {job: `kind = "batch", update = update(surge = 1)`, change: func(s *borgpb.JobSpec) {
			s.Kind, s.Update = borgpb.JobKind_JOB_KIND_BATCH, &borgpb.UpdatePolicy{Surge: 1}
		}},
		"budget of nothing": {job: `disruption_budget = disruption_budget()`, change: func(s *borgpb.JobSpec) { s.DisruptionBudget = &borgpb.DisruptionBudget{} }},
	} {
		t.Run(name, func(t *testing.T) {
			base := []string{`args = ["/bin/a"]`}
			for _, part := range []struct{ name, text string }{{"ports", `ports = ["http"]`}, {"resources", `resources = resources(cpu = 1, mem = "1GiB")`}} {
				if !strings.Contains(c.task, part.name+" = ") {
					base = append(base, part.text)
				}
			}
			text := fmt.Sprintf("job(name = \"j\", %s, task = task(%s, %s))", orWord(c.job, "labels = {}"), strings.Join(base, ", "), orWord(c.task, "env = {}"))
			f, err := evaluate(t, text)
			// What the cell may fill in is missing until it is asked.
			if err == nil && f.Objects[0].Lacks() == nil {
				t.Errorf("the file is taken: %s", text)
			}
			if r := raw(c.change); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID && r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT {
				t.Errorf("the cell says %v to the same by a raw client, want INVALID or LIMIT", r)
			}
		})
	}
}
