package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"borg/borglet"
)

func TestCheckMountPoint(t *testing.T) {
	dir, root := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "file")
	for _, d := range []string{filepath.Join(dir, "sub"), filepath.Join(root, "app", "data")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(source, path string) borglet.LaunchMount {
		return borglet.LaunchMount{Source: source, Path: path}
	}
	for name, c := range map[string]struct {
		rootfs string
		mounts []borglet.LaunchMount // the last one is checked
		want   string                // "": it can be mounted
	}{
		"a new name":               {"", []borglet.LaunchMount{at(dir, "/data/deep")}, ""},
		"below a file system":      {"", []borglet.LaunchMount{at(dir, "/tmp/deep/er")}, ""},
		"over the machine's":       {"", []borglet.LaunchMount{at(dir, "/usr/lib")}, ""},
		"instead of all of it":     {"", []borglet.LaunchMount{at(dir, "/usr/")}, ""},
		"in the machine's":         {"", []borglet.LaunchMount{at(dir, "/usr/no/such")}, "/usr is the machine's own, in which nothing is made, and it has no no/such to mount on; choose a path outside of it, such as /opt/such"},
		"a file over a directory":  {"", []borglet.LaunchMount{at(file, "/usr/lib")}, "the one is a directory and the other is not"},
		"in /etc":                  {"", []borglet.LaunchMount{at(file, "/etc/web.conf")}, ""},
		"in a mount, there":        {"", []borglet.LaunchMount{at(dir, "/data"), at(dir, "/data/sub")}, ""},
		"in a mount, not there":    {"", []borglet.LaunchMount{at(dir, "/data"), at(dir, "/data/gone")}, "/data is a mount of " + dir},
		"beside a mount":           {"", []borglet.LaunchMount{at(dir, "/data"), at(dir, "/database")}, ""},
		"in a rootfs, there":       {root, []borglet.LaunchMount{at(dir, "/app/data")}, ""},
		"in a rootfs, not there":   {root, []borglet.LaunchMount{at(dir, "/app/other")}, "/app is a part of rootfs " + root},
		"in a rootfs, its own top": {root, []borglet.LaunchMount{at(dir, "/usr/share/web")}, ""},
	} {
		l := &borglet.Launch{Rootfs: c.rootfs, Mounts: c.mounts}
		err := checkMountPoint(l, len(c.mounts)-1)
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: checkMountPoint = %v, want %q", name, err, c.want)
		}
	}
}
