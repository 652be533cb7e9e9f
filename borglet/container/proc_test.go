package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func statBlocks(path string) (int64, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return st.Blocks, err
}

func TestProc(t *testing.T) {
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := identify(cmd.Process.Pid)
	if err != nil || !p.alive() {
		t.Fatalf("identify = %v, %v", p, err)
	}
	other := p
	other.StartTicks++
	if other.alive() {
		t.Error("a process that started at another time is the same")
	}
	if err := other.signal(unix.SIGKILL); !errors.Is(err, errGone) {
		t.Errorf("signal to an earlier owner of the pid: %v, want %v", err, errGone)
	}
	h, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.wait(ctx) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("wait = %v, want %v", err, context.Canceled)
	}
	again, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	go func() { ended <- again.wait(context.Background()) }()
	if err := p.signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("wait = %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("wait does not see the end")
	}
	if p.alive() {
		t.Error("alive, although it only waits to be collected")
	}
	reap(p.Pid)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", p.Pid)); err == nil {
		t.Error("not collected")
	}
	if err := p.signal(unix.SIGTERM); !errors.Is(err, errGone) {
		t.Errorf("signal after the end: %v, want %v", err, errGone)
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		path, dir string
		want      bool
	}{
		{"/a/b", "/a", true}, {"/a", "/a", true}, {"/ab", "/a", false}, {"/a", "/a/b", false},
		{"/a/../b", "/a", false}, {"/x", "/", true},
	} {
		if got := within(c.path, c.dir); got != c.want {
			t.Errorf("within(%q, %q) = %v, want %v", c.path, c.dir, got, c.want)
		}
	}
}

func TestCgroupFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
	write("memory.max_usage_in_bytes", "9000\n")
	write("cpuacct.usage", "123456\n")
	v1 := paths{"memory": dir, "cpuacct": dir}
	if v1.oomKills() != 2 || v1.maxMemBytes() != 9000 || v1.cpuNs() != 123456 {
		t.Errorf("version 1: %d %d %d", v1.oomKills(), v1.maxMemBytes(), v1.cpuNs())
	}
	write("memory.events", "low 0\noom 4\noom_kill 3\n")
	write("memory.peak", "8000\n")
	write("cpu.stat", "usage_usec 77\nuser_usec 7\n")
	v2 := paths{"": dir}
	if v2.oomKills() != 3 || v2.maxMemBytes() != 8000 || v2.cpuNs() != 77000 {
		t.Errorf("version 2: %d %d %d", v2.oomKills(), v2.maxMemBytes(), v2.cpuNs())
	}
	if none := (paths{}); none.oomKills() != 0 || none.cpuNs() != 0 {
		t.Error("a cgroup that is not there has used something")
	}
}

func TestShimNeedsItsLock(t *testing.T) {
	// Started by hand, a shim has no lock and says so.
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "CONTAINER_TEST_SHIM="+t.TempDir())
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err == nil || !bytes.Contains(said.Bytes(), []byte("not by hand")) {
		t.Errorf("shim by hand: %v, said %q", err, &said)
	}
}

func TestMain(m *testing.M) {
	if dir := os.Getenv("CONTAINER_TEST_SHIM"); dir != "" {
		os.Exit(Shim(dir))
	}
	os.Exit(m.Run())
}
