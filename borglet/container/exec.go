package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/beneath"
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
	log, err := beneath.Open(p.Dir, shimLog, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
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
	sys := &unix.SysProcAttr{Setsid: true}
	if r.Capabilities().Runtime == kindContainer {
		sys.Unshareflags = unix.CLONE_NEWNS
	}
	entrant, err := os.StartProcess(r.self, []string{"borglet", ExecArgument, p.Dir}, &os.ProcAttr{
		Dir: "/", Env: append(shimEnv(), "GOMAXPROCS=1", "GOGC=50"), Files: inherited,
		Sys: sys,
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
	case answer.Exit != nil && answer.Exit.Retry:
		// It lies in the machine: no health check may take it for the task's.
		return errors.New(answer.Exit.Error)
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
