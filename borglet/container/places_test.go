//go:build linux && cgo

package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
)

// TestCheckPlaces: whatever an image has in the place of a mount is either usable or
// refused as the image's fault, and no link is followed out of it.
func TestCheckPlaces(t *testing.T) {
	// Not below /tmp, which is a link itself in some cases.
	outside, err := os.MkdirTemp("/var/tmp", "borg-places-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(outside) })
	for name, c := range map[string]struct {
		make func(root string) error
		at   string
		says string
	}{
		"missing":     {func(string) error { return nil }, "/proc", ""},
		"directory":   {func(root string) error { return os.Mkdir(root+"/proc", 0o755) }, "/proc", ""},
		"file":        {func(root string) error { return os.WriteFile(root+"/proc", nil, 0o644) }, "/proc", "its /proc is a file"},
		"pipe":        {func(root string) error { return unix.Mkfifo(root+"/proc", 0o644) }, "/proc", "its /proc is a pipe"},
		"pipe at tmp": {func(root string) error { return unix.Mkfifo(root+"/tmp", 0o644) }, "/tmp", "/tmp is a pipe; make it a directory"},
		"socket":      {func(root string) error { return unix.Mknod(root+"/sys", unix.S_IFSOCK|0o644, 0) }, "/sys", "its /sys is a socket"},
		"link":        {func(root string) error { return os.Symlink("etc", root+"/sys") }, "/sys", `its /sys is a symbolic link to "etc"`},
		"outside":     {func(root string) error { return os.Symlink(outside, root+"/tmp") }, "/tmp", "that is not in the image"},
		"climbing":    {func(root string) error { return os.Symlink("../../../../../.."+outside, root+"/tmp") }, "/tmp", "that is not in the image"},
		"the root":    {func(root string) error { return os.Symlink("..", root+"/tmp") }, "/tmp", "the root itself"},
		"link in it": {func(root string) error {
			return errors.Join(os.Mkdir(root+"/var", 0o755), os.Symlink("/var", root+"/tmp"))
		}, "/tmp", ""},
		"below a file": {func(root string) error { return os.WriteFile(root+"/data", nil, 0o644) }, "/data/deep", "leads through /data, which is a file"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := c.make(root); err != nil {
				t.Fatal(err)
			}
			err := checkPlaces(root, []*configs.Mount{{Destination: c.at, Device: "tmpfs"}, {Destination: c.at + "/below", Device: "tmpfs"}})
			switch {
			case c.says == "" && err != nil, c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("got %v, want %q", err, c.says)
			case err != nil && startWay(err) != borgpb.ExitReason_EXIT_REASON_IMAGE:
				t.Errorf("%v has the way %v", err, startWay(err))
			}
		})
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	err = checkPlaces(root, []*configs.Mount{{Source: "/proc/self/status", Destination: "/etc", Device: "bind"}})
	if err == nil || !strings.Contains(err.Error(), "/etc is a directory; make it a file") {
		t.Errorf("a file over a directory: %v", err)
	}
}
