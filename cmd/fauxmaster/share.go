package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"borg/cli"
	"borg/fauxmaster/sim"
)

// thisProgram is the one that runs, even when another has been built in its
// place meanwhile.
const thisProgram = "/proc/self/exe"

// stuckAfter is real time after which a process that works on one seed is ended.
const stuckAfter = 10 * time.Minute

// share runs seeds in processes of their own. Each gets the next seed when it is
// done with one, so that none idles while there is work. take is called by one
// goroutine.
func (s *simulation) share(seeds []uint64, processors int, take func(simulated) error) error {
	whole, giveUp := context.WithCancel(s.ctx)
	defer giveUp()
	group, ctx := errgroup.WithContext(whole)
	todo, results := make(chan uint64), make(chan simulated)
	// Hands out the seeds.
	group.Go(func() error {
		defer close(todo)
		for _, seed := range seeds {
			select {
			case todo <- seed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	// Each drives one process after the other.
	for range min(s.processes, len(seeds)) {
		group.Go(func() error {
			w := worker{self: thisProgram, cfg: s.cfg, processors: processors, stderr: s.errOut}
			defer w.stop()
			for seed := range todo {
				r, err := w.run(ctx, seed)
				if err != nil {
					return err
				}
				select {
				case results <- r:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}
	ended := make(chan error, 1)
	// Waits for all of them.
	go func() {
		ended <- group.Wait()
		close(results)
	}()
	var taking error
	for r := range results {
		if taking == nil {
			if taking = take(r); taking != nil {
				giveUp()
			}
		}
	}
	return cmp.Or(taking, <-ended)
}

// worker is a process that runs seeds one after the other.
type worker struct {
	self       string
	cfg        sim.Config
	processors int
	stderr     io.Writer

	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func (w *worker) start() error {
	args := []string{"faults", "--worker", "--duration", time.Duration(w.cfg.DurationNs).String()}
	if w.cfg.Aim == sim.SweepAim {
		args = append(args, "--disk-sweep", "--seed", strconv.FormatUint(w.cfg.Seed, 10))
	} else if w.cfg.Aim != "" {
		args = append(args, "--aim", w.cfg.Aim)
	}
	w.cmd = exec.Command(w.self, args...)
	w.cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", w.processors))
	w.cmd.Stderr = w.stderr
	var err error
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	w.stdout = bufio.NewReader(out)
	return w.cmd.Start()
}

// stop ends the process, whatever it does.
func (w *worker) stop() error {
	if w.cmd == nil {
		return nil
	}
	w.stdin.Close()
	_ = w.cmd.Process.Kill()
	err := w.cmd.Wait()
	w.cmd = nil
	return err
}

// run has one seed run. A process that ends over it is a violation of the seed;
// the next seed gets another process.
func (w *worker) run(ctx context.Context, seed uint64) (simulated, error) {
	if w.cmd == nil {
		if err := w.start(); err != nil {
			return simulated{}, fmt.Errorf("start a process for seed %d: %w", seed, err)
		}
	}
	stuck, cancel := context.WithTimeout(ctx, stuckAfter)
	defer cancel()
	process := w.cmd.Process
	unhook := context.AfterFunc(stuck, func() { _ = process.Kill() })
	defer unhook()
	began := time.Now()
	_, err := fmt.Fprintln(w.stdin, seed)
	var line []byte
	if err == nil {
		line, err = w.stdout.ReadBytes('\n')
	}
	var r simulated
	if err == nil {
		return r, json.Unmarshal(line, &r)
	}
	ended := w.stop()
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	r.Seed, r.WallNs = seed, int64(time.Since(began))
	r.Failed = fmt.Sprintf("the process that ran it ended: %v", ended)
	if stuck.Err() != nil {
		r.Failed = fmt.Sprintf("not over after %v", stuckAfter)
	}
	return r, nil
}

// work is the other side: it runs the seeds that it is told, until nobody tells
// it any more.
func (s *simulation) work(in io.Reader) error {
	out := json.NewEncoder(s.out)
	for lines := bufio.NewScanner(in); lines.Scan() && s.ctx.Err() == nil; {
		seed, err := strconv.ParseUint(strings.TrimSpace(lines.Text()), 10, 64)
		if err != nil {
			return cli.Errorf(cli.Usage, "%q is not a seed", lines.Text())
		}
		cfg := s.cfg
		if s.sweep != nil {
			d := sim.DiskFaultOf(seed)
			cfg.Disk = &d
		} else {
			cfg.Seed = seed
		}
		r := runSeedHere(cfg)
		r.Seed = seed
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
}
