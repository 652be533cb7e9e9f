// Suite runs go test for a person who waits: it says how far the run is, which
// tests run at the moment, how long each package took, and why tests were
// skipped. It ends a test that hangs, and prints its goroutines.
//
// The timeout belongs to the test, not to the package: go test ends a package
// after ten minutes however many tests it has, and a slow machine needs longer
// for all of them together. Here a test may run for -limit, counted since it or
// one of its subtests last started, continued or ended. Time that a parallel
// test waits for its turn does not count.
//
//	go run ./suite ./... -- -short
//	go run ./suite -each ./cmd/borgcell -- -p 1 -run Scenario
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

func main() {
	limit := flag.Duration("limit", 30*time.Minute, "how long one test may run")
	each := flag.Bool("each", false, "print every test with its time")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: suite [-limit 30m] [-each] PACKAGES... [-- FLAGS of go test]")
		flag.PrintDefaults()
	}
	flag.Parse()
	s := &suite{limit: *limit, each: *each, out: os.Stdout}
	s.packages = flag.Args()
	if i := slices.Index(s.packages, "--"); i >= 0 {
		s.packages, s.flags = s.packages[:i], s.packages[i+1:]
	}
	if len(s.packages) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	// Ctrl-C reaches go test and the tests by themselves; we wait for what they print.
	signal.Ignore(os.Interrupt)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ok, err := s.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(1)
	}
}

// suite is one run of go test.
type suite struct {
	// Time that one test may run.
	limit time.Duration
	// Whether each test is printed, not only each package.
	each bool
	// Patterns of packages, and flags for go test.
	packages, flags []string
	// Directory of the module; empty: the present one.
	dir string
	out io.Writer
}

// lookEvery is how often the run is checked for tests that hang.
const lookEvery = time.Second

// run runs the tests and reports whether all of them passed.
func (s *suite) run(ctx context.Context) (bool, error) {
	dirs, err := s.list(ctx)
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-json", "-timeout", "0"}, s.flags, s.packages)...)
	cmd.Dir = s.dir
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	p := newProgress(len(dirs), s.each, time.Now())
	if err := cmd.Start(); err != nil {
		return false, err
	}
	// The reader ends with go test's output.
	events := make(chan event)
	go read(stdout, events)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	ended := hung{}
	for open := true; open; {
		select {
		case e, ok := <-events:
			if open = ok; ok {
				s.print(p.event(time.Now(), e))
			}
		case now := <-ticker.C:
			for _, late := range p.overdue(now, s.limit) {
				s.print(ended.end(cmd.Process.Pid, late, dirs[late.pkg], s.limit, now))
			}
			s.print(p.tick(now))
		}
	}
	err = cmd.Wait()
	s.print(p.summary(time.Now()))
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, fmt.Errorf("go test: %w", err)
	}
	return err == nil && p.failed == 0, nil
}

func (s *suite) print(lines []string) {
	for _, line := range lines {
		fmt.Fprintln(s.out, line)
	}
}

// list returns the directory of each package that has tests, by import path.
func (s *suite) list(ctx context.Context) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"list", "-e", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, s.packages)...)
	cmd.Dir = s.dir
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	dirs := map[string]string{}
	for d := json.NewDecoder(out); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, errors.Join(fmt.Errorf("go list: %w", err), cmd.Wait())
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			dirs[p.ImportPath] = p.Dir
		}
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	return dirs, nil
}

// read sends the events that go test prints, and closes the channel at the end
// of its output. A line that is no event, such as one of a program that a test
// left running, becomes output of no test.
func read(out io.Reader, events chan<- event) {
	defer close(events)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "output", Output: string(line)}
			}
			events <- e
		}
		if err != nil {
			return
		}
	}
}
