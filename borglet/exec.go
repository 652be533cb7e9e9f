package borglet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// maxExecs bounds the programs that run at once beside the tasks of a machine,
	// each of which has a process of the borglet's own; maxExecsOfUser those of one
	// user. Health checks are not among them.
	maxExecs       = 32
	maxExecsOfUser = 8
	// maxExecBytes bounds the arguments of a program together.
	maxExecBytes = 64 << 10
	// maxTermBytes bounds the name of a kind of terminal.
	maxTermBytes = 64
	// execIdle is how long a program may neither read nor write: who has forgotten it
	// does not hold a place for ever.
	execIdle = 30 * time.Minute
	// execDrain is how long output is still read after the end of a program: what has
	// left its session may hold it open.
	execDrain = time.Second
	// execChunkBytes is how much is sent in one message.
	execChunkBytes = 64 << 10
)

// ErrNotRunning is said of a run that is not there to run a program in.
var ErrNotRunning = errors.New("the copy does not run")

// ProgramError is why a program could not be started, for a reason that lies in the
// program.
type ProgramError struct{ Text string }

func (e *ProgramError) Error() string { return e.Text }

// Program is one that runs beside a task's own.
type Program struct {
	ID  ID
	Run uint32
	// The copy's directory, as in Launch.
	Dir  string
	Args []string
	// What it has beyond the environment of the task.
	Env []string
	// Terminal: it has one, of that many lines of that many characters.
	Terminal      bool
	Rows, Columns uint16
	// Stdin: it has an input, which without a terminal is a pipe.
	Stdin bool
}

// Execution is a program that runs beside a task's own.
type Execution struct {
	// Stdin is nil without input. With a terminal, Stdin and Stdout are the terminal,
	// and Stderr is nil.
	Stdin, Stdout, Stderr *os.File
	// Resize changes the size of the terminal.
	Resize func(rows, columns uint16) error
	// End hangs up on the program, and soon afterwards kills what is left of its
	// session. It does not wait, and may be called at any time.
	End func()
	// Wait returns how it ended. To be called once.
	Wait func() ExitFile
	// Close lets go of everything, after Wait.
	Close func()
}

// checkProgram says what is wrong with a program that somebody wants run.
func checkProgram(p *borgrpc.ExecProgram) error {
	bytes := 0
	for _, arg := range p.GetArgs() {
		bytes += len(arg) + 1
		if strings.Contains(arg, "\x00") {
			return errors.New("exec: an argument has a zero byte")
		}
	}
	switch {
	case len(p.GetArgs()) == 0 || p.GetArgs()[0] == "":
		return errors.New("exec: no program is named")
	case bytes > maxExecBytes:
		return fmt.Errorf("exec: the arguments have %d bytes, and %d are the most", bytes, maxExecBytes)
	case len(p.GetTerm()) > maxTermBytes || strings.ContainsAny(p.GetTerm(), "\x00=\n"):
		return fmt.Errorf("exec: kind of terminal %q: want at most %d bytes on one line", p.GetTerm(), maxTermBytes)
	}
	return nil
}

// execsFull says that no more programs may run.
type execsFull struct{ text string }

func (e *execsFull) Error() string { return e.text }

// execs keeps count of what runs beside tasks.
type execs struct {
	mu sync.Mutex
	// running holds who asked for each execution. Guarded by mu.
	running map[ID]map[*Execution]string
	// rates is guarded by mu.
	rates execRates
}

// enter takes a place for a program of somebody.
func (x *execs) enter(id ID, e *Execution, by, machine string, nowNs int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	all, own := 0, 0
	for _, running := range x.running {
		for _, who := range running {
			all++
			if who == by {
				own++
			}
		}
	}
	if all >= maxExecs || own >= maxExecsOfUser {
		return &execsFull{fmt.Sprintf("machine %s runs %d programs beside its tasks, %d of them for %s, and at most %d and %d may run at once; end one", machine, all, own, by, maxExecs, maxExecsOfUser)}
	}
	if wait := x.rates.take(by, nowNs); wait > 0 {
		return execsTooFast(machine, by, wait)
	}
	if x.running[id] == nil {
		if x.running == nil {
			x.running = map[ID]map[*Execution]string{}
		}
		x.running[id] = map[*Execution]string{}
	}
	x.running[id][e] = by
	return nil
}

// began says what the execution is that has a place. The lock also keeps its end from
// being missed between the two.
func (x *execs) began(id ID, place, e *Execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.running[id] == nil {
		e.End() // its run has ended meanwhile
		return
	}
	*place = *e
}

func (x *execs) leave(id ID, e *Execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.running[id], e)
	if len(x.running[id]) == 0 {
		delete(x.running, id)
	}
}

// end ends what runs beside a run that has ended.
func (x *execs) end(id ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for e := range x.running[id] {
		if e.End != nil {
			e.End()
		}
	}
	delete(x.running, id)
}

// execStream is the stream of one call.
type execStream struct {
	send func(*borgrpc.ExecResponse) error
	recv func() (*borgrpc.ExecCopyRequest, error)
}

// exec runs a program beside a task until it ends, or the call does.
func (a *Agent) exec(ctx context.Context, id ID, start *borgrpc.ExecCopyRequest, stream execStream) error {
	p := start.GetProgram()
	run, ok := a.runOf(id)
	if !ok {
		return ErrNotRunning
	}
	place := &Execution{}
	if err := a.execs.enter(id, place, start.GetBy(), a.cfg.Name, int64(time.Since(a.start))); err != nil {
		return err
	}
	defer a.execs.leave(id, place)
	program := &Program{
		ID: id, Run: run, Dir: a.store.TaskDir(id), Args: p.GetArgs(), Terminal: p.GetTerminal(), Stdin: p.GetStdin() || p.GetTerminal(),
		Rows: uint16(min(p.GetSize().GetRows(), 1<<16-1)), Columns: uint16(min(p.GetSize().GetColumns(), 1<<16-1)),
	}
	if p.GetTerminal() && p.GetTerm() != "" {
		program.Env = []string{"TERM=" + p.GetTerm()}
	}
	e, err := a.cfg.Runtime.Exec(program)
	var inProgram *ProgramError
	if errors.As(err, &inProgram) {
		return stream.send(&borgrpc.ExecResponse{Exit: &borgpb.Exit{Code: 127, Error: bounded(a.cfg.HostPaths.Hide(inProgram.Text)), EndedWallNs: time.Now().UnixNano()}})
	}
	if err != nil {
		return err
	}
	defer e.Close()
	a.execs.began(id, place, e)
	a.cfg.Log.Info("a program runs beside a task", "machine", a.cfg.Name, "copy", id.String(), "by", start.GetBy(), "program", p.GetArgs()[0])
	s := &execSession{e: e, stream: stream}
	exit := s.run(ctx, a.life, a.cfg.Runtime.Capabilities().Runtime)
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.send(&borgrpc.ExecResponse{Exit: exitWithout(a.cfg.HostPaths, exit)})
}

// execSession is one program between its files and its caller.
type execSession struct {
	e      *Execution
	stream execStream
	// sending: one message at a time.
	sending sync.Mutex
	idle    *time.Timer
	why     atomic.Pointer[string]
}

// run carries what is written both ways, and returns how the program ended.
func (s *execSession) run(ctx, life context.Context, runtime string) *borgpb.Exit {
	defer context.AfterFunc(ctx, s.e.End)()
	defer context.AfterFunc(life, func() { s.end("the borglet of its machine stops") })()
	s.idle = time.AfterFunc(execIdle, func() { s.end(fmt.Sprintf("it neither read nor wrote anything for %v", execIdle)) })
	defer s.idle.Stop()
	if s.send(&borgrpc.ExecResponse{Started: runtime}) != nil {
		s.e.End()
	}
	// Ends when the call does, at the latest: no sooner can a stream stop being
	// received from.
	go s.input()
	var outputs sync.WaitGroup
	outputs.Go(func() { s.output(s.e.Stdout, borgrpc.LogStream_LOG_STREAM_STDOUT) })
	if s.e.Stderr != nil {
		outputs.Go(func() { s.output(s.e.Stderr, borgrpc.LogStream_LOG_STREAM_STDERR) })
	}
	exit := s.e.Wait()
	for _, f := range []*os.File{s.e.Stdout, s.e.Stderr} {
		if f != nil {
			_ = f.SetReadDeadline(time.Now().Add(execDrain))
		}
	}
	outputs.Wait()
	e := exit.Exit()
	if why := s.why.Load(); why != nil && e.GetError() == "" {
		e.Error = *why
	}
	return e
}

// end ends the program and says why.
func (s *execSession) end(why string) {
	s.why.CompareAndSwap(nil, &why)
	s.e.End()
}

func (s *execSession) send(r *borgrpc.ExecResponse) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.stream.send(r)
}

// output sends what the program writes, until it has no more to write.
func (s *execSession) output(from *os.File, stream borgrpc.LogStream) {
	buf := make([]byte, execChunkBytes)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			s.idle.Reset(execIdle)
			if s.send(&borgrpc.ExecResponse{Data: slices.Clone(buf[:n]), Stream: stream}) != nil {
				s.e.End()
				return
			}
		}
		// A terminal that nobody has open any more is an error to read.
		if err != nil {
			return
		}
	}
}

// input gives the program what it is sent.
func (s *execSession) input() {
	for {
		req, err := s.stream.recv()
		if err != nil {
			// The caller says no more. One who is gone ends the call too.
			if errors.Is(err, io.EOF) {
				s.closeInput()
			}
			return
		}
		s.idle.Reset(execIdle)
		in := req.GetInput()
		if size := in.GetSize(); size != nil {
			_ = s.e.Resize(uint16(min(size.GetRows(), 1<<16-1)), uint16(min(size.GetColumns(), 1<<16-1)))
		}
		if len(in.GetData()) > 0 && s.e.Stdin != nil {
			// What a program does not want to read is lost, as with any pipe.
			_, _ = s.e.Stdin.Write(in.GetData())
		}
		if in.GetEnd() {
			s.closeInput()
		}
	}
}

// endOfTransmission is what ends the input of who reads lines of a terminal.
const endOfTransmission = 4

func (s *execSession) closeInput() {
	switch {
	case s.e.Stdin == nil:
	case s.e.Stdin == s.e.Stdout:
		_, _ = s.e.Stdin.Write([]byte{endOfTransmission})
	default:
		s.e.Stdin.Close()
	}
}
