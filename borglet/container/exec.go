package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// ExecArgument is the argument that makes the borglet's program an entrant: the
// small process that runs a program beside a task's own. It is to an exec what a
// shim is to a run, save that it ends with the borglet: the socket between them
// breaks, and it ends what it has started.
const ExecArgument = "exec"

// Files that an entrant inherits.
const (
	entrantFD = 3
	// Standard input, output and error of the program, if it has no terminal.
	programFD = 4
)

const (
	// hangUpBound is how long a program that is to end may take after SIGHUP.
	hangUpBound = 2 * time.Second
	// enterBound is how long an entrant may take to start the program.
	enterBound = time.Minute
	// maxEntrantBytes bounds what the two say to each other at once.
	maxEntrantBytes = 256 << 10
)

// entry is what the borglet tells an entrant, as one message.
type entry struct {
	Run      uint32   `json:"run"`
	Args     []string `json:"args"`
	Env      []string `json:"env"`
	Terminal bool     `json:"terminal"`
	Rows     uint16   `json:"rows"`
	Columns  uint16   `json:"columns"`
	// Task's first process: a program must not be let into another one's place.
	Task proc `json:"task"`
}

// entered is what an entrant answers: first who runs, with the terminal if there is
// one, then how it ended.
type entered struct {
	Proc *proc             `json:"proc,omitempty"`
	Exit *borglet.ExitFile `json:"exit,omitempty"`
}

// Exec runs a program inside a run that is there.
func (r *Runtime) Exec(p *borglet.Program) (*borglet.Execution, error) {
	r.mu.Lock()
	var task proc
	if followed := r.runs[p.ID]; followed != nil && followed.n == p.Run && !followed.killed {
		task = followed.task
	}
	r.mu.Unlock()
	if task.Pid == 0 || !task.alive() {
		return nil, borglet.ErrNotRunning
	}
	r.awaitListening(p.Dir, task)
	e := entry{Run: p.Run, Args: p.Args, Env: p.Env, Terminal: p.Terminal, Rows: p.Rows, Columns: p.Columns, Task: task}
	socket, files, err := r.enter(p)
	if err != nil {
		return nil, err
	}
	x := &execution{socket: socket, files: files}
	if err := x.begin(e); err != nil {
		x.end()
		x.close()
		return nil, err
	}
	return x.execution(), nil
}

// enter starts an entrant and returns the borglet's ends of what is between them.
func (r *Runtime) enter(p *borglet.Program) (socket *net.UnixConn, ours [3]*os.File, err error) {
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			for _, f := range ours {
				if f != nil {
					f.Close()
				}
			}
		}
	}()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, ours, fmt.Errorf("exec: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(p.Dir, shimLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		null.Close()
		return nil, ours, fmt.Errorf("exec: open the shim's log: %w", err)
	}
	socket, end, err := socketPair()
	theirs = []*os.File{null, log, end}
	if err != nil {
		theirs = theirs[:2]
		return nil, ours, fmt.Errorf("exec: %w", err)
	}
	inherited := []*os.File{null, log, log, end}
	if !p.Terminal {
		for i := range ours {
			if i == 0 && !p.Stdin {
				inherited = append(inherited, null)
				continue
			}
			read, write, err := os.Pipe()
			if err != nil {
				socket.Close()
				return nil, ours, fmt.Errorf("exec: %w", err)
			}
			ours[i], end = read, write
			if i == 0 {
				ours[i], end = write, read
			}
			theirs = append(theirs, end)
			inherited = append(inherited, end)
		}
	}
	entrant, err := os.StartProcess(r.self, []string{"borglet", ExecArgument, p.Dir}, &os.ProcAttr{
		Dir: "/", Env: append(shimEnv(), "GOMAXPROCS=1", "GOGC=50"), Files: inherited,
		Sys: &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		socket.Close()
		return nil, ours, fmt.Errorf("exec: %w", err)
	}
	// Collected by whoever waits for it; it ends by itself when the socket does.
	r.wg.Go(func() { _, _ = entrant.Wait() })
	return socket, ours, nil
}

func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	conn, err := unixConn(os.NewFile(uintptr(fds[0]), "entrant"))
	end := os.NewFile(uintptr(fds[1]), "entrant")
	if err != nil {
		end.Close()
		return nil, nil, err
	}
	return conn, end, nil
}

// unixConn makes a connection of a socket, which is closed.
func unixConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// execution is the borglet's side of an entrant.
type execution struct {
	socket *net.UnixConn
	files  [3]*os.File
	proc   proc
	once   sync.Once
}

// begin tells the entrant what to run and hears that it does.
func (x *execution) begin(e entry) error {
	text, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	if len(text) > maxEntrantBytes {
		return fmt.Errorf("exec: arguments and environment take %d bytes, and %d is the most", len(text), maxEntrantBytes)
	}
	if err := x.socket.SetDeadline(time.Now().Add(enterBound)); err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	if _, err := x.socket.Write(text); err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	answer, terminal, err := receive(x.socket)
	switch {
	case err != nil:
		return fmt.Errorf("exec: the program was not started within %v, or what starts it ended: %w", enterBound, err)
	case answer.Exit != nil:
		return &borglet.ProgramError{Text: answer.Exit.Error}
	case answer.Proc == nil || e.Terminal != (terminal != nil):
		if terminal != nil {
			terminal.Close()
		}
		return errors.New("exec: what starts the program does not keep to the form")
	}
	x.proc = *answer.Proc
	if terminal != nil {
		x.files = [3]*os.File{terminal, terminal, nil}
	}
	if err := x.socket.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	return nil
}

func (x *execution) execution() *borglet.Execution {
	return &borglet.Execution{
		Stdin: x.files[0], Stdout: x.files[1], Stderr: x.files[2],
		Resize: x.resize, End: x.end, Wait: x.wait, Close: x.close,
	}
}

func (x *execution) resize(rows, columns uint16) error {
	if x.files[2] != nil || x.files[0] == nil {
		return nil // no terminal
	}
	return resize(x.files[0], rows, columns)
}

func resize(terminal *os.File, rows, columns uint16) error {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var ioctlErr error
	err = raw.Control(func(fd uintptr) {
		ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	})
	return errors.Join(err, ioctlErr)
}

// end has the entrant end the program. What it says afterwards is still heard.
func (x *execution) end() { x.once.Do(func() { _ = x.socket.CloseWrite() }) }

// wait returns when the program has ended, and nothing of its session is left.
func (x *execution) wait() borglet.ExitFile {
	answer, _, err := receive(x.socket)
	if err == nil && answer.Exit != nil {
		return *answer.Exit
	}
	// The entrant was killed. Its program goes with it.
	if x.proc.alive() {
		endSession(x.proc.Pid)
	}
	return borglet.ExitFile{Unknown: true, EndedWallNs: time.Now().UnixNano()}
}

func (x *execution) close() {
	x.socket.Close()
	for i, f := range x.files {
		if f != nil && (i == 0 || f != x.files[0]) {
			f.Close()
		}
	}
}

// receive reads one message, with the file that may come with it.
func receive(socket *net.UnixConn) (e entered, file *os.File, err error) {
	buf, oob := make([]byte, maxEntrantBytes), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := socket.ReadMsgUnix(buf, oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return e, nil, err
	}
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) > 0 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) > 0 {
			unix.CloseOnExec(fds[0])
			// So that reading it can be broken off.
			_ = unix.SetNonblock(fds[0], true)
			file = os.NewFile(uintptr(fds[0]), "terminal")
		}
	}
	return e, file, json.Unmarshal(buf[:n], &e)
}

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
		return tell(socket, entered{Exit: &borglet.ExitFile{Code: 127, Error: err.Error(), EndedWallNs: time.Now().UnixNano()}}, nil)
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
		return nil, err
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
		return nil, fmt.Errorf("start %q: %w", e.Args[0], errors.Unwrap(err))
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
