package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// faultyDisk is what a disk is to a loop device: one file, whose bytes this process
// keeps in another. So it can hang and return errors, which no kernel lets a test
// ask of a real one. It speaks the little of FUSE that one file needs. When this
// process ends, everything that waits for it fails.
type faultyDisk struct {
	// Where the loop device finds it.
	path  string
	bytes *os.File
	size  uint64
	dev   *os.File
	done  chan struct{}

	mu sync.Mutex
	// What is written from this byte on fails, and so does a sync if it is 0. Guarded by mu.
	failFrom uint64
	// Closed when it goes on; nil: it does not hang. Guarded by mu.
	hung chan struct{}
}

const (
	fuseGetattr = 3
	fuseForget  = 2
	fuseOpen    = 14
	fuseRead    = 15
	fuseWrite   = 16
	fuseRelease = 18
	fuseFsync   = 20
	fuseFlush   = 25
	fuseInit    = 26
	fuseStop    = 36 // of a request; the answer to that comes all the same
	fuseDestroy = 38
	fuseForgets = 42

	fuseHeaderBytes = 40
	fuseAnswerBytes = 16
	fuseIOBytes     = 40
	fuseMost        = 128 << 10
	fuseMode        = syscall.S_IFREG | 0o600
)

// newFaultyDisk mounts the file bytes over the file path.
func newFaultyDisk(path, bytes string) (*faultyDisk, error) {
	d := &faultyDisk{path: path, failFrom: math.MaxUint64, done: make(chan struct{})}
	var err error
	if d.bytes, err = os.OpenFile(bytes, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	info, err := d.bytes.Stat()
	if err != nil {
		return nil, errors.Join(err, d.bytes.Close())
	}
	d.size = uint64(info.Size())
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, errors.Join(err, d.bytes.Close())
	}
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open /dev/fuse: %w", err), d.bytes.Close())
	}
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0", fd, fuseMode)
	if err := syscall.Mount("faulty", path, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount a file of FUSE: %w", err), syscall.Close(fd), d.bytes.Close())
	}
	// Not sooner: what is not mounted cannot be waited for.
	d.dev = os.NewFile(uintptr(fd), "/dev/fuse")
	go d.serve()
	return d, nil
}

// close returns when nobody answers any more. What still waits fails.
func (d *faultyDisk) close() error {
	d.goOn()
	err := syscall.Unmount(d.path, syscall.MNT_DETACH)
	err = errors.Join(err, d.dev.Close())
	<-d.done
	return errors.Join(err, d.bytes.Close())
}

// hang lets everything wait that is asked of it until goOn.
func (d *faultyDisk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hung = make(chan struct{})
}

func (d *faultyDisk) goOn() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
}

// fail lets all writes from this byte on fail, and with 0 syncs too.
func (d *faultyDisk) fail(from uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failFrom = from
}

func (d *faultyDisk) heal() { d.fail(math.MaxUint64) }

func (d *faultyDisk) serve() {
	defer close(d.done)
	request := make([]byte, fuseMost+4096)
	for {
		n, err := d.dev.Read(request)
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EINTR) {
			// That request was taken back.
			continue
		}
		if err != nil || n < fuseHeaderBytes {
			return
		}
		d.mu.Lock()
		hung := d.hung
		d.mu.Unlock()
		if hung != nil {
			<-hung
		}
		opcode := binary.LittleEndian.Uint32(request[4:])
		switch opcode {
		case fuseForget, fuseForgets, fuseStop:
			continue
		}
		answer, err := d.answer(opcode, request[fuseHeaderBytes:n])
		var errno syscall.Errno
		if errors.As(err, &errno); err != nil && errno == 0 {
			errno = syscall.EIO
		}
		out := make([]byte, fuseAnswerBytes, fuseAnswerBytes+len(answer))
		binary.LittleEndian.PutUint32(out, uint32(fuseAnswerBytes+len(answer)))
		binary.LittleEndian.PutUint32(out[4:], uint32(-int32(errno)))
		copy(out[8:16], request[8:16])
		// Who asked may have ended.
		_, _ = d.dev.Write(append(out, answer...))
	}
}

func (d *faultyDisk) answer(opcode uint32, in []byte) ([]byte, error) {
	le := binary.LittleEndian
	switch opcode {
	case fuseInit:
		out := make([]byte, 64)
		le.PutUint32(out, 7)
		le.PutUint32(out[4:], 31)
		le.PutUint32(out[8:], fuseMost)
		const bigWrites, maxPages = 1 << 5, 1 << 22
		le.PutUint32(out[12:], bigWrites|maxPages)
		le.PutUint16(out[16:], 16)
		le.PutUint16(out[18:], 12)
		le.PutUint32(out[20:], fuseMost)
		le.PutUint32(out[24:], 1)
		le.PutUint16(out[28:], fuseMost/4096)
		return out, nil
	case fuseGetattr:
		out := make([]byte, 16+88)
		le.PutUint64(out, 3600) // seconds for which this is true
		attr := out[16:]
		le.PutUint64(attr, 1)
		le.PutUint64(attr[8:], d.size)
		le.PutUint64(attr[16:], d.size/512)
		le.PutUint32(attr[60:], fuseMode)
		le.PutUint32(attr[64:], 1)
		le.PutUint32(attr[80:], 4096)
		return out, nil
	case fuseOpen:
		return make([]byte, 16), nil
	case fuseRead:
		at, n := le.Uint64(in[8:]), le.Uint32(in[16:])
		if at >= d.size {
			return nil, nil
		}
		out := make([]byte, min(uint64(n), d.size-at))
		_, err := d.bytes.ReadAt(out, int64(at))
		return out, err
	case fuseWrite:
		at, n := le.Uint64(in[8:]), le.Uint32(in[16:])
		if at+uint64(n) > d.fails() {
			return nil, syscall.EIO
		}
		if _, err := d.bytes.WriteAt(in[fuseIOBytes:fuseIOBytes+n], int64(at)); err != nil {
			return nil, err
		}
		return le.AppendUint64(nil, uint64(n)), nil
	case fuseFsync:
		if d.fails() == 0 {
			return nil, syscall.EIO
		}
		return nil, d.bytes.Sync()
	case fuseFlush, fuseRelease, fuseDestroy:
		return nil, nil
	}
	return nil, syscall.ENOSYS
}

func (d *faultyDisk) fails() (from uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failFrom
}

// A faulty disk keeps what is written, returns errors to whom it is told to, and hangs.
func TestFaultyDisk(t *testing.T) {
	t.Parallel()
	disks := newDisks(t)
	dir := filepath.Join(t.TempDir(), "mounted")
	d := disks.faulty(t, dir, 32<<20)
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	write := func(name string) error {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteString(name)
		return errors.Join(err, f.Sync(), f.Close())
	}
	if err := write("kept"); err != nil {
		t.Fatal(err)
	}
	d.fault.fail(d.filesFrom)
	if err := write("lost"); !errors.Is(err, syscall.EIO) {
		t.Errorf("write to a disk that fails: %v", err)
	}
	// The kernel shows what the disk has not.
	if got, err := os.ReadFile(filepath.Join(dir, "lost")); string(got) != "lost" || err != nil {
		t.Errorf("what could not be written is %q, %v", got, err)
	}
	d.fault.heal()
	if err := write("later"); err != nil {
		t.Errorf("write to a disk that is well again: %v", err)
	}
	disks.again(t, d)
	for name, kept := range map[string]bool{"kept": true, "lost": false, "later": true} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || (string(got) == name) != kept {
			t.Errorf("after a power failure what was written as %q is %q, %v", name, got, err)
		}
	}

	d.fault.hang()
	done := make(chan error, 1)
	go func() { done <- write("slow") }()
	select {
	case err := <-done:
		t.Errorf("write to a disk that hangs: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	d.fault.goOn()
	if err := <-done; err != nil {
		t.Errorf("write to a disk that has hung: %v", err)
	}

	// A file that is made goes through the journal, which is never written again.
	d.fault.fail(0)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "never"), 0o700), syncedDir(dir)); !errors.Is(err, syscall.EIO) {
		t.Errorf("make a directory on a disk that writes nothing: %v", err)
	}
	d.fault.heal()
	if err := write("no more"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write after the journal could not be written: %v", err)
	}
	disks.again(t, d)
	if err := write("at last"); err != nil {
		t.Errorf("write to a file system that was mounted again: %v", err)
	}
}

func syncedDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
