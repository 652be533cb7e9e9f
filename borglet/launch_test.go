package borglet

import (
	"slices"
	"strings"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func sample() *borgrpc.Desired {
	return &borgrpc.Desired{
		Copy: &borgrpc.CopyID{JobUid: "1-5-0", Index: 3, Attempt: 2}, User: "alice", Job: "web", Cell: "test",
		Priority: 200, Version: 1, Ports: []uint32{20001, 20002}, Devices: []*borgpb.DeviceGrant{{Name: "big-gpu", Numbers: []uint32{0, 2}}},
		Spec: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 500, MemBytes: 1 << 30},
			Args:      []string{"/bin/serve", "--port={{port.http}}", "--admin={{ port.admin-ui }}", "--me={{job.user}}/{{job.name}}/{{task.index}}@{{cell}}", "{{.Other}}"},
			Env:       map[string]string{"DATA": "{{task.dir}}/data", "PORT": "1", "HOME": "/here"},
			Ports:     []string{"http", "admin-ui"},
		},
	}
}

func TestNewLaunch(t *testing.T) {
	l, err := NewLaunch(sample(), 7, Places{Dir: "/d/tasks/x", Machine: "m1", OwnFiles: true})
	if err != nil {
		t.Fatal(err)
	}
	wantArgs := []string{"/bin/serve", "--port=20001", "--admin=20002", "--me=alice/web/3@test", "{{.Other}}"}
	if !slices.Equal(l.Args, wantArgs) {
		t.Errorf("Args = %q, want %q", l.Args, wantArgs)
	}
	wantEnv := []string{
		"BORG_ATTEMPT=2", "BORG_CELL=test", "BORG_JOB=alice/web", "BORG_KIND=unspecified", "BORG_MACHINE=m1", "BORG_TASK=alice/web/3",
		"BORG_TASK_DIR=/task", "BORG_TASK_INDEX=3", "BORG_USER=alice", "DATA=/task/data", "DEVICE_BIG_GPU=0,2", "HOME=/here",
		"PATH=" + defaultPath, "PORT=20001", "PORT_ADMIN_UI=20002", "PORT_HTTP=20001",
	}
	if !slices.Equal(l.Env, wantEnv) {
		t.Errorf("Env = %q, want %q", l.Env, wantEnv)
	}
	if l.Cwd != "/task" || l.Run != 7 || l.Hostname != "web-3" || l.Limits != (Limits{CPUMilli: 500, MemBytes: 1 << 30}) || l.OOMScore != 200 {
		t.Errorf("NewLaunch = %+v", l)
	}
}

func TestNewLaunchOnTheMachinesFiles(t *testing.T) {
	d := sample()
	d.Alloc = "alice/pool/4"
	d.AllocResources = &borgpb.Resources{CpuMilli: 2000, MemBytes: 2 << 30}
	d.Spec.Args = []string{"x", "{{task.dir}}", "{{alloc.dir}}"}
	d.Spec.CpuSlack, d.Spec.MemSlack = borgpb.Slack_SLACK_OFF, borgpb.Slack_SLACK_ON
	l, err := NewLaunch(d, 1, Places{Dir: "/d/tasks/x", AllocDir: "/d/allocs/alice.pool.4", Path: "/opt/bin"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"x", "/d/tasks/x/task", "/d/allocs/alice.pool.4"}; !slices.Equal(l.Args, want) {
		t.Errorf("Args = %q, want %q", l.Args, want)
	}
	if !slices.Contains(l.Env, "PATH=/opt/bin") || l.Cwd != "/d/tasks/x/task" || l.Alloc != "alice.pool.4" {
		t.Errorf("NewLaunch = %+v", l)
	}
	if !l.Limits.CPUHard || !l.Limits.MemSoft || l.AllocLimits != (Limits{CPUMilli: 2000, MemBytes: 2 << 30}) {
		t.Errorf("limits = %+v, of the alloc %+v", l.Limits, l.AllocLimits)
	}
}

func TestNewLaunchRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*borgrpc.Desired)
		want   string
	}{
		{"no args", func(d *borgrpc.Desired) { d.Spec.Args = nil }, "no args"},
		{"unknown port", func(d *borgrpc.Desired) { d.Spec.Args = []string{"x", "{{port.htp}}"} }, "port.http"},
		{"no alloc", func(d *borgrpc.Desired) { d.Spec.Args = []string{"x", "{{alloc.dir}}"} }, "no alloc"},
		{"in env", func(d *borgrpc.Desired) { d.Spec.Env = map[string]string{"A": "{{task.name}}"} }, "env A"},
		{"bad env", func(d *borgrpc.Desired) { d.Spec.Env = map[string]string{"A=B": "c"} }, "A=B"},
		{"zero byte", func(d *borgrpc.Desired) { d.Spec.Env = map[string]string{"A": "c\x00"} }, "zero byte"},
		{"relative cwd", func(d *borgrpc.Desired) { d.Spec.Cwd = "data" }, "not absolute"},
		{"ungranted port", func(d *borgrpc.Desired) { d.Ports = d.Ports[:1]; d.Spec.Args = d.Spec.Args[:1] }, "admin-ui was not granted"},
		{"bad id", func(d *borgrpc.Desired) { d.Copy.JobUid = "../../etc" }, "uid"},
	} {
		d := sample()
		c.change(d)
		if _, err := NewLaunch(d, 1, Places{Dir: "/d", OwnFiles: true}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: NewLaunch = %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 63)
	if got := hostname(long, 99999); len(got) != 63 || !strings.HasSuffix(got, "a-99999") {
		t.Errorf("hostname = %q", got)
	}
}

func TestParseID(t *testing.T) {
	for _, s := range []string{"1-5-0.0.1", "1-5-0.99999.18446744073709551615"} {
		if id, err := ParseID(s); err != nil || id.String() != s {
			t.Errorf("ParseID(%q) = %v, %v", s, id, err)
		}
	}
	for _, s := range []string{"", "1-5-0", "1-5-0.0", "1-5-0.0.0", "1-5-0.-1.1", "1-5-0.00.1", "../x.0.1", "A.0.1", "-a.0.1", "1-5-0.0.1.2"} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("ParseID(%q) = %v, want an error", s, id)
		}
	}
}

func TestBackoff(t *testing.T) {
	b := DefaultBackoff()
	var got []int64
	for failures := range uint32(9) {
		got = append(got, b.delayNs(failures)/1e9)
	}
	if want := []int64{1, 10, 20, 40, 80, 160, 300, 300, 300}; !slices.Equal(got, want) {
		t.Errorf("delays = %v s, want %v", got, want)
	}
	if b.delayNs(1<<31) != b.MaxNs {
		t.Errorf("a long row of ends waits %d ns", b.delayNs(1<<31))
	}
}
