//go:build linux && cgo

package container

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// FuzzContainerSpec: whatever a spec says, its container's cgroup lies below the
// borglet's, every name space but the network's is its own, it has no capability,
// nothing is mounted where only ours may be, and its command line is the spec's, not
// a shell's.
func FuzzContainerSpec(f *testing.F) {
	f.Add("web", "alice/pool/0", "sleep", "3600; reboot", "/data", "/data", "", true, true, int64(100), int64(1<<20))
	f.Add("../../x", "../../../x", "$(id)", "`id`", "/proc/1", "/proc/sys", "/", false, false, int64(-1), int64(-1))
	f.Add("a/../../..", "a/b/1", "a\x00b", "\n", "/usr", "//dev/./x/..", "/usr/../etc", true, false, int64(1<<62), int64(1<<62))
	f.Fuzz(func(t *testing.T, job, alloc, program, arg, source, path, rootfs string, writable, ownIDs bool, cpu, mem int64) {
		d := &borgrpc.Desired{
			Copy: &borgrpc.CopyID{JobUid: "1-2-0", Index: 3, Attempt: 4}, Job: job, User: "alice", Cell: "test", Alloc: alloc,
			Spec: &borgpb.TaskSpec{
				Args: []string{program, arg}, Rootfs: rootfs, Resources: &borgpb.Resources{CpuMilli: cpu, MemBytes: mem},
				Mounts: []*borgpb.Mount{{Source: source, Path: path, Writable: writable}},
			},
		}
		const dir, parent, first = "/var/lib/borg/tasks/1-2-0.3.4", "/borg/m1", 1 << 20
		l, err := borglet.NewLaunch(d, 1, borglet.Places{Dir: dir, AllocDir: "/var/lib/borg/allocs/x", Machine: "m1", OwnFiles: true})
		if err != nil {
			return
		}
		if !strings.Contains(program+arg, "{{") && !slices.Equal(l.Args, []string{program, arg}) {
			t.Errorf("the command line is %q, want %q", l.Args, []string{program, arg})
		}
		r := &Runtime{cfg: Config{Name: "m1", Writable: []string{"/srv"}, Private: []string{"/var/lib/borg", "/run/borg"}}}
		for _, m := range l.Mounts {
			if r.checkMount(m) == nil && (reserved(m.Path) != "" || filepath.Clean(m.Path) == "/" || !filepath.IsAbs(m.Path) || (m.Writable && !within(m.Source, "/srv"))) {
				t.Errorf("mount %+v is let through", m)
			}
		}
		o := &order{CgroupParent: parent, Launch: *l}
		if ownIDs {
			o.FirstID = first
		}
		binds := []bind{{source: source, path: path, writable: writable, owned: true}}
		cfg := containerConfig(o, dir+"/rootfs", binds)
		if at := cfg.Cgroups.Path; !within(at, parent) || at == parent || at != filepath.Clean(at) {
			t.Errorf("the cgroup is %q, which is not below %s", at, parent)
		}
		kinds := []configs.NamespaceType{configs.NEWNS, configs.NEWUTS, configs.NEWIPC, configs.NEWPID, configs.NEWCGROUP}
		if ownIDs {
			kinds = append(kinds, configs.NEWUSER)
		}
		for _, kind := range kinds {
			if !cfg.Namespaces.Contains(kind) || cfg.Namespaces.PathOf(kind) != "" {
				t.Errorf("it has no %s of its own", kind)
			}
		}
		if ownIDs && (len(cfg.UIDMappings) != 1 || cfg.UIDMappings[0] != (configs.IDMap{HostID: first, Size: idsPerCopy}) || !slices.Equal(cfg.UIDMappings, cfg.GIDMappings)) {
			t.Errorf("its ids are %v and %v", cfg.UIDMappings, cfg.GIDMappings)
		}
		c := cfg.Capabilities
		if c == nil || len(c.Bounding)+len(c.Effective)+len(c.Inheritable)+len(c.Permitted)+len(c.Ambient) != 0 || !cfg.NoNewPrivileges || !cfg.Readonlyfs {
			t.Errorf("capabilities %v, no_new_privs %v, read-only %v", c, cfg.NoNewPrivileges, cfg.Readonlyfs)
		}
		for _, m := range cfg.Mounts {
			if m.Flags&unix.MS_NOSUID == 0 {
				t.Errorf("mount %s has set-user-id programs", m.Destination)
			}
			if m.Device == "bind" && m.Flags&unix.MS_RDONLY == 0 && (!writable || m.Destination != path) {
				t.Errorf("bind of %s at %s can be written", m.Source, m.Destination)
			}
		}
	})
}
