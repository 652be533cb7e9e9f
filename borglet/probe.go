package borglet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"borg/proto/borgpb"
)

const (
	// maxChecks bounds how many checks by network are under way at once; others wait.
	// Those by command start processes, of which there are two for each processor.
	maxChecks = 64
	// maxChecksOfUser bounds those of the tasks of one user, so that checks which hang
	// keep those of others waiting no longer.
	maxChecksOfUser = 16
	// maxCheckTimeoutNs is how long one check may take, whatever its spec says; the cell
	// refuses a longer one.
	maxCheckTimeoutNs = int64(time.Minute)
	// maxCheckBytes bounds what is read of the answer to a check.
	maxCheckBytes = 4 << 10
	// maxCheckToldBytes bounds what is told of what a failing check says.
	maxCheckToldBytes = 200
)

// errUndecided: the machine could not make the check, which says nothing of the task.
var errUndecided = errors.New("the check could not be made")

// prober makes health checks. They do not wait in the queue of their copy's effects: a
// check that hangs must not keep a kill waiting.
type prober struct {
	runtime Runtime
	http    *http.Client
	// Guard network and commands.
	network, commands slots
	wg                sync.WaitGroup

	// start is the zero of the clock of rates, and delayed is called for each command that
	// waits for its turn.
	start   time.Time
	delayed func()

	mu sync.Mutex
	// Commands that the checks of each user start; guarded by mu.
	rates execRates
}

// turn waits until the tasks of a user may start the command of one more check. It reports
// whether that was before ctx ended.
func (p *prober) turn(ctx context.Context, user string) bool {
	p.mu.Lock()
	wait := p.rates.reserve(user, int64(time.Since(p.start)))
	p.mu.Unlock()
	if wait == 0 {
		return true
	}
	p.delayed()
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// slots are places for checks under way: so many in all, and so many of one user.
type slots struct {
	all    chan struct{}
	ofUser int

	mu *sync.Mutex
	// Places of each user who has a check under way or waits for one; guarded by mu.
	users map[string]*userSlots
}

type userSlots struct {
	places chan struct{}
	// Checks that have a place or wait for one.
	interested int
}

func newSlots(all, ofUser int) slots {
	return slots{all: make(chan struct{}, all), ofUser: ofUser, mu: new(sync.Mutex), users: make(map[string]*userSlots)}
}

// enter waits for a place: first among those of the user, so that whoever has many
// checks waits behind his own. It reports whether there is one before ctx ends.
func (s slots) enter(ctx context.Context, user string) (leave func(), ok bool) {
	s.mu.Lock()
	u := s.users[user]
	if u == nil {
		u = &userSlots{places: make(chan struct{}, s.ofUser)}
		s.users[user] = u
	}
	u.interested++
	s.mu.Unlock()
	lost := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if u.interested--; u.interested == 0 {
			delete(s.users, user)
		}
	}
	select {
	case u.places <- struct{}{}:
	case <-ctx.Done():
		lost()
		return nil, false
	}
	select {
	case s.all <- struct{}{}:
	case <-ctx.Done():
		<-u.places
		lost()
		return nil, false
	}
	return func() { <-s.all; <-u.places; lost() }, true
}

func newProber(r Runtime, delayed func()) *prober {
	return &prober{
		runtime: r,
		http: &http.Client{
			// One connection for each check: that it can be made is part of what is
			// asked. No proxy, whatever the borglet's own environment says.
			Transport: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxCheckBytes},
			// Where a task sends others is for them to go.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		network: newSlots(maxChecks, maxChecksOfUser),
		// One user has half of them: what hangs hangs for a minute at most.
		commands: newSlots(2*runtime.NumCPU(), runtime.NumCPU()),
		start:    time.Now(), delayed: delayed,
	}
}

// check makes one check and returns why the task does not pass it, or errUndecided.
func (p *prober) check(ctx context.Context, e Check, dir string) error {
	r, spec := e.Record, e.Record.Desired.GetSpec()
	h := checkOf(spec)
	if e.Ready {
		h = readyCheckOf(spec)
	}
	slots := p.network
	if len(h.GetCommand()) > 0 {
		slots = p.commands
		if !p.turn(ctx, r.Desired.GetUser()) {
			return errUndecided
		}
	}
	leave, ok := slots.enter(ctx, r.Desired.GetUser())
	if !ok {
		return errUndecided
	}
	defer leave()
	within, cancel := context.WithTimeout(ctx, time.Duration(h.GetTimeoutNs()))
	defer cancel()
	var err error
	if len(h.GetCommand()) > 0 {
		err = p.command(within, &Program{ID: r.ID, Run: r.Run, Dir: dir, Args: h.GetCommand()})
	} else {
		err = p.dial(within, h, spec.GetPorts(), r.Desired.GetPorts(), cmp.Or(e.Addr, "127.0.0.1"))
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errUndecided
	case within.Err() != nil:
		return fmt.Errorf("no answer within %v", time.Duration(h.GetTimeoutNs()))
	}
	return err
}

// dial asks by network: for a page, or whether the port is open, at the task's own
// address or on the machine.
func (p *prober) dial(ctx context.Context, h *borgpb.HealthCheck, names []string, granted []uint32, host string) error {
	i := max(slices.Index(names, h.GetPort()), 0)
	if i >= len(granted) {
		return errUndecided
	}
	addr := net.JoinHostPort(host, strconv.FormatUint(uint64(granted[i]), 10))
	if h.GetHttpPath() == "" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("port %s: %w", names[i], plain(err))
		}
		return conn.Close()
	}
	page, err := pageAt(addr, h.GetHttpPath())
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page.String(), nil)
	if err != nil {
		return fmt.Errorf("GET %s: %w", h.GetHttpPath(), err)
	}
	req.Header.Set("User-Agent", "borglet")
	resp, err := p.http.Do(req)
	if err != nil {
		return fmt.Errorf("GET %s of port %s: %w", h.GetHttpPath(), names[i], plain(err))
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxCheckBytes))
	// Where somebody is sent on, somebody works.
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("GET %s of port %s: %s%s", h.GetHttpPath(), names[i], resp.Status, told(text))
	}
	return nil
}

// pageAt is the URL of a path at an address. The path is the owner's text: nothing in
// it can name another host or port.
func pageAt(addr, path string) (*url.URL, error) {
	u, err := url.ParseRequestURI(path)
	if err != nil || !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("GET %q: the path of a check begins with / and has no blanks", path)
	}
	u.Scheme, u.Host, u.User = "http", addr, nil
	return u, nil
}

// plain is the cause of an error of the network, without addresses, which would differ
// from check to check; errUndecided, if it lies in this machine.
func plain(err error) error {
	for _, own := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, own) {
			return errUndecided
		}
	}
	var cause syscall.Errno
	if errors.As(err, &cause) {
		return cause
	}
	return err
}

// command runs a program in the task, whose exit code counts.
func (p *prober) command(ctx context.Context, program *Program) error {
	e, err := p.runtime.Exec(program)
	var inProgram *ProgramError
	switch {
	case errors.As(err, &inProgram):
		return err
	case err != nil:
		return errors.Join(errUndecided, err)
	}
	defer e.Close()
	defer context.AfterFunc(ctx, e.End)()
	// Both are read to their end, so that the program is never kept from writing.
	var said [2][]byte
	var reading sync.WaitGroup
	for i, f := range []*os.File{e.Stdout, e.Stderr} {
		reading.Go(func() {
			said[i], _ = io.ReadAll(io.LimitReader(f, maxCheckBytes))
			_, _ = io.Copy(io.Discard, f)
		})
	}
	exit := e.Wait()
	for _, f := range []*os.File{e.Stdout, e.Stderr} {
		_ = f.SetReadDeadline(time.Now().Add(execDrain))
	}
	reading.Wait()
	if exit.Unknown {
		return errUndecided
	}
	if exit := exit.Exit(); !succeeded(exit) {
		return fmt.Errorf("%s: %s%s", program.Args[0], ExitText(exit), told(slices.Concat(said[1], said[0])))
	}
	return nil
}

// told is the first line of what a failing check says, to be put behind what it is.
func told(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(line[:min(len(line), maxCheckToldBytes)], ""))
	if line == "" {
		return ""
	}
	return ": " + line
}

// probe makes a check and tells the core what came of it.
func (a *Agent) probe(e Check) {
	a.prober.wg.Go(func() {
		answer := Checked{ID: e.Record.ID, Run: e.Record.Run, Ready: e.Ready}
		if err := a.prober.check(a.life, e, a.store.TaskDir(e.Record.ID)); err != nil {
			answer.Undecided = errors.Is(err, errUndecided)
			answer.Failure = err.Error()
		}
		a.results <- answer
	})
}
