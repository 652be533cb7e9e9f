package diskquota

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeKernel keeps what a file system with project quotas would, by the names of its
// directories, and reads and writes bytes where the kernel's headers say that fields are.
type fakeKernel struct {
	magic    int64
	flags    uint16
	lacks    error
	attrs    map[string][2]uint32 // flags, project
	limits   map[uint32]uint64    // bytes
	used     map[uint32]uint64    // bytes
	told     []string
	failAttr error
}

func newFake(magic int64) *fakeKernel {
	return &fakeKernel{magic: magic, flags: 1<<4 | 1<<5, attrs: map[string][2]uint32{}, limits: map[uint32]uint64{}, used: map[uint32]uint64{}}
}

func (f *fakeKernel) fileSystem(*os.File) (int64, int64, error) { return f.magic, 4096, nil }

func (f *fakeKernel) ioctl(dir *os.File, request uint32, arg []byte) error {
	if len(arg) != 28 {
		return fmt.Errorf("fsxattr of %d bytes", len(arg))
	}
	order := binary.NativeEndian
	switch request {
	case 0x801c581f:
		a := f.attrs[dir.Name()]
		order.PutUint32(arg, a[0])
		order.PutUint32(arg[4:], 7) // what is not ours must come back
		order.PutUint32(arg[12:], a[1])
		return nil
	case 0x401c5820:
		if f.failAttr != nil {
			return f.failAttr
		}
		if order.Uint32(arg[4:]) != 7 {
			return errors.New("the other attributes of the directory were changed")
		}
		f.attrs[dir.Name()] = [2]uint32{order.Uint32(arg), order.Uint32(arg[12:])}
		f.told = append(f.told, fmt.Sprintf("attr %s", filepath.Base(dir.Name())))
		return nil
	}
	return unix.ENOTTY
}

func (f *fakeKernel) quotactl(_ *os.File, command, project uint32, arg []byte) error {
	if f.lacks != nil {
		return f.lacks
	}
	order := binary.NativeEndian
	xfs := f.magic == unix.XFS_SUPER_MAGIC
	switch {
	case command == 0x580502 && len(arg) == 80:
		order.PutUint16(arg[2:], f.flags)
	case command == 0x580302 && len(arg) == 112 && xfs:
		if f.limits[project] == 0 && f.used[project] == 0 {
			return unix.ENOENT
		}
		order.PutUint64(arg[8:], f.limits[project]/512)
		order.PutUint64(arg[40:], f.used[project]/512)
		order.PutUint64(arg[48:], 1)
	case command == 0x580402 && len(arg) == 112 && xfs:
		if arg[0] != 1 || arg[1] != 2 || order.Uint16(arg[2:]) != 8|2 || order.Uint32(arg[4:]) != project {
			return unix.EINVAL
		}
		f.limit(project, order.Uint64(arg[8:])*512, order.Uint64(arg[24:]))
	case command == 0x80000702 && len(arg) == 72 && !xfs:
		order.PutUint64(arg, f.limits[project]/1024)
		order.PutUint64(arg[16:], f.used[project])
	case command == 0x80000802 && len(arg) == 72 && !xfs:
		if order.Uint32(arg[64:]) != 1|4 {
			return unix.EINVAL
		}
		f.limit(project, order.Uint64(arg)*1024, order.Uint64(arg[24:]))
	default:
		return unix.EINVAL
	}
	return nil
}

func (f *fakeKernel) limit(project uint32, bytes, files uint64) {
	f.limits[project] = bytes
	if want := max(bytes/4096, 16); bytes == 0 && files != 0 || bytes > 0 && files != want {
		f.told = append(f.told, fmt.Sprintf("limit of %d files, want %d", files, want))
	}
	f.told = append(f.told, fmt.Sprintf("limit %d", bytes))
}

var kinds = map[string]int64{"xfs": unix.XFS_SUPER_MAGIC, "ext4": unix.EXT4_SUPER_MAGIC}

// TestLimit follows one directory through its life, with the bytes of both kinds of file
// systems.
func TestLimit(t *testing.T) {
	for name, magic := range kinds {
		t.Run(name, func(t *testing.T) {
			f, dir := newFake(magic), filepath.Join(t.TempDir(), "task")
			q, err := open(t.TempDir(), f)
			if err == nil {
				err = os.Mkdir(dir, 0o700)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := q.Used(dir); ok {
				t.Error("a directory without a project tells what it uses")
			}
			// Rounded down to what the file system counts in.
			if err := q.Limit(dir, 10<<20+5); err != nil {
				t.Fatal(err)
			}
			project := f.attrs[dir][1]
			if f.attrs[dir][0] != 0x200 || project < 1<<30 || project >= 1<<31 {
				t.Errorf("the directory has %#x, want a project of ours that is inherited", f.attrs[dir])
			}
			f.used[project] = 3 << 20
			if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			// The next borglet, with files in the directory, and another limit.
			if q, err = open(t.TempDir(), f); err == nil {
				err = q.Limit(dir, 20<<20)
			}
			if err != nil || f.attrs[dir][1] != project {
				t.Errorf("the next borglet: project %d, want %d (%v)", f.attrs[dir][1], project, err)
			}
			if bytes, ok := q.Used(dir); !ok || bytes != 3<<20 {
				t.Errorf("Used = %d, %v, want what the kernel has counted", bytes, ok)
			}
			if err := errors.Join(q.Limit(dir, 1), q.Limit(dir, 0), q.Limit(dir, 4096), q.Drop(dir), q.Drop(dir), q.Drop(dir+"gone")); err != nil {
				t.Error(err)
			}
			if _, ok := q.Used(dir); ok || f.attrs[dir] != [2]uint32{} {
				t.Errorf("after all it has %#x, want no project", f.attrs[dir])
			}
			// The limit is there before the project.
			want := []string{"limit 10485760", "attr task", "limit 20971520", "limit 4096", "limit 0", "limit 4096", "limit 0", "attr task"}
			if !slices.Equal(f.told, want) {
				t.Errorf("the kernel was told %q, want %q", f.told, want)
			}
		})
	}
}

// TestProjectsDiffer: no two directories get one project, nor that of somebody else.
func TestProjectsDiffer(t *testing.T) {
	for name, magic := range kinds {
		t.Run(name, func(t *testing.T) {
			f, root := newFake(magic), t.TempDir()
			q, err := open(root, f)
			if err != nil {
				t.Fatal(err)
			}
			mkdir := func(n int) string {
				dir := filepath.Join(root, fmt.Sprint(n))
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				return dir
			}
			seen := map[uint32]bool{}
			for n := range 50 {
				dir := mkdir(n)
				d, err := openDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				first, err := q.choose(d, dir)
				d.Close()
				if err != nil {
					t.Fatal(err)
				}
				// Somebody else has taken the one that it would get.
				if f.used[first] = 4096; n%2 == 0 {
					f.used[first], f.limits[first] = 0, 4096
				}
				if err := q.Limit(dir, 1<<20); err != nil {
					t.Fatal(err)
				}
				project := f.attrs[dir][1]
				if seen[project] || project == first {
					t.Errorf("directory %d has project %d, which another has", n, project)
				}
				seen[project] = true
			}
		})
	}
}

// TestOccupied: what cannot be counted from the beginning is not limited, and what cannot
// be given a project leaves no limit behind.
func TestOccupied(t *testing.T) {
	f, root := newFake(unix.XFS_SUPER_MAGIC), t.TempDir()
	q, err := open(root, f)
	if err != nil {
		t.Fatal(err)
	}
	full, empty := filepath.Join(root, "full"), filepath.Join(root, "empty")
	if err := errors.Join(os.MkdirAll(filepath.Join(full, "x"), 0o700), os.Mkdir(empty, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := q.Limit(full, 1<<20); !errors.Is(err, ErrOccupied) || len(f.told) > 0 {
		t.Errorf("a directory with files: %v, and the kernel was told %q", err, f.told)
	}
	f.failAttr = unix.EIO
	if err := q.Limit(empty, 1<<20); !errors.Is(err, unix.EIO) || !slices.Equal(f.told, []string{"limit 1048576", "limit 0"}) {
		t.Errorf("without the attribute: %v, and the kernel was told %q", err, f.told)
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink(empty, link); err != nil {
		t.Fatal(err)
	}
	if err := q.Limit(link, 1<<20); err == nil {
		t.Error("a link was followed")
	}
}

// TestShare: what a run writes to its root counts with its directory.
func TestShare(t *testing.T) {
	f, root := newFake(unix.EXT4_SUPER_MAGIC), t.TempDir()
	q, err := open(root, f)
	if err != nil {
		t.Fatal(err)
	}
	task, upper := filepath.Join(root, "task"), filepath.Join(root, "upper")
	if err := errors.Join(os.Mkdir(task, 0o700), os.Mkdir(upper, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := share(f, task, upper); err != nil || f.attrs[upper] != [2]uint32{} {
		t.Errorf("without a project: %v, %v", f.attrs[upper], err)
	}
	if err := errors.Join(q.Limit(task, 1<<20), share(f, task, upper)); err != nil || f.attrs[upper] != f.attrs[task] {
		t.Errorf("the directories have %v and %v, want one project (%v)", f.attrs[task], f.attrs[upper], err)
	}
}

// TestOpenRefuses: where quotas cannot hold, that and what to do is said.
func TestOpenRefuses(t *testing.T) {
	root := t.TempDir()
	for want, change := range map[string]func(*fakeKernel){
		"neither XFS nor ext4": func(f *fakeKernel) { f.magic = unix.TMPFS_MAGIC },
		"mount it with pquota": func(f *fakeKernel) { f.lacks = unix.ENOSYS },
		"does not enforce":     func(f *fakeKernel) { f.flags = 1 << 4 },
		"of somebody else":     func(f *fakeKernel) { f.attrs[root] = [2]uint32{0x200, 12} },
	} {
		f := newFake(unix.XFS_SUPER_MAGIC)
		change(f)
		if _, err := open(root, f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("open = %v, want an error with %q", err, want)
		}
	}
}

// TestHere asks the machine's own kernel. Where the file system of temporary files has
// project quotas a write beyond a limit fails; anywhere else that is said.
func TestHere(t *testing.T) {
	dir := t.TempDir()
	q, err := Open(dir)
	can := mountedWithQuotas(t, dir)
	if err != nil {
		t.Logf("measured: %v", err)
		if can && !errors.Is(err, unix.ENOSYS) {
			t.Errorf("it is mounted with project quotas: %v", err)
		}
		if err := Share(dir, dir); err != nil {
			t.Errorf("there is no project to share, which is no error: %v", err)
		}
		return
	}
	if !can {
		t.Fatal("project quotas were found where the file system is not mounted with them")
	}
	t.Log("refused by the kernel")
	task := filepath.Join(dir, "task")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Mkdir(task, 0o777), os.Chmod(task, 0o777), q.Limit(task, 1<<20)); err != nil {
		t.Fatal(err)
	}
	// Root may write beyond limits on ext4, so somebody else does.
	fill := exec.Command("/bin/sh", "-c", "head -c 2097152 /dev/zero > "+filepath.Join(task, "file"))
	fill.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := fill.CombinedOutput()
	if err == nil || !strings.Contains(string(out), unix.EDQUOT.Error()) && !strings.Contains(strings.ToLower(string(out)), "quota") {
		t.Errorf("a write beyond the limit: %q, %v", out, err)
	}
	if bytes, ok := q.Used(task); !ok || bytes < 1<<19 || bytes > 1<<20 {
		t.Errorf("Used = %d, %v, want what could be written", bytes, ok)
	}
}

// mountedWithQuotas reads the options of the file system of dir.
func mountedWithQuotas(t *testing.T, dir string) bool {
	var stat unix.Stat_t
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil {
		err = unix.Stat(dir, &stat)
	}
	if err != nil {
		t.Fatal(err)
	}
	device := fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[2] == device {
			for option := range strings.SplitSeq(fields[len(fields)-1], ",") {
				if option == "prjquota" || option == "pquota" {
					return true
				}
			}
		}
	}
	return false
}
