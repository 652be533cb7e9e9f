package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// execChunkBytes is how much input is sent in one message.
const execChunkBytes = 32 << 10

// execTask runs a program in a task and ends as it did.
func execTask(s *session) error {
	job, index, err := s.task(s.args[0])
	if err != nil {
		return err
	}
	req := &borgrpc.ExecRequest{User: job.user, Name: job.name, Index: index, Attempt: s.flag.Uint64("attempt"), Program: &borgrpc.ExecProgram{
		Args: s.args[1:], Terminal: s.flag.Bool("terminal"), Stdin: s.flag.Bool("stdin") || s.flag.Bool("terminal"),
	}}
	var screen *os.File
	if req.Program.Terminal {
		var ok bool
		if screen, ok = s.stdin.(*os.File); !ok || !s.inTerminal || !s.terminal {
			return cli.Errorf(cli.Usage, "-t gives the program this terminal, and standard input and output are none").Hint("without a terminal: borgcfg exec -i %s -- ...", s.args[0])
		}
		req.Program.Size, req.Program.Term = sizeOf(screen), s.env("TERM")
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	var exit *borgpb.Exit
	started := false
	restore := func() {}
	begun := func(send func(*borgrpc.ExecInput) error) {
		started = true
		sender := &execSender{send: send}
		if screen != nil {
			if was, err := term.MakeRaw(int(screen.Fd())); err == nil {
				restore = sync.OnceFunc(func() { _ = term.Restore(int(screen.Fd()), was) })
			}
			// Ends with the program: that of this command.
			go sender.follow(screen)
		}
		if req.Program.Stdin {
			// The same.
			go sender.copy(s.stdin)
		}
	}
	err = m.Exec(s.ctx, req, begun, func(resp *borgrpc.ExecResponse) error {
		if resp.GetStarted() == "process" && screen != nil {
			s.progress("%s is a plain process: nothing keeps the program apart from its machine\r", s.args[0])
		}
		if resp.Exit != nil {
			exit = resp.Exit
		}
		to := s.stdout
		if resp.GetStream() == borgrpc.LogStream_LOG_STREAM_STDERR {
			to = s.stderr
		}
		_, err := to.Write(resp.GetData())
		return err
	})
	restore()
	var missing *client.NotFoundError
	switch {
	case errors.As(err, &missing):
		return s.noSuchTask(job, missing)
	case err != nil && errors.Is(context.Cause(s.ctx), errTimeout) && started:
		return cli.Errorf(cli.TimedOut, "--timeout has passed, and the program was ended")
	case err != nil:
		return err
	case exit == nil:
		return cli.Errorf(cli.Failed, "the program was begun, and how it ended is not known").Hint("see whether the task still runs: borgcfg tasks %s", s.short(job.user, job.name))
	}
	return execEnded(exit)
}

// execEnded is the end of a program as this program's own. What the program had to say
// of it, it has said.
func execEnded(exit *borgpb.Exit) error {
	code := int(exit.GetCode())
	if exit.GetSignal() != 0 {
		code = 128 + int(exit.GetSignal())
	}
	switch {
	case exit.GetError() != "":
		if code == 0 {
			code = cli.Failed
		}
		return cli.Errorf(code, "%s", exit.GetError())
	case exit.GetUnknown():
		return cli.Errorf(cli.Failed, "how the program ended is not known: who watched over it was killed")
	case code != 0:
		return &cli.Error{Code: code}
	}
	return nil
}

func sizeOf(screen *os.File) *borgrpc.TerminalSize {
	columns, rows, err := term.GetSize(int(screen.Fd()))
	if err != nil {
		return nil
	}
	return &borgrpc.TerminalSize{Rows: uint32(rows), Columns: uint32(columns)}
}

// execSender sends from two sides, one message at a time.
type execSender struct {
	mu   sync.Mutex
	send func(*borgrpc.ExecInput) error
}

func (x *execSender) give(in *borgrpc.ExecInput) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.send(in)
}

// copy sends what there is to read.
func (x *execSender) copy(from io.Reader) {
	buf := make([]byte, execChunkBytes)
	for {
		n, err := from.Read(buf)
		if n > 0 && x.give(&borgrpc.ExecInput{Data: buf[:n]}) != nil {
			return
		}
		if err != nil {
			_ = x.give(&borgrpc.ExecInput{End: true})
			return
		}
	}
}

// follow tells of each change of the terminal's size.
func (x *execSender) follow(screen *os.File) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	defer signal.Stop(changed)
	for range changed {
		if x.give(&borgrpc.ExecInput{Size: sizeOf(screen)}) != nil {
			return
		}
	}
}
