//go:build linux && cgo

package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"borg/borglet"
)

// enterContainer runs a program in the container of a task: with its limits, its
// file system, and no more rights than it has.
func enterContainer(o *order, e *entry) (*program, error) {
	logrus.SetLevel(logrus.WarnLevel)
	c, err := libcontainer.Load(o.StateDir, o.Launch.ID.String())
	if err != nil {
		return nil, fmt.Errorf("find container: %w", err)
	}
	if state, err := c.State(); err != nil || state.InitProcessPid != e.Task.Pid || state.InitProcessStartTime != e.Task.StartTicks {
		return nil, borglet.ErrNotRunning
	}
	if err := makeReachable(c.Config().Rootfs); err != nil {
		return nil, err
	}
	if err := limitSelf(); err != nil {
		return nil, fmt.Errorf("start %q: %w", e.Args[0], err)
	}
	p := &libcontainer.Process{Args: e.Args, Env: e.environment(o), Cwd: o.Launch.Cwd}
	var socket *os.File
	if e.Terminal {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("make a terminal: %w", err)
		}
		socket = os.NewFile(uintptr(fds[0]), "terminal")
		defer socket.Close()
		p.ConsoleSocket = os.NewFile(uintptr(fds[1]), "terminal")
		defer p.ConsoleSocket.Close()
		p.ConsoleHeight, p.ConsoleWidth = e.Rows, e.Columns
	} else {
		files := programFiles()
		defer closeAll(files)
		p.Stdin, p.Stdout, p.Stderr = files[0], files[1], files[2]
	}
	if err := c.Run(p); err != nil {
		err = fmt.Errorf("start %q: %w", e.Args[0], err)
		// What the search for the program says inside; all else lies in the machine.
		if strings.Contains(err.Error(), ` exec: "`) {
			return nil, &taskError{err: err}
		}
		return nil, err
	}
	pid, err := p.Pid()
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", e.Args[0], err)
	}
	started := &program{wait: func() borglet.ExitFile {
		state, err := p.Wait()
		exit := borglet.ExitFile{EndedWallNs: time.Now().UnixNano()}
		if state == nil {
			exit.Unknown, exit.Error = true, err.Error()
			return exit
		}
		status(&exit, state)
		return exit
	}}
	if started.proc, err = identify(pid); err != nil {
		started.proc = proc{Pid: pid}
	}
	if socket != nil {
		if started.terminal, err = takeTerminal(socket); err != nil {
			endSession(pid)
			started.wait()
			return nil, fmt.Errorf("make a terminal: %w", err)
		}
	}
	return started, nil
}

// makeReachable makes a directory appear that only the shim's mount name space has:
// libcontainer begins in that of the root file system, also when the container has it
// already. It is made in the entrant's own mount name space, and goes with it.
func makeReachable(dir string) error {
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	at := filepath.Dir(dir)
	for _, err := os.Stat(at); err != nil && at != "/"; _, err = os.Stat(at) {
		at = filepath.Dir(at)
	}
	if at == "/" {
		return fmt.Errorf("find the root file system of the task: there is nothing of %s", dir)
	}
	err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size=64k")
	if err == nil {
		err = os.MkdirAll(dir, 0o711)
	}
	if err != nil {
		return fmt.Errorf("find the root file system of the task at %s: %w", dir, err)
	}
	return nil
}

// takeTerminal takes the terminal that libcontainer has made in the container. It
// was sent before the program started.
func takeTerminal(socket *os.File) (*os.File, error) {
	name, oob := make([]byte, unix.PathMax), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(socket.Fd()), name, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) == 0 {
		return nil, errors.Join(errors.New("no terminal came"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, errors.Join(errors.New("no terminal came"), err)
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}
