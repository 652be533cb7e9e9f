package hostpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"
)

func TestHide(t *testing.T) {
	d := New("/var/lib/borg/m1", "/run/borg", "", "relative", "/", "/var/lib/borg/m1/inner")
	for _, tt := range []struct{ text, want string }{
		{"open /var/lib/borg/m1/tasks/ab/0.1/stdout: no such file", "open [host]/stdout: no such file"},
		{"mkdir /var/lib/borg/m1: read-only file system", "mkdir [host]: read-only file system"},
		{`rename "/run/borg/x/a" "/run/borg/x/b"`, `rename "[host]/a" "[host]/b"`},
		{"in /var/lib/borg/m1/inner/deep, too", "in [host]/deep, too"},
		// Others of a similar name.
		{"open /var/lib/borg/m10/x", "open /var/lib/borg/m10/x"},
		{"open /mnt/var/lib/borg/m1/x", "open /mnt/var/lib/borg/m1/x"},
		// Of the task's own.
		{`start "/bin/x": no such program`, `start "/bin/x": no such program`},
		{"mount at /proc/x: not allowed", "mount at /proc/x: not allowed"},
		{"write /sys/fs/cgroup/borg/m1/c/memory.max: invalid", "write [host]: invalid"},
		{"open /proc/4711/ns/net: gone", "open [host]: gone"},
		{"no path", "no path"},
	} {
		if got := d.Hide(tt.text); got != tt.want {
			t.Errorf("Hide(%q) = %q, want %q", tt.text, got, tt.want)
		}
	}
}

func TestText(t *testing.T) {
	missing := &fs.PathError{Op: "open", Path: "/data/m1/x", Err: syscall.ENOENT}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("plain /bin/x"), "plain /bin/x"},
		{fmt.Errorf("read /data/m1/x: %w", missing), "read [host]/x: open [host]/x: no such file or directory"},
		{&os.LinkError{Op: "rename", Old: "/data/a", New: "/data/b", Err: syscall.EXDEV}, "rename [host]/a [host]/b: invalid cross-device link"},
		{errors.Join(missing, os.NewSyscallError("bind", syscall.EADDRINUSE)), "open [host]/x: no such file or directory\nbind: address already in use"},
		{&fs.PathError{Op: "open", Path: "in/image", Err: syscall.ENOENT}, "open in/image: no such file or directory"},
	} {
		if got := Text(tt.err); got != tt.want {
			t.Errorf("Text(%v) = %q, want %q", tt.err, got, tt.want)
		}
	}
}
