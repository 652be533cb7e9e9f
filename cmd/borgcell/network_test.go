package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// ownNetVariable makes a test go on in a network that was made for it.
const ownNetVariable = "BORGCELL_TEST_OWN_NET"

// inOwnNetwork runs the test that calls it once more, in a network with nothing but a
// loopback device, and returns false; there it returns true.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	realProcesses(t)
	if os.Getenv(ownNetVariable) != "" {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("networks need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the tool ip (Debian: iproute2)")
	}
	for _, plugin := range []string{"bridge", "host-local"} {
		if _, err := os.Stat(filepath.Join("/usr/lib/cni", plugin)); err != nil {
			t.Skip("needs CNI plugins in /usr/lib/cni (Debian: containernetworking-plugins)")
		}
	}
	again := exec.Command("/bin/sh", "-c", `ip link set lo up && exec "$0" "$@"`, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), ownNetVariable+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := again.CombinedOutput()
	t.Logf("in a network of its own:\n%s", out)
	switch {
	case err != nil:
		t.Errorf("in a network of its own: %v", err)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skip("skipped in a network of its own, as said above")
	}
	return false
}

// networkedCell is a cell whose machines give tasks networks of their own.
func networkedCell(t *testing.T, masters, machines int) *Cell {
	t.Helper()
	conf, leases := t.TempDir(), t.TempDir()
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "tasks", "plugins": [
		{"type": "bridge", "bridge": "tasks0", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.98.0.0/24", "dataDir": %q}}]}`, leases)
	if err := os.WriteFile(filepath.Join(conf, "tasks.conflist"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c := newChaosCell(t, masters, machines)
	c.alter = func(spec *processSpec) {
		if filepath.Base(spec.Path) == "borglet" {
			spec.Args = append(spec.Args, "--cni-conf", conf)
		}
	}
	c.startAll(t)
	c.hasLatestFormat(t)
	if a, err := c.attributes(shortly(t)); err != nil || a["network"] != "own" {
		t.Skipf("tasks have no networks of their own here: %v, %v", a, err)
	}
	return c
}

// serves has a page of each task answered at the address that names give for it, and
// returns the addresses.
func (c *Cell) serves(t *testing.T, job, port string, tasks int) (addrs []string) {
	t.Helper()
	waitFor(t, "all tasks of "+job+" are named and answer", func() string {
		addrs = nil
		where, err := c.client.Resolve(shortly(t), &borgrpc.ResolveRequest{User: c.user, Job: job})
		if err != nil || len(where.Endpoints) != tasks {
			return fmt.Sprintf("%v, %v", where, err)
		}
		for _, e := range where.Endpoints {
			if !e.Running {
				return e.String()
			}
			resp, err := http.Get("http://" + net.JoinHostPort(e.Host, port))
			if err != nil {
				return err.Error()
			}
			page, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if want := fmt.Sprintf("%s/%d", job, e.Index); err != nil || !strings.Contains(string(page), want) {
				return fmt.Sprintf("%s says %q, %v; want a page of %s", e.Host, page, err, want)
			}
			addrs = append(addrs, e.Host)
		}
		return ""
	})
	return addrs
}

// TestOwnNetworksAreNamed: tasks of one machine serve the same port, each at an address of
// its own, where names and health checks find them, over the death of masters and
// borglets; a task in an alloc has the alloc's. Nothing is left of it in the end.
func TestOwnNetworksAreNamed(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	c := networkedCell(t, 3, 1)
	spec := sleepers(3)
	spec.Task.Mounts = []*borgpb.Mount{{Source: c.binDir, Path: "/opt/bin"}}
	spec.Task.Args = []string{"/opt/bin/hello", "--port={{port.http}}"}
	spec.Task.Ports, spec.Task.Network = []string{"http"}, borgpb.Network_NETWORK_OWN
	spec.Task.Health = &borgpb.HealthCheck{HttpPath: "/healthz"}
	c.run(t, "checked", spec)

	spec = sleepers(2)
	spec.Task.Mounts = []*borgpb.Mount{{Source: c.binDir, Path: "/opt/bin"}}
	spec.Task.Args, spec.Task.Network = []string{"/opt/bin/hello", "--port=80"}, borgpb.Network_NETWORK_OWN
	before := c.run(t, "same", spec)
	addrs := c.serves(t, "same", "80", 2)
	if addrs[0] == addrs[1] {
		t.Errorf("two tasks are named at %s", addrs[0])
	}
	for _, name := range []string{c.machineName(1), c.masterName(1), c.masterName(2), c.masterName(3)} {
		if err := c.Kill(name); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i <= 3; i++ {
		if err := c.StartMaster(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.StartBorglet(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if after := c.serves(t, "same", "80", 2); !slices.Equal(after, addrs) {
		t.Errorf("tasks were at %q and are at %q", addrs, after)
	}
	c.stillSame(t, before, "same")
}

// TestProbeOwnNetwork: what a task with a network of its own sees and can do.
func TestProbeOwnNetwork(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	c := networkedCell(t, 1, 1)
	a, err := c.attributes(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	if a["runtime"] != "container" || a["seccomp"] == "none" || a["userns"] != "own" {
		t.Skipf("the profile is not that here: runtime %s, seccomp %s, userns %s", a["runtime"], a["seccomp"], a["userns"])
	}
	all, err := c.probed(shortly(t), borgpb.Network_NETWORK_OWN)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range differing(all) {
		t.Errorf("%s: got %q, want %q: %s", f.name, f.got, f.wanted, f.why)
	}
}
