package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// Exec is the entrant: it runs one program beside the task in dir, says how it
// ended, and ends it when the borglet wants that or is gone.
func Exec(dir string) int {
	// The program's death signal is sent when the thread that started it ends: this
	// one, the last of the process.
	runtime.LockOSThread()
	unix.CloseOnExec(entrantFD)
	socket, err := unixConn(os.NewFile(entrantFD, "entrant"))
	if err == nil {
		err = entrant(dir, socket)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s exec: %v\n", time.Now().UTC().Format(time.RFC3339), err)
		return 1
	}
	return 0
}

func entrant(dir string, socket *net.UnixConn) error {
	var e entry
	buf := make([]byte, maxEntrantBytes)
	n, err := socket.Read(buf)
	if err == nil {
		err = json.Unmarshal(buf[:n], &e)
	}
	if err != nil {
		return fmt.Errorf("read what to run: %w; an exec is started by the borglet, not by hand", err)
	}
	// What the program leaves behind becomes a child of this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	p, err := beginProgram(dir, &e)
	if err != nil {
		exit := &borglet.ExitFile{Code: 127, Error: err.Error(), EndedWallNs: time.Now().UnixNano()}
		var inProgram *taskError
		exit.Retry = !errors.As(err, &inProgram)
		return tell(socket, entered{Exit: exit}, nil)
	}
	id := p.proc
	err = tell(socket, entered{Proc: &id}, p.terminal)
	if p.terminal != nil {
		p.terminal.Close()
	}
	ended, done := context.WithCancel(context.Background())
	var ending sync.WaitGroup
	ending.Go(func() { endWith(ended, socket, id) })
	if err != nil {
		endSession(id.Pid)
	}
	exit := p.wait()
	done()
	ending.Wait()
	endSession(id.Pid)
	return errors.Join(err, tell(socket, entered{Exit: &exit}, nil))
}

// endWith ends a program when the borglet says so, which it does by closing its
// side, or is gone: first by hanging up.
func endWith(ended context.Context, socket *net.UnixConn, p proc) {
	stop := context.AfterFunc(ended, func() { socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var buf [1]byte
	_, _ = socket.Read(buf[:])
	if ended.Err() != nil {
		return
	}
	signalSession(p.Pid, unix.SIGHUP)
	signalSession(p.Pid, unix.SIGCONT)
	timer := time.NewTimer(hangUpBound)
	defer timer.Stop()
	select {
	case <-ended.Done():
	case <-timer.C:
		endSession(p.Pid)
	}
}

func signalSession(session int, sig unix.Signal) {
	for _, pid := range pids() {
		if fields, err := statFields(pid); err == nil && fields[statSession] == strconv.Itoa(session) {
			_ = unix.Kill(pid, sig)
		}
	}
}

// tell sends one message, with a file if there is one.
func tell(socket *net.UnixConn, e entered, file *os.File) error {
	text, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	_, _, err = socket.WriteMsgUnix(text, rights, nil)
	// A borglet that is gone need not be told.
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return nil
	}
	return err
}

// program is one that an entrant has started.
type program struct {
	proc proc
	// terminal is the master side of its terminal; nil: it has none.
	terminal *os.File
	wait     func() borglet.ExitFile
}

func beginProgram(dir string, e *entry) (*program, error) {
	o, err := readOrder(dir)
	switch {
	case err != nil:
		return nil, err
	case o.Launch.Run != e.Run || !e.Task.alive():
		return nil, borglet.ErrNotRunning
	}
	if o.Kind == kindContainer {
		return enterContainer(&o, e)
	}
	return enterProcess(&o, e)
}

// environment is the task's own, with what the exec adds.
func (e *entry) environment(o *order) []string {
	return append(append([]string(nil), o.Launch.Env...), e.Env...)
}

// enterProcess runs a program beside a plain process: in its directory, with its
// environment, and no further apart from the machine than the task itself.
func enterProcess(o *order, e *entry) (*program, error) {
	env := append(e.environment(o), markerVariable+"="+o.Marker)
	path, err := lookPath(e.Args[0], env, o.Launch.Cwd)
	if err != nil {
		return nil, &taskError{err: err}
	}
	sys := &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	var files []*os.File
	var terminal *os.File
	if e.Terminal {
		var tty *os.File
		if terminal, tty, err = openTerminal(); err != nil {
			return nil, err
		}
		defer tty.Close()
		if err := resize(terminal, e.Rows, e.Columns); err != nil {
			return nil, fmt.Errorf("set the size of the terminal: %w", err)
		}
		sys.Setctty = true
		files = []*os.File{tty, tty, tty}
	} else {
		files = programFiles()
		defer closeAll(files)
	}
	p, err := os.StartProcess(path, e.Args, &os.ProcAttr{Dir: o.Launch.Cwd, Env: env, Files: files, Sys: sys})
	if err != nil {
		if terminal != nil {
			terminal.Close()
		}
		err = fmt.Errorf("start %q: %w", e.Args[0], errors.Unwrap(err))
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) {
			return nil, err
		}
		return nil, &taskError{err: err}
	}
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.Pid), []byte(strconv.Itoa(o.Launch.OOMScore)), 0)
	id, err := identify(p.Pid)
	if err != nil {
		id = proc{Pid: p.Pid}
	}
	return &program{proc: id, terminal: terminal, wait: func() borglet.ExitFile {
		exit := waitProcess(p)
		endSession(id.Pid)
		endChildren()
		return exit
	}}, nil
}

// programFiles are what the borglet gave for the program.
func programFiles() []*os.File {
	files := make([]*os.File, 3)
	for i := range files {
		unix.CloseOnExec(programFD + i)
		files[i] = os.NewFile(uintptr(programFD+i), "program")
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// openTerminal makes a new terminal of the machine's.
func openTerminal() (master, tty *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	return master, tty, nil
}
