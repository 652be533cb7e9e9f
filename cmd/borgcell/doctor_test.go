package main

import (
	"strings"
	"testing"
	"time"
)

func goodFacts() facts {
	return facts{
		os: "linux", arch: "amd64", kernel: "6.1", goVersion: "go1.26", cpus: 2, root: true,
		binDir: "/b", borgletCgo: true, borgletSeccomp: true, built: time.Unix(1000, 0), now: time.Unix(2000, 0),
		cgroupVersion: "v2", controllers: []string{"cpu", "memory", "pids"}, userNamespaces: true, nft: true,
		memBytes: 8 << 30, memFreeBytes: 6 << 30, dir: "/d", diskFreeBytes: 50 << 30, runDir: "/run/borg/borgcell/local",
		sysctls:   map[string]int64{"kernel.pid_max": 4_194_304, "fs.inotify.max_user_instances": 128},
		fileLimit: 20000, otherPortBase: 8000, portsFree: []string{"7001-7005"},
	}
}

// Every fault is named with its fix; only what makes a cell impossible is
// broken.
func TestDiagnose(t *testing.T) {
	if got := worst(diagnose(goodFacts())); got != fine {
		t.Errorf("a good machine is %v", got)
	}
	plain := goodFacts()
	if plain.networkLacks, plain.noNetworkConf = "there is no configuration", true; worst(diagnose(plain)) != fine {
		t.Error("a machine without a configuration of networks is weaker")
	}
	for _, c := range []struct {
		name   string
		spoil  func(*facts)
		what   string
		level  level
		fixHas string
	}{
		{"not linux", func(f *facts) { f.os = "darwin" }, "system", broken, "Linux"},
		{"program missing", func(f *facts) { f.missing = []string{"borglet"} }, "programs", broken, "make"},
		{"not root", func(f *facts) { f.root = false }, "user", weaker, "sudo"},
		{"no cgo", func(f *facts) { f.borgletCgo = false }, "borglet", weaker, "gcc"},
		{"no libseccomp", func(f *facts) { f.borgletSeccomp = false }, "seccomp", weaker, "libseccomp-dev"},
		{"no cgroups", func(f *facts) { f.cgroupVersion = "none" }, "cgroups", weaker, "mount"},
		{"cgroups not writable", func(f *facts) { f.cgroupErr = "read-only file system" }, "cgroups", weaker, "privileged"},
		{"controller missing", func(f *facts) { f.controllersMissing = []string{"memory"} }, "cgroups", weaker, "subtree_control"},
		{"no pid namespace", func(f *facts) { f.namespacesMissing = []string{"pid"} }, "namespaces", weaker, "CONFIG_NAMESPACES"},
		{"no user namespaces", func(f *facts) { f.userNamespaces = false }, "namespaces", weaker, "max_user_namespaces"},
		{"no nft", func(f *facts) { f.nft = false }, "port filter", weaker, "nftables"},
		{"no CNI plugins", func(f *facts) { f.networkLacks = "network borg: no bridge" }, "networks", weaker, "containernetworking-plugins"},
		{"no shell", func(f *facts) { f.toolsMissing = []string{"/bin/sh"} }, "base files", broken, "apt-get"},
		{"little memory", func(f *facts) { f.memFreeBytes = 1 << 30 }, "memory", weaker, "--masters"},
		{"no memory", func(f *facts) { f.memFreeBytes = 1 << 20 }, "memory", broken, "--masters"},
		{"little disk", func(f *facts) { f.diskFreeBytes = 1 << 30 }, "disk", weaker, "--dir"},
		{"no disk", func(f *facts) { f.diskFreeBytes = 1 << 20 }, "disk", broken, "--dir"},
		{"directory of another", func(f *facts) { f.dirErr = "permission denied" }, "disk", broken, "--dir"},
		{"few files", func(f *facts) { f.fileLimit = 256 }, "open files", broken, "ulimit"},
		{"few processes", func(f *facts) { f.sysctls["kernel.pid_max"] = 32768 }, "kernel counters", weaker, "sysctl -w kernel.pid_max=4194304"},
		{"few of several", func(f *facts) { f.sysctls["fs.inotify.max_user_instances"], f.sysctls["fs.file-max"] = 8, 1000 }, "kernel counters", weaker,
			"sysctl -w fs.file-max=8388608 fs.inotify.max_user_instances=1024"},
		{"clock", func(f *facts) { f.now = time.Unix(1000-3*86400, 0) }, "clock", weaker, "timedatectl"},
		{"port taken", func(f *facts) { f.portsTaken = []string{"127.0.0.1:7003"} }, "ports", broken, "--port-base 8000"},
		{"task port held", func(f *facts) { f.taskPortsHeld = []string{"20007 by nginx (process 812)"} }, "task ports", weaker, "--task-port-base"},
		{"long path", func(f *facts) { f.runDir = "/" + strings.Repeat("x", 90) }, "sockets", broken, "--run-dir"},
		{"run directory of another", func(f *facts) { f.runDirErr = "permission denied" }, "sockets", broken, "--run-dir"},
	} {
		f := goodFacts()
		c.spoil(&f)
		findings := diagnose(f)
		if got := worst(findings); got != c.level {
			t.Errorf("%s: worst is %v, want %v", c.name, got, c.level)
		}
		for _, g := range findings {
			if (g.what == c.what) != (g.level != fine) {
				t.Errorf("%s: %s is %v", c.name, g.what, g.level)
			}
			if g.what == c.what && !strings.Contains(g.fix, c.fixHas) {
				t.Errorf("%s: the fix is %q, want something of %q", c.name, g.fix, c.fixHas)
			}
		}
	}
}

// The processes of a killed run hold its ports until the next run sweeps them.
func TestPortsOfTheOwnCellAreNoFault(t *testing.T) {
	f := goodFacts()
	f.portsTaken, f.ownRuns = []string{"127.0.0.1:7001"}, true
	if got := ports(f); got.level != fine || !strings.Contains(got.seen, "own") {
		t.Errorf("ports = %+v", got)
	}
}

// What is really here can be looked at without an error.
func TestGatherLooks(t *testing.T) {
	f := gather(t.Context(), testLayout(t))
	if f.cpus < 1 || f.memBytes == 0 || f.memFreeBytes == 0 || f.diskFreeBytes == 0 || f.fileLimit == 0 || f.sysctls["kernel.pid_max"] == 0 || f.kernel == "unknown" {
		t.Errorf("gathered %+v", f)
	}
	if len(f.missing) != 3 {
		t.Errorf("programs missing in an empty directory: %v", f.missing)
	}
	if f.dirErr != "" || f.runDirErr != "" {
		t.Errorf("directories: %q, %q", f.dirErr, f.runDirErr)
	}
}
