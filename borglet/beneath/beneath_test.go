package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ways are how the borglet opens files of a copy.
var ways = map[string]int{
	"read":   os.O_RDONLY,
	"append": os.O_WRONLY | os.O_CREATE | os.O_APPEND,
	"cut":    os.O_WRONLY | os.O_CREATE | os.O_TRUNC | os.O_APPEND,
	"lock":   os.O_RDWR | os.O_CREATE,
}

// Whatever stands in the place of a file is neither followed, nor waited for, nor
// changed.
func TestOpenRefuses(t *testing.T) {
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(out, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	plant := map[string]error{
		"link":     os.Symlink(out, filepath.Join(dir, "link")),
		"dangling": os.Symlink(out+".none", filepath.Join(dir, "dangling")),
		"fifo":     syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666),
		"sub":      os.Mkdir(filepath.Join(dir, "sub"), 0o700),
	}
	if os.Geteuid() == 0 {
		// /dev/null.
		if err := syscall.Mknod(filepath.Join(dir, "device"), syscall.S_IFCHR|0o666, 1<<8|3); err == nil {
			plant["device"] = nil
		}
	}
	for name, err := range plant {
		if err != nil {
			t.Fatal(err)
		}
		for way, flag := range ways {
			if f, err := Open(dir, name, flag, 0o600); err == nil {
				f.Close()
				t.Errorf("%s of %s: opened, want an error", way, name)
			} else if errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s of %s: %v, which says that there is nothing", way, name, err)
			}
		}
		if text, err := ReadFile(dir, name); err == nil {
			t.Errorf("ReadFile of %s = %q", name, text)
		}
	}
	for _, name := range []string{"", ".", "..", "../secret", "sub/file", "/etc/passwd"} {
		if f, err := Open(dir, name, os.O_RDONLY, 0); err == nil {
			f.Close()
			t.Errorf("%q: opened, want an error", name)
		}
	}
	if text, err := os.ReadFile(out); err != nil || string(text) != "secret" {
		t.Errorf("the file outside is %q, %v", text, err)
	}
	if _, err := os.Lstat(out + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was made behind a link: %v", err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, "log", os.O_RDONLY, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing: %v, want ErrNotExist", err)
	}
	if _, err := Open(filepath.Join(dir, "none"), "log", os.O_RDONLY, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no directory: %v, want ErrNotExist", err)
	}
	for range 2 {
		f, err := Open(dir, "log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("line\n"); err != nil {
			t.Error(err)
		}
		if flags, _, no := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), syscall.F_GETFL, 0); no != 0 || flags&syscall.O_NONBLOCK != 0 {
			t.Errorf("what a task is given is not to wait: flags %#x, %v", flags, no)
		}
		f.Close()
	}
	if text, err := ReadFile(dir, "log"); err != nil || string(text) != strings.Repeat("line\n", 2) {
		t.Errorf("read %q, %v", text, err)
	}
	// What stands in the way of a new file is taken away, not written to.
	if err := os.Symlink(filepath.Join(dir, "log"), filepath.Join(dir, "pid.new")); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(dir, "pid", []byte("7"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := ReadFile(dir, "pid"); err != nil || string(text) != "7" {
		t.Errorf("pid is %q, %v", text, err)
	}
	if text, err := ReadFile(dir, "log"); err != nil || string(text) != strings.Repeat("line\n", 2) {
		t.Errorf("log is then %q, %v", text, err)
	}
}
