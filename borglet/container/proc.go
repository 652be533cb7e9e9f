package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errGone is what is said of a process that is no more.
var errGone = errors.New("no such process")

// proc names a process beyond the reuse of its pid.
type proc struct {
	Pid int `json:"pid"`
	// StartTicks is when it started, in clock ticks since boot.
	StartTicks uint64 `json:"start_ticks"`
}

// identify returns the process that has a pid now.
func identify(pid int) (proc, error) {
	fields, err := statFields(pid)
	if err != nil {
		return proc{}, err
	}
	ticks, err := strconv.ParseUint(fields[statStart], 10, 64)
	if err != nil {
		return proc{}, fmt.Errorf("read start of process %d: %w", pid, err)
	}
	return proc{Pid: pid, StartTicks: ticks}, nil
}

// Indices into the fields of /proc/PID/stat behind the command's name.
const (
	statState   = 0
	statPpid    = 1
	statSession = 3
	statUser    = 11
	statSystem  = 12
	statStart   = 19
	statRSS     = 21
)

func statFields(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, errGone
	}
	// The command's name is in parentheses and may hold anything.
	_, rest, ok := strings.Cut(string(text), "(")
	at := strings.LastIndexByte(rest, ')')
	if !ok || at < 0 {
		return nil, fmt.Errorf("read state of process %d: unexpected form", pid)
	}
	fields := strings.Fields(rest[at+1:])
	if len(fields) <= statRSS {
		return nil, fmt.Errorf("read state of process %d: unexpected form", pid)
	}
	return fields, nil
}

// alive says whether it still runs; one that only waits to be collected does
// not.
func (p proc) alive() bool {
	if p.Pid == 0 {
		return false
	}
	fields, err := statFields(p.Pid)
	return err == nil && fields[statStart] == strconv.FormatUint(p.StartTicks, 10) &&
		fields[statState] != "Z" && fields[statState] != "X"
}

// open returns a handle that stays with this very process.
func (p proc) open() (*handle, error) {
	fd, err := unix.PidfdOpen(p.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil, errGone
		}
		return nil, fmt.Errorf("open process %d: %w", p.Pid, err)
	}
	h := &handle{file: os.NewFile(uintptr(fd), "pidfd"), fd: fd}
	if now, err := identify(p.Pid); err != nil || now != p {
		h.close()
		return nil, errGone
	}
	return h, nil
}

// signal sends a signal to this very process.
func (p proc) signal(sig unix.Signal) error {
	h, err := p.open()
	if err != nil {
		return err
	}
	defer h.close()
	if err := unix.PidfdSendSignal(h.fd, sig, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return errGone
		}
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(sig), p.Pid, err)
	}
	return nil
}

// handle is an open process.
type handle struct {
	file *os.File
	fd   int
}

func (h *handle) close() { h.file.Close() }

// wait returns when the process has ended, nil, or when ctx has. It holds no
// thread: the runtime's poller watches the handle.
func (h *handle) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { h.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := h.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for a process: %w", err)
	}
	err = raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("wait for a process: %w", err)
	}
	return nil
}

// reap collects a child that has ended, so that it does not stay as a zombie.
// A process that is no child of ours is somebody else's to collect.
func reap(pid int) {
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
