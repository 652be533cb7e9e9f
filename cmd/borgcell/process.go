package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	backoffFirst = 200 * time.Millisecond
	backoffMax   = 10 * time.Second
	// A process that ran so long was well; its next restart waits the least.
	backoffForgetAfter = 10 * time.Second
	// A log longer than this is put aside when its process starts.
	logMaxBytes = 64 << 20
	// So much of a log is shown when its process has ended.
	logEndBytes = 4 << 10
)

// processSpec is what to run and where its output goes.
type processSpec struct {
	Name string
	Path string
	Args []string
	// Added to our own environment.
	Env     []string
	LogPath string
	// Tells whether a program that has ended has done so for good and is not started again;
	// nil: none has.
	Over func() bool
}

// process keeps one program running. One goroutine owns it (run); the methods
// tell that goroutine what is wanted.
type process struct {
	// Path, Args and Env are guarded by mu: another build may take its place. The
	// rest does not change.
	spec processSpec
	log  *slog.Logger
	// Called after each start and end, without mu.
	changed func()

	mu sync.Mutex
	// What is wanted. Guarded by mu.
	want, closed bool
	// A start was asked for while nothing ran, and not tried yet. Guarded by mu.
	asked bool
	// The process that runs; nil when none does. Guarded by mu.
	current *instance
	// The run that was last seen to serve. Guarded by mu.
	served *instance
	// How often it was started, and the error of the last try to start it.
	// Guarded by mu.
	starts   int
	startErr error
	// Closed and replaced when anything above changes. Guarded by mu.
	news chan struct{}
}

// instance is one run of a process.
type instance struct {
	id   processID
	proc *os.Process
	// Closed when it has ended and was reaped.
	done chan struct{}
	// How it ended; set before done is closed.
	end string
}

func newProcess(spec processSpec, log *slog.Logger, changed func()) *process {
	return &process{spec: spec, log: log.With("process", spec.Name), changed: changed, news: make(chan struct{})}
}

// become changes what is run from its next start on.
func (p *process) become(spec processSpec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spec.Path, p.spec.Args, p.spec.Env = spec.Path, spec.Args, spec.Env
}

// run owns the process until close is called and nothing runs any more.
func (p *process) run() {
	backoff := backoffFirst
	for p.wait(func() bool { return p.want || p.closed }) {
		began := time.Now()
		in, err := p.launch()
		if err != nil {
			p.log.Error("process not started", "err", err)
		} else {
			p.changed()
			<-in.done
			p.changed()
		}
		if time.Since(began) >= backoffForgetAfter {
			backoff = backoffFirst
		}
		if in != nil && p.retired() {
			p.log.Warn("process ended for good and is not started again; its log says why", "log", p.spec.LogPath)
		}
		if in != nil && p.wanted() {
			p.log.Warn("process ended and will be started again", "end", in.end, "backoff", backoff)
		}
		if p.pause(backoff) {
			backoff = min(2*backoff, backoffMax)
		} else {
			backoff = backoffFirst
		}
	}
}

// launch starts the program once and leaves a goroutine to reap it, which ends
// with the program.
func (p *process) launch() (*instance, error) {
	in, cmd, err := p.spawn()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts++
	p.asked = false
	p.startErr = err
	p.current = in
	p.tell()
	if err != nil {
		return nil, err
	}
	go func() {
		// The error repeats what the state says.
		_ = cmd.Wait()
		in.end = cmd.ProcessState.String()
		p.mu.Lock()
		p.current = nil
		p.tell()
		p.mu.Unlock()
		close(in.done)
	}()
	return in, nil
}

func (p *process) spawn() (*instance, *exec.Cmd, error) {
	out, err := openLog(p.spec.LogPath)
	if err != nil {
		return nil, nil, err
	}
	defer out.Close()
	p.mu.Lock()
	cmd := exec.Command(p.spec.Path, p.spec.Args...)
	cmd.Env = append(os.Environ(), p.spec.Env...)
	p.mu.Unlock()
	cmd.Stdout, cmd.Stderr = out, out
	// A group of its own, so that Ctrl-C on the terminal reaches us alone and
	// we stop things in the right order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		// It has ended already; its exit is seen like any other.
		id = processID{PID: cmd.Process.Pid}
	}
	return &instance{id: id, proc: cmd.Process, done: make(chan struct{})}, cmd, nil
}

// openLog opens a log to write at its end. A long one is put aside first.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > logMaxBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
}

// wait blocks until the condition holds and returns false when the process is
// closed.
func (p *process) wait(condition func() bool) bool {
	p.mu.Lock()
	for !condition() {
		news := p.news
		p.mu.Unlock()
		<-news
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	return !p.closed
}

// pause waits for the backoff, or until something else is wanted; it reports
// whether the backoff is over. A start that was asked for since the end of the
// process, even before we came here, is not held up.
func (p *process) pause(backoff time.Duration) (over bool) {
	timer := time.NewTimer(backoff)
	defer timer.Stop()
	p.mu.Lock()
	wanted, asked, news := p.want, p.asked, p.news
	p.mu.Unlock()
	if !wanted || asked {
		return false
	}
	select {
	case <-timer.C:
		return true
	case <-news:
		return false
	}
}

// tell wakes everybody who waits for a change. Call with mu held.
func (p *process) tell() {
	close(p.news)
	p.news = make(chan struct{})
}

func (p *process) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.want
}

// start asks for the process and returns when it was started, be it that it has
// ended again since, or could not be.
func (p *process) start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("start %s: the supervisor is closed", p.spec.Name)
	}
	p.want = true
	p.asked = p.current == nil
	tries := p.starts
	p.tell()
	for p.current == nil && p.starts == tries {
		news := p.news
		p.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if err := ctx.Err(); err != nil && p.current == nil {
			return fmt.Errorf("start %s: %w", p.spec.Name, err)
		}
	}
	if p.current == nil && p.startErr != nil {
		p.want = false
		return fmt.Errorf("start %s: %w", p.spec.Name, p.startErr)
	}
	return nil
}

// running returns the run that goes on, or nil.
func (p *process) running() *instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// pid is the number of the running process, or 0.
func (p *process) pid() int {
	if in := p.running(); in != nil {
		return in.id.PID
	}
	return 0
}

// serves notes that a run has been seen to serve.
func (p *process) serves(in *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.served = in
}

// crashed reports whether the process has ended, against what is wanted, since
// it was seen to serve.
func (p *process) crashed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.want && p.served != nil && p.current != p.served && !p.over()
}

// retired notes, and tells, that the process has ended for good although it was wanted.
func (p *process) retired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.want || p.current != nil || !p.over() {
		return false
	}
	p.want = false
	p.tell()
	return true
}

func (p *process) over() bool { return p.spec.Over != nil && p.spec.Over() }

// kill kills the process with SIGKILL and returns when it is gone. With hold
// it stays dead until start is called; otherwise it is started again.
func (p *process) kill(hold bool) error {
	p.mu.Lock()
	in := p.current
	if hold {
		p.want = false
		p.tell()
	}
	p.mu.Unlock()
	if in == nil {
		return fmt.Errorf("kill %s: it does not run", p.spec.Name)
	}
	if err := in.proc.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.spec.Name, err)
	}
	<-in.done
	return nil
}

// stop ends the process with SIGTERM, or with SIGKILL when it has not ended
// after grace or ctx is done. It returns when the process is gone, and says
// whether it had to be killed.
func (p *process) stop(ctx context.Context, grace time.Duration) (killed bool) {
	p.mu.Lock()
	in := p.current
	p.want = false
	p.tell()
	p.mu.Unlock()
	if in == nil {
		return false
	}
	// What cannot be signalled has ended.
	_ = in.proc.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-in.done:
		return false
	case <-timer.C:
	case <-ctx.Done():
	}
	_ = in.proc.Kill()
	<-in.done
	return true
}

// close makes run return once nothing runs.
func (p *process) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want, p.closed = false, true
	p.tell()
}

// logEnd is the end of the log, for the error about its process.
func (p *process) logEnd() string {
	return fmt.Sprintf("the end of %s:\n%s", p.spec.LogPath, indent(p.logTail(logEndBytes), "  | "))
}

// logTail returns the last bytes of the process's log, whole lines.
func (p *process) logTail(maxBytes int64) string {
	f, err := os.Open(p.spec.LogPath)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	b := make([]byte, min(size, maxBytes))
	n, err := f.ReadAt(b, size-int64(len(b)))
	if err != nil && err != io.EOF {
		return ""
	}
	return wholeLines(string(b[:n]), size > maxBytes)
}
