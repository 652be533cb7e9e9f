package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// disks are the file systems that a test mounts below parts of its cell: ext4 on loop
// devices, and tmpfs, which has no journal and no writes that wait, where that cannot
// be. The end of the cell unmounts them; a guard does, should this process be killed.
type disks struct {
	// Where the files are that the loop devices are set upon.
	dir string
	// Why there is no ext4; nil: there is.
	lacking error
	made    int
	faults  []*faultyDisk
}

// newDisks comes before the cell, so that it ends after it. Without the right to mount
// the test is skipped.
func newDisks(t testing.TB) *disks {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a disk of its own is made by mounting one, which needs root")
	}
	dir, err := os.MkdirTemp("", "borgdisks-")
	if err != nil {
		t.Fatal(err)
	}
	d := &disks{dir: dir}
	t.Cleanup(func() { d.end(t) })
	probe := t.TempDir()
	if err := syscall.Mount("small", probe, "tmpfs", 0, "size=65536"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	if err := syscall.Unmount(probe, 0); err != nil {
		t.Fatal(err)
	}
	if d.lacking = d.mountExt4(probe, d.image(t, 8<<20)); d.lacking == nil {
		d.lacking = syscall.Unmount(probe, 0)
	}
	return d
}

// end is when the cell has unmounted what it had.
func (d *disks) end(t testing.TB) {
	// The test's own context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := d.loopsGone(ctx, d.dir+"/"); err != nil {
		t.Error(err)
	}
	for _, fault := range d.faults {
		if err := fault.close(); err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(d.dir); err != nil {
		t.Error(err)
	}
}

// loopsGone waits until no loop device is set upon a file whose path begins so: each goes
// a moment after its file system.
func (d *disks) loopsGone(ctx context.Context, prefix string) error {
	return until(ctx, "no loop device is left", func(context.Context) error {
		files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			return err
		}
		for _, file := range files {
			// What is gone is not read.
			if upon, _ := os.ReadFile(file); strings.HasPrefix(string(upon), prefix) {
				return fmt.Errorf("%s is set upon %s", file, upon)
			}
		}
		return nil
	})
}

// guarded has the guard unmount it too.
func (d *disks) guarded(t testing.TB, point string) {
	t.Helper()
	tellGuard(t, guardLine{Mount: point})
}

// image makes a file for a loop device.
func (d *disks) image(t testing.TB, bytes int64) string {
	t.Helper()
	d.made++
	path := filepath.Join(d.dir, fmt.Sprint(d.made))
	err := os.WriteFile(path, nil, 0o600)
	if err == nil {
		err = os.Truncate(path, bytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func does(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// makeExt4 makes a file system whose journal and tables come first, and that has all of
// its room for whoever writes. The image keeps the blocks that it has.
func makeExt4(image string) error {
	return does("mkfs.ext4", "-q", "-F", "-T", "default", "-b", "4096", "-m", "0", "-E", "packed_meta_blocks=1,nodiscard", image)
}

// mountExt4 makes a file system of an image and mounts it. The loop device goes when
// nobody has it mounted any more.
func (d *disks) mountExt4(dir, image string) error {
	if err := makeExt4(image); err != nil {
		return err
	}
	return does("mount", "-t", "ext4", "-o", "loop", image, dir)
}

// plain moves a directory to a file system of its own, which can be filled.
func (d *disks) plain(t testing.TB, dir string, bytes int64) *ownDisk {
	t.Helper()
	p := &ownDisk{dir: dir}
	p.take(t, func() error {
		d.guarded(t, dir)
		if d.lacking == nil {
			p.image = d.image(t, bytes)
			return d.mountExt4(dir, p.image)
		}
		t.Logf("%s is a tmpfs, whose writes do not wait and which has no journal: %v", dir, d.lacking)
		return syscall.Mount("small", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", bytes))
	})
	return p
}

// alone moves a directory to a file system of its own, whose writes wait for no other's: the file
// under it has all of its blocks, so the file system that holds it journals nothing for them. Without
// the means for that the test is skipped.
func (d *disks) alone(t testing.TB, dir string, bytes int64) {
	t.Helper()
	if d.lacking != nil {
		t.Skipf("a disk of its own is a loop device with an ext4: %v", d.lacking)
	}
	p := &ownDisk{dir: dir}
	p.take(t, func() error {
		d.guarded(t, dir)
		p.image = d.image(t, 0)
		if err := does("dd", "if=/dev/zero", "of="+p.image, "bs=1M", "count="+fmt.Sprint(bytes>>20), "conv=fsync"); err != nil {
			return err
		}
		return d.mountExt4(dir, p.image)
	})
}

// faulty moves a directory to a file system of its own, whose disk hangs and fails when
// told. Without the means for that the test is skipped.
func (d *disks) faulty(t *testing.T, dir string, bytes int64) *ownDisk {
	t.Helper()
	image := d.image(t, bytes)
	if d.lacking == nil {
		d.lacking = makeExt4(image)
	}
	if d.lacking != nil {
		t.Skipf("a disk that hangs and fails is under a loop device with an ext4: %v", d.lacking)
	}
	path := image + ".faulty"
	d.guarded(t, path)
	fault, err := newFaultyDisk(path, image)
	if err != nil {
		t.Skipf("a disk that hangs and fails is a file of FUSE: %v", err)
	}
	p := &ownDisk{dir: dir, image: path, fault: fault}
	if p.filesFrom, err = firstFree(image); err != nil {
		t.Fatal(err)
	}
	d.faults = append(d.faults, fault)
	// The cell's programs end only when their disks go on.
	t.Cleanup(func() {
		fault.heal()
		fault.goOn()
	})
	p.take(t, func() error {
		d.guarded(t, dir)
		return p.mount()
	})
	return p
}

// ownDisk is the file system of one directory.
type ownDisk struct {
	dir string
	// What its loop device is set upon; empty: it is a tmpfs.
	image string
	// Nil: its disk does not fail.
	fault *faultyDisk
	// Its journal and tables come before this byte, what is in files after.
	filesFrom uint64
}

// take puts the directory on what mount makes.
func (p *ownDisk) take(t testing.TB, mount func() error) {
	t.Helper()
	before := p.dir + ".before"
	err := os.MkdirAll(p.dir, 0o755)
	if err == nil {
		err = os.Rename(p.dir, before)
	}
	if err == nil {
		err = os.Mkdir(p.dir, 0o755)
	}
	if err == nil {
		err = mount()
	}
	if err == nil {
		err = does("cp", "-a", before+"/.", p.dir)
	}
	if err != nil {
		t.Fatalf("give %s a disk: %v", p.dir, err)
	}
}

func (p *ownDisk) mount() error { return does("mount", "-t", "ext4", "-o", "loop", p.image, p.dir) }

// again unmounts and mounts, as a power failure does: what the kernel held in memory
// and could not write is gone. Nobody may use it.
func (d *disks) again(t *testing.T, p *ownDisk) {
	t.Helper()
	if err := d.whileUnmounted(t, p, func() error { return nil }); err != nil {
		t.Fatalf("mount %s again: %v", p.dir, err)
	}
}

// whileUnmounted checks what is on the disk, and does what can be done to it now.
func (d *disks) whileUnmounted(t *testing.T, p *ownDisk, do func() error) error {
	t.Helper()
	if err := syscall.Unmount(p.dir, 0); err != nil {
		return err
	}
	// A container that is just being made shows mounts that cannot be reached, and then has them no more.
	if err := until(shortly(t), p.dir+" is mounted nowhere", func(context.Context) error { return p.unmountElsewhere() }); err != nil {
		return err
	}
	if err := d.loopsGone(shortly(t), p.image+"\n"); err != nil {
		return err
	}
	out, err := exec.Command("e2fsck", "-f", "-p", p.image).CombinedOutput()
	t.Logf("e2fsck: %v: %s", err, out)
	if err := do(); err != nil {
		return err
	}
	return p.mount()
}

// unmountElsewhere unmounts it where shims have it: each was given the mounts of its time.
func (p *ownDisk) unmountElsewhere() error {
	infos, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return err
	}
	for _, info := range infos {
		// What is gone is not read.
		if mounts, _ := os.ReadFile(info); strings.Contains(string(mounts), " "+p.dir+" ") {
			if err := does("nsenter", "--mount="+filepath.Join(filepath.Dir(info), "ns/mnt"), "umount", p.dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// grow makes it larger in use, or after a stop of who uses it, where even root has not
// the right to that.
func (d *disks) grow(t *testing.T, p *ownDisk, bytes int64, stop func()) {
	t.Helper()
	err := p.growInUse(bytes)
	if err != nil && p.image != "" {
		t.Logf("%s is not made larger in use, but unmounted: %v", p.dir, err)
		stop()
		err = d.whileUnmounted(t, p, func() error { return does("resize2fs", p.image) })
	}
	if err != nil {
		t.Fatalf("make the file system of %s larger: %v", p.dir, err)
	}
}

func (p *ownDisk) growInUse(bytes int64) error {
	if p.image == "" {
		return syscall.Mount("small", p.dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%d,mode=755", bytes))
	}
	if err := os.Truncate(p.image, bytes); err != nil {
		return err
	}
	info, err := os.Stat(p.dir)
	if err != nil {
		return err
	}
	number := info.Sys().(*syscall.Stat_t).Dev
	block, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(number), unix.Minor(number)))
	if err != nil {
		return err
	}
	device := filepath.Join("/dev", filepath.Base(block))
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("set the size of %s: %w", device, err)
	}
	return does("resize2fs", device)
}

// firstFree is where the first block that a new file system has not taken begins.
func firstFree(image string) (uint64, error) {
	f, err := os.Open(image)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	// The superblock begins at 1024: all blocks at 4, the free ones at 12.
	var b [16]byte
	_, err = f.ReadAt(b[:], 1024)
	blocks, free := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[12:])
	return uint64(blocks-free) * 4096, err
}
