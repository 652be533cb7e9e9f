package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	batch   = borgpb.JobKind_JOB_KIND_BATCH
	service = borgpb.JobKind_JOB_KIND_SERVICE
)

// log reads all that a copy wrote, through the borglet.
func (m *machine) logOf(id *borgrpc.CopyID) string {
	m.t.Helper()
	stream, err := m.client.ReadLog(context.Background(), &borgrpc.ReadLogRequest{Copy: id})
	if err != nil {
		m.t.Fatal(err)
	}
	var text strings.Builder
	for {
		resp, err := stream.Recv()
		if err == io.EOF {
			return text.String()
		}
		if err != nil {
			m.t.Fatalf("ReadLog: %v", err)
		}
		text.Write(resp.GetData())
	}
}

// TestOutOfMemory: a task that grows beyond its limit is ended by the kernel,
// and that is said, whether it is the program itself or a child of it.
func TestOutOfMemory(t *testing.T) {
	m := newMachine(t, "container")
	limit := &borgpb.Resources{CpuMilli: 1000, MemBytes: 32 << 20}
	self := m.want(batch, &borgpb.TaskSpec{Args: []string{"tail", "/dev/zero"}, Resources: limit})
	child := m.want(batch, &borgpb.TaskSpec{Args: []string{"/bin/sh", "-c", "tail /dev/zero; exit 5"}, Resources: limit})
	if r := m.untilState(self, failed); r.GetExit().GetSignal() != 9 || !r.GetExit().GetOom() {
		t.Errorf("the program: got %v, want signal 9 and out of memory", r)
	}
	if r := m.untilState(child, failed); r.GetExit().GetCode() != 5 || !r.GetExit().GetOom() {
		t.Errorf("a child: got %v, want code 5 and out of memory", r)
	}
}

// TestInside: what a task sees and may do.
func TestInside(t *testing.T) {
	m := newMachine(t, "container")
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "file"), []byte("from the machine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	id := m.want(batch, &borgpb.TaskSpec{
		Args: []string{"/bin/sh", "-c", `
			echo pwd=$(pwd) host=$(hostname) port=$PORT http=$PORT_HTTP task=$BORG_TASK arg=$0
			echo pids=$(ls -d /proc/[0-9]* | wc -l)
			grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -d '\t'
			cat /data/file
			echo x > /data/file2 || echo data is read-only
			echo x > /usr/x || echo usr is read-only
			echo x > /x || echo root is read-only
			echo x > /task/x && echo task is writable
			echo x > /tmp/x && echo tmp is writable
			mknod /tmp/null c 1 3 || echo no devices
			ls /.borg/.. | tr '\n' ' '; echo
			echo 1 | awk '{print "awk works"}'
			ls /etc/shadow || echo no shadow
			kill -0 1 && echo init is there
			cat /proc/kcore | head -c 1 | wc -c
			nice -n -5 true && echo status=$?
			ls /proc/self/fd | tr '\n' ' '; echo
			env | grep _BORG_INIT || echo clean
		`, "{{port.http}}"},
		Ports:  []string{"http"},
		Mounts: []*borgpb.Mount{{Source: data, Path: "/data"}},
	})
	m.desired[0].Ports = []uint32{20123}
	m.untilState(id, finished)
	out := m.logOf(id)
	t.Log("\n" + out)
	for _, want := range []string{
		"pwd=/task host=web-0 port=20123 http=20123 task=alice/web/0 arg=20123\n",
		"CapEff:0000000000000000\n", "CapBnd:0000000000000000\n", "NoNewPrivs:1\n",
		"from the machine\n", "data is read-only\n", "usr is read-only\n", "root is read-only\n",
		"task is writable\n", "tmp is writable\n", "no devices\n", "awk works\n", "no shadow\n", "init is there\n", "clean\n", "0 1 2 3 \n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it did not say %q", want)
		}
	}
}

// uidMap is the user ids of the machine that a copy has, as the kernel says it.
func (m *machine) uidMap(id *borgrpc.CopyID) string {
	m.t.Helper()
	pid := m.untilState(id, running).GetPid()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.FormatInt(pid, 10), "uid_map"))
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// TestOwnUsers: each copy has user ids that nobody else has, also when the next
// borglet starts one; what a task writes is its alloc's, whoever wrote it.
func TestOwnUsers(t *testing.T) {
	m := newMachine(t, "container")
	if !strings.Contains(m.log.String(), `"userns":"own"`) {
		t.Skip("tasks have no user name spaces here")
	}
	seen := map[string]bool{"0 0 4294967295": true}
	differs := func(id *borgrpc.CopyID) {
		t.Helper()
		ids := m.uidMap(id)
		if seen[ids] || !strings.HasPrefix(ids, "0 ") || !strings.HasSuffix(ids, " 65536") {
			t.Errorf("a copy has the ids %q; others have %v", ids, seen)
		}
		seen[ids] = true
	}
	first, second := m.service("sleep", "3600"), m.service("sleep", "3600")
	differs(first)
	differs(second)
	m.kill()
	m.start()
	differs(m.service("sleep", "3600"))
	write := m.batch("/bin/sh", "-c", "umask 077; mkdir /alloc/d; echo secret > /alloc/d/f; echo over > /task/f; echo said > /dev/stdout")
	read := m.batch("/bin/sh", "-c", "while [ ! -s /alloc/d/f ]; do sleep 0.05; done; cat /alloc/d/f; stat -c %u /alloc/d/f")
	for _, d := range m.desired[len(m.desired)-2:] {
		d.Alloc, d.AllocResources = "alice/pool/0", &borgpb.Resources{CpuMilli: 1000, MemBytes: 96 << 20}
	}
	m.untilState(read, finished)
	if got := m.logOf(read); got != "secret\n0\n" {
		t.Errorf("a task of the same alloc reads %q", got)
	}
	m.untilState(write, finished)
	if got := m.logOf(write); got != "said\n" {
		t.Errorf("opened again, its output has %q", got)
	}
}

// TestLimits: limits are those of the spec, and change in place.
func TestLimits(t *testing.T) {
	m := newMachine(t, "container")
	spec := &borgpb.TaskSpec{
		Args: []string{"sleep", "3600"}, CpuSlack: borgpb.Slack_SLACK_OFF,
		Resources: &borgpb.Resources{CpuMilli: 250, MemBytes: 64 << 20},
	}
	id := m.want(service, spec)
	before := m.untilState(id, running)
	group := func(controller, v1, v2 string) string {
		t.Helper()
		path := filepath.Join("/sys/fs/cgroup", controller, "borg", m.name, filepath.Base(m.file(id, "")), v1)
		if !exists("/sys/fs/cgroup/" + controller) {
			path = filepath.Join("/sys/fs/cgroup/borg", m.name, filepath.Base(m.file(id, "")), v2)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	mem := func() string { return group("memory", "memory.limit_in_bytes", "memory.max") }
	quota := func() string { return group("cpu", "cpu.cfs_quota_us", "cpu.max") }
	// Whom the kernel takes first, if the machine itself has no memory left.
	for _, c := range []struct {
		priority int32
		score    int
	}{{200, 200}, {100, 700}} {
		other := m.want(service, &borgpb.TaskSpec{Args: []string{"sleep", "3600"}})
		m.desired[len(m.desired)-1].Priority = c.priority
		pid := m.untilState(other, running).GetPid()
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid)); err != nil || strings.TrimSpace(string(text)) != strconv.Itoa(c.score) {
			t.Errorf("with priority %d its score is %q, %v, want %d", c.priority, text, err, c.score)
		}
		m.stop(other, 0)
		m.untilState(other, stopped)
	}
	if got := mem(); got != strconv.Itoa(64<<20) {
		t.Errorf("memory limit %s, want 64 MiB", got)
	}
	if got := quota(); !strings.HasPrefix(got, "25000") {
		t.Errorf("quota %s, want 25000", got)
	}
	m.desired[0].Version = 2
	m.desired[0].Spec = &borgpb.TaskSpec{Args: spec.Args, Resources: &borgpb.Resources{CpuMilli: 500, MemBytes: 128 << 20}}
	m.until(id, "with new limits", func(*borgpb.TaskReport) bool { return mem() == strconv.Itoa(128<<20) })
	m.until(id, "without a hard limit", func(*borgpb.TaskReport) bool {
		return strings.HasPrefix(quota(), "-1") || strings.HasPrefix(quota(), "max")
	})
	resp := m.poll()
	if r := resp.GetTasks()[0]; r.GetPid() != before.GetPid() || r.GetRestarts() != 0 || resp.GetVersions()[0] != 2 {
		t.Errorf("after the change: %v, want the same process", r)
	}
	for deadline := time.Now().Add(patience); len(resp.GetUsage()) == 0; resp = m.poll() {
		if time.Now().After(deadline) {
			t.Fatal("its usage is never reported")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if u := resp.GetUsage()[0]; u.GetMemBytesPeak() <= 0 || u.GetCopy().GetJobUid() != id.GetJobUid() {
		t.Errorf("usage %v, want some memory", u)
	}
}

// TestAlloc: tasks in an alloc share its directory and its memory.
func TestAlloc(t *testing.T) {
	m := newMachine(t, "container")
	write := m.batch("/bin/sh", "-c", "echo shared > {{alloc.dir}}/file; sleep 3600")
	read := m.batch("/bin/sh", "-c", "while [ ! -s $BORG_ALLOC_DIR/file ]; do sleep 0.05; done; cat /alloc/file")
	grow := m.want(batch, &borgpb.TaskSpec{Args: []string{"tail", "/dev/zero"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 30}})
	for _, d := range m.desired {
		d.Alloc, d.AllocResources = "alice/pool/0", &borgpb.Resources{CpuMilli: 1000, MemBytes: 96 << 20}
	}
	m.untilState(read, finished)
	if got := m.logOf(read); got != "shared\n" {
		t.Errorf("read %q from the alloc's directory", got)
	}
	if r := m.untilState(grow, failed); !r.GetExit().GetOom() {
		t.Errorf("beyond the alloc's memory: got %v, want out of memory", r)
	}
	m.stop(write, 0)
	m.untilState(write, stopped)
}

// TestRefusals: what cannot be, or may not be, is said and not tried.
func TestRefusals(t *testing.T) {
	m := newMachine(t, "container")
	sh := []string{"true"}
	for want, spec := range map[string]*borgpb.TaskSpec{
		"no such file or directory on machine": {Args: sh, Mounts: []*borgpb.Mount{{Source: "/no/such", Path: "/data"}}},
		"which no task may see":                {Args: sh, Mounts: []*borgpb.Mount{{Source: m.dir, Path: "/data"}}},
		"--writable-mounts":                    {Args: sh, Mounts: []*borgpb.Mount{{Source: "/usr", Path: "/data", Writable: true}}},
		"nothing may be mounted in /proc":      {Args: sh, Mounts: []*borgpb.Mount{{Source: "/usr", Path: "/proc/x"}}},
		"it has no missing/here to mount on":   {Args: sh, Mounts: []*borgpb.Mount{{Source: "/usr/share", Path: "/usr/missing/here"}}},
		"no such directory on machine":         {Args: sh, Rootfs: "/no/such"},
		"working directory /no/such":           {Args: sh, Cwd: "/no/such"},
		"{{port.http}}":                        {Args: []string{"true", "{{port.http}}"}},
	} {
		id := m.want(batch, spec)
		if r := m.untilState(id, failed); !strings.Contains(r.GetExit().GetError(), want) {
			t.Errorf("%v: got %v, want an error with %q", spec, r, want)
		}
	}
}

// TestRootfs: a root file system without a single library, and with a program
// that needs none.
func TestRootfs(t *testing.T) {
	m := newMachine(t, "container")
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(staticProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin", "hello"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	id := m.want(batch, &borgpb.TaskSpec{Args: []string{"/bin/hello"}, Rootfs: root})
	none := m.want(batch, &borgpb.TaskSpec{Args: []string{"/bin/sh"}, Rootfs: root})
	m.untilState(id, finished)
	if got := m.logOf(id); got != "hello from nowhere\n" {
		t.Errorf("it said %q", got)
	}
	if r := m.untilState(none, failed); !strings.Contains(r.GetExit().GetError(), root) {
		t.Errorf("no shell there: got %v", r)
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 1 {
		t.Errorf("the root file system has now %v (%v), want bin alone", entries, err)
	}
}

// staticProgram builds a program that needs no library.
func staticProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "hello.go")
	text := "package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(\"hello from nowhere\\n\") }\n"
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "hello")
	cmd := exec.Command("go", "build", "-o", out, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build a static program: %v\n%s", err, text)
	}
	return out
}
