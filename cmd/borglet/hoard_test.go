package main

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// hoardArgument makes the test binary take disk where it is hard to find, as the program of
// a task: it is followed by the name of one of hoards and the directory to work in.
const hoardArgument = "hoard-for-a-test"

const hoardBytes = 64 << 20

// hoards are ways to take disk that no sum over the names and lengths of files has.
var hoards = map[string]func(dir string) error{
	// Behind the end of the output, again and again.
	"behind its end": func(string) error {
		for range 100 {
			if err := unix.Fallocate(1, unix.FALLOC_FL_KEEP_SIZE, 0, hoardBytes); err != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	},
	// As part of its length.
	"before its end": func(string) error {
		for i := range int64(100) {
			if err := unix.Fallocate(1, 0, i*hoardBytes, hoardBytes); err != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	},
	// In the part of the output that was given back.
	"in its hole": func(string) error {
		line := []byte(strings.Repeat("x", 1<<20-1) + "\n")
		for range hoardBytes >> 20 {
			if _, err := os.Stdout.Write(line); err != nil {
				return err
			}
		}
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if err := unix.Fallocate(1, 0, 0, hoardBytes); err != nil {
				return err
			}
		}
		return nil
	},
	"removed, and open": func(dir string) error {
		_, err := removedFile(dir)
		return err
	},
	"never named": func(dir string) error {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		return unix.Fallocate(fd, 0, 0, hoardBytes)
	},
	// No descriptor leads to it.
	"removed, and mapped": func(dir string) error {
		f, err := removedFile(dir)
		if err != nil {
			return err
		}
		if _, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return err
		}
		return f.Close()
	},
	// The first thread has ended: what /proc says of the process is empty.
	"open in a thread": func(dir string) error {
		f, err := removedFile(dir)
		if err != nil {
			return err
		}
		go func() {
			fmt.Println("done")
			time.Sleep(time.Hour)
			runtime.KeepAlive(f)
		}()
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
		return nil
	},
	// On its way to nobody, behind a socket that is on its way too.
	"in a socket": func(dir string) error {
		f, err := removedFile(dir)
		if err != nil {
			return err
		}
		for range 2 {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0); err != nil {
				return err
			}
			f.Close()
			unix.Close(pair[0])
			f = os.NewFile(uintptr(pair[1]), "socket")
		}
		kept = f
		return nil
	},
	// One look does not show it: it shows when the task stands still.
	"in a second message": func(dir string) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		null, err := os.Open("/dev/null")
		if err != nil {
			return err
		}
		f, err := removedFile(dir)
		if err != nil {
			return err
		}
		for _, what := range []*os.File{null, f} {
			if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(int(what.Fd())), nil, 0); err != nil {
				return err
			}
		}
		return f.Close()
	},
	// Directories in one another, with the file at the end.
	"far below": func(dir string) error {
		fd, err := unix.Open(dir, unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		for range 5000 {
			err := unix.Mkdirat(fd, "d", 0o700)
			if err != nil {
				return err
			}
			next, err := unix.Openat(fd, "d", unix.O_DIRECTORY, 0)
			if err != nil {
				return err
			}
			unix.Close(fd)
			fd = next
		}
		if fd, err = unix.Openat(fd, "big", unix.O_CREAT|unix.O_RDWR, 0o600); err != nil {
			return err
		}
		return unix.Fallocate(fd, 0, 0, hoardBytes)
	},
}

// kept is open until the program ends.
var kept *os.File

func removedFile(dir string) (*os.File, error) { return removedFileOf(dir, hoardBytes) }

// init: the tests and the programs of their tasks look in one table.
func init() {
	maps.Copy(hoards, socketHoards)
	maps.Copy(hoards, hidingHoards)
}

func hoardForTest(how, dir string) {
	if err := hoards[how](dir); err != nil {
		fmt.Fprintln(os.Stderr, how+":", err)
		os.Exit(1)
	}
	fmt.Println("done")
	time.Sleep(time.Hour)
}

// hoard wants a task that hoards.
func (m *machine) hoard(how, dir string, spec *borgpb.TaskSpec) *borgrpc.CopyID {
	m.t.Helper()
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	spec.Args = []string{"/opt/hoard", hoardArgument, how, dir}
	if m.runtime == "process" {
		spec.Args[0] = self
	} else {
		spec.Mounts = append(spec.Mounts, &borgpb.Mount{Source: self, Path: "/opt/hoard"})
	}
	return m.want(batch, spec)
}

// TestHoardOnDisk: disk that is in no directory, or in one far below, is charged like any
// other. Whoever keeps more of it than his limit ends and gives it back; so does whoever
// has it taken for an output that he did not write.
func TestHoardOnDisk(t *testing.T) {
	alongside(t)
	m := newMachine(t, "container", "--log-keep", "4MiB")
	if m.poll().GetSpec().GetAttributes()["disk_limit"] == "refused" {
		t.Skip("the file system refuses what would be ended for: TestDiskLimit")
	}
	quiet := m.service("sleep", "3600")
	pid := m.untilState(quiet, running).GetPid()
	// All at once: the borglet of a machine that does not fill measures twice a minute.
	type hoarder struct{ how, dir, want string }
	var ids []*borgrpc.CopyID
	var hoarders []hoarder
	var volumes []*borgpb.VolumeName
	for _, how := range slices.Sorted(maps.Keys(hoards)) {
		for _, h := range []hoarder{{how, "/task", "kept more on disk than its limit"}, {how, "/data", "its volume data keeps more"}} {
			if takesOutput(how) && h.dir != "/task" {
				continue
			}
			hoarders = append(hoarders, h)
			ids = append(ids, m.hoard(how, h.dir, &borgpb.TaskSpec{
				Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 256 << 20, DiskBytes: 32 << 20},
				Volumes:   []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 32 << 20}},
			}))
			d := m.desired[len(m.desired)-1]
			d.Job = fmt.Sprintf("hoard-%d", len(ids))
			volumes = append(volumes, &borgpb.VolumeName{User: d.User, Job: d.Job, Volume: "data"})
		}
	}
	m.keepVolumes = volumes
	for i, h := range hoarders {
		t.Run(h.how+" in "+h.dir, func(t *testing.T) { m.hoarderEnds(t, ids[i], h.how, h.dir, h.want) })
	}
	m.deleteVolumes, m.keepVolumes = volumes, nil
	for deadline := time.Now().Add(patience); len(m.poll().GetVolumesGone()) < len(volumes); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the volumes are not deleted")
		}
	}
	if r := m.untilState(quiet, running); r.GetPid() != pid || r.GetRestarts() != 0 {
		t.Errorf("the neighbour: %v, want as it was", r)
	}
}

// takesOutput reports whether a hoarder works on its output, wherever its directory is.
func takesOutput(how string) bool {
	return strings.HasSuffix(how, " its end") || how == "in its hole"
}

// hoarderEnds waits until a hoarder is ended for what it took, and the room is free again.
func (m *machine) hoarderEnds(t *testing.T, id *borgrpc.CopyID, how, dir, want string) {
	t.Helper()
	r := m.untilState(id, failed)
	if strings.HasSuffix(how, "not accepted") {
		if !strings.Contains(r.GetText(), "could not be measured") || !strings.Contains(r.GetText(), "wait there to be received") {
			t.Errorf("%v, want ended as what cannot be measured", r)
		}
	} else if !strings.Contains(r.GetText(), want) && !(takesOutput(how) && strings.Contains(r.GetText(), "its output took")) {
		t.Fatalf("%v, want ended: %s; it said %.500s", r, want, m.logOf(id))
	}
	m.until(id, "with its output cut back", func(*borgpb.TaskReport) bool { return outputOf(t, m.file(id, "stdout")) <= 2*4<<20 })
	if how == "far below" && dir == "/task" {
		m.until(id, "without its files", func(*borgpb.TaskReport) bool { return !exists(m.file(id, "task/d")) })
	}
}

// TestHoardInImage: what a task writes to the root of its image, and removes, counts too.
func TestHoardInImage(t *testing.T) {
	alongside(t)
	l := newLayout(t)
	digest := l.image(usrMerged, map[string]string{"opt/": ""})
	m := newMachine(t, "container", "--package-source", l.dir)
	if m.poll().GetSpec().GetAttributes()["disk_limit"] == "refused" {
		t.Skip("the file system refuses what would be ended for: TestDiskLimit")
	}
	ids := map[string]*borgrpc.CopyID{}
	for _, how := range []string{"removed, and open", "never named", "removed, and mapped", "far below"} {
		ids[how] = m.hoard(how, "/opt", &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 256 << 20, DiskBytes: 32 << 20},
			Packages:  []*borgpb.Package{packageIn(digest, "/")}, Mounts: []*borgpb.Mount{{Source: "/usr", Path: "/usr"}},
		})
	}
	for how, id := range ids {
		if r := m.untilState(id, failed); !strings.Contains(r.GetText(), "kept more on disk than its limit") {
			t.Errorf("%s: %v, want ended for its disk; it said %.500s", how, r, m.logOf(id))
		}
	}
}

// TestHoardByShortRuns: runs that end before they are measured leave no more than long ones.
func TestHoardByShortRuns(t *testing.T) {
	alongside(t)
	m := newMachine(t, "container")
	if m.poll().GetSpec().GetAttributes()["disk_limit"] == "refused" {
		t.Skip("the file system refuses what would be ended for: TestDiskLimit")
	}
	id := m.want(service, &borgpb.TaskSpec{
		Args:      []string{"/bin/sh", "-c", "head -c 67108864 /dev/zero > file.$(ls | wc -l); exit 1"},
		Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 256 << 20, DiskBytes: 32 << 20},
	})
	m.until(id, "ended for its disk between two runs", func(r *borgpb.TaskReport) bool {
		return strings.Contains(r.GetText(), "kept more on disk than its limit")
	})
	m.until(id, "without its files", func(*borgpb.TaskReport) bool { return !exists(m.file(id, "task/file.0")) })
}

// TestOutputIsRoots: a task may write to its output, also when it opens it by name, and is
// not its owner: it can take no lease on it and not close it to the borglet.
func TestOutputIsRoots(t *testing.T) {
	m := newMachine(t, "container")
	if !strings.Contains(m.log.String(), `"userns":"own"`) {
		t.Skip("tasks have no user name spaces here")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	id := m.want(batch, &borgpb.TaskSpec{
		Args: []string{"/opt/hoard", hoardArgument, "lease", "/task"}, Mounts: []*borgpb.Mount{{Source: self, Path: "/opt/hoard"}},
	})
	m.untilState(id, finished)
	if got, want := m.logOf(id), "lease: permission denied\nmode: operation not permitted\nopened again\n"; got != want {
		t.Errorf("it said %q, want %q", got, want)
	}
	var st unix.Stat_t
	if err := unix.Stat(m.file(id, "stdout"), &st); err != nil || st.Uid != 0 || st.Mode&0o777 != 0o660 {
		t.Errorf("its output is of user %d with mode %o (%v), want root's with 660", st.Uid, st.Mode&0o777, err)
	}
}

func leaseForTest() {
	lease := func() error {
		f, err := os.OpenFile("/dev/stdout", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
			return err
		}
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
		return err
	}
	fmt.Println("lease:", lease())
	fmt.Println("mode:", unix.Fchmod(1, 0))
	f, err := os.OpenFile("/dev/stdout", os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		fmt.Println(err)
	}
	fmt.Fprintln(f, "opened again")
}

// hoardMain is the task's program.
func hoardMain(args []string) {
	if slices.Contains(args, "lease") {
		leaseForTest()
		return
	}
	hoardForTest(args[0], args[1])
}
