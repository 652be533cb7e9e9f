package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// screen is a terminal with a program at it, as somebody sits before one.
type screen struct {
	t *testing.T
	// keys is his side of it, program the other.
	keys, program *os.File

	mu sync.Mutex
	// Guarded by mu.
	shown strings.Builder
}

func newScreen(t *testing.T, rows, columns uint16) *screen {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs terminals: %v", err)
	}
	t.Cleanup(func() { keys.Close() })
	fd := int(keys.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	s := &screen{t: t, keys: keys, program: program}
	s.resize(rows, columns)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := keys.Read(buf)
			s.mu.Lock()
			s.shown.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *screen) resize(rows, columns uint16) {
	s.t.Helper()
	if err := unix.IoctlSetWinsize(int(s.keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) types(keys string) {
	s.t.Helper()
	if _, err := s.keys.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

// shows waits until a text is there, which is typed again and again until then: a program
// that has not begun to listen loses what was typed before.
func (s *screen) shows(text, keys string) {
	s.t.Helper()
	waitFor(s.t, "the screen shows "+text, func() string {
		if strings.Contains(s.text(), text) {
			return ""
		}
		s.types(keys)
		time.Sleep(100 * time.Millisecond)
		return s.text()
	})
}

// cooked: lines are edited and keys mean something, as for a shell's user.
func (s *screen) cooked() bool {
	s.t.Helper()
	mode, err := unix.IoctlGetTermios(int(s.program.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return mode.Lflag&(unix.ICANON|unix.ISIG|unix.ECHO) == unix.ICANON|unix.ISIG|unix.ECHO
}

// TestExecAtATerminal sits before borgcfg exec -it: the program in the task has a terminal
// of that size, hears of another size and of the keys that interrupt, and its exit code is
// borgcfg's, which leaves the terminal as it was. The task goes on.
func TestExecAtATerminal(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	before := c.run(t, "web", sleepers(1))
	s := newScreen(t, 11, 77)
	if !s.cooked() {
		t.Fatal("a new terminal is not as a user has it")
	}
	cmd := exec.Command(c.bin("borgcfg"), "--cell", c.cellFile(), "exec", "-it", "web/0", "--", "sh")
	cmd.Env = append(os.Environ(), "BORG_IDENTITY="+c.identityFile(), "TERM=vt220")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.program, s.program, s.program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })

	waitFor(t, "the keys go to the task", func() string {
		if s.cooked() {
			return s.text()
		}
		return ""
	})
	s.shows("t=vt220 size=11 77=", "echo t=$TERM size=$(stty size)=\n")
	s.resize(22, 88)
	s.shows("now=22 88=", "echo now=$(stty size)=\n")
	s.types("echo be'gins'; sleep 1000000\n")
	s.shows("begins", "")
	s.shows("interrupted", "\x03echo inter'rupted'\n")
	s.types("exit 3\n")
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("borgcfg ended with %v, want exit code 3; the screen shows %q", err, s.text())
		}
	case <-time.After(time.Minute):
		t.Fatalf("borgcfg does not end; the screen shows %q", s.text())
	}
	if !s.cooked() {
		t.Error("the terminal is not as it was")
	}
	c.stillSame(t, before, "web")
}
