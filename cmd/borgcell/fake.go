package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/fauxmaster/fleet"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/door"
)

const (
	// The command of a process of pretended machines, and the name of the first one.
	fakeName = "fake-borglets"
	// A process has so many of them at most: each of five masters may be connected to a
	// machine while shares move, and a process may open 20,000 files where no more are
	// allowed.
	fakeEach = 3_500
	// Machines are added so many at once; those under way share entries of the log.
	fakeAddsAtOnce = 128
	// Bound on adding pretended machines, and again on the first poll of each.
	fakeWait = 5 * time.Minute
)

// fake is what the pretended machines of a cell are drawn from.
type fake struct {
	Seed uint64 `json:"seed"`
	fleet.Life
	// Machines that a process has at most; 0: fakeEach.
	Each int `json:"each,omitempty"`
	// Cores of each machine that tasks may have alone.
	ExclusiveCores int `json:"exclusive_cores,omitempty"`
}

// fakeFlags say which machines a cell pretends, and what becomes of their tasks.
func fakeFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.BoolFlag{Name: "fake", Usage: "pretend the machines: a process answers for each 3,500 of them, and tasks have no processes"},
		&ucli.Uint64Flag{Name: "seed", Value: 1, Usage: "with --fake: `NUMBER` that machines and the lives of tasks are drawn from"},
		&ucli.DurationFlag{Name: "task-start", Usage: "with --fake: `TIME` that a task takes to start, on average (default: 5 to 80 ms)"},
		&ucli.DurationFlag{Name: "task-run", Usage: "with --fake: `TIME` that a batch task runs, on average (default: for ever)"},
		&ucli.IntFlag{Name: "task-fail", Usage: "with --fake: of a thousand runs of tasks so `MANY` fail"},
		&ucli.IntFlag{Name: "task-usage", Value: 40, Usage: "with --fake: `PERCENT` of their limits that tasks use on average"},
		&ucli.IntFlag{Name: "exclusive-cores", Usage: "with --fake: how many `CORES` of each machine, of two threads each, tasks may have alone"},
	}
}

// fakeFrom is what the flags say of pretended machines; nil: there are none.
func fakeFrom(ctx *ucli.Context) (*fake, error) {
	if !ctx.Bool("fake") {
		for _, flag := range []string{"seed", "task-start", "task-run", "task-fail", "task-usage", "exclusive-cores"} {
			if ctx.IsSet(flag) {
				return nil, cli.Errorf(cli.Usage, "--%s is for pretended machines", flag).Hint("add --fake, or leave it out")
			}
		}
		return nil, nil
	}
	f := &fake{Seed: ctx.Uint64("seed"), Life: fleet.Life{
		StartDelay: ctx.Duration("task-start"), RunTime: ctx.Duration("task-run"),
		FailPermille: ctx.Int("task-fail"), UsagePercent: ctx.Int("task-usage"),
	}, ExclusiveCores: ctx.Int("exclusive-cores")}
	switch {
	case f.StartDelay < 0 || f.RunTime < 0:
		return nil, cli.Errorf(cli.Usage, "--task-start and --task-run: want times that are not negative")
	case f.FailPermille < 0 || f.FailPermille > 1000:
		return nil, cli.Errorf(cli.Usage, "--task-fail %d: want 0 to 1000", f.FailPermille)
	case f.ExclusiveCores < 0:
		return nil, cli.Errorf(cli.Usage, "--exclusive-cores %d: want 0 or more", f.ExclusiveCores)
	case f.UsagePercent < 1 || f.UsagePercent > 100:
		return nil, cli.Errorf(cli.Usage, "--task-usage %d: want 1 to 100", f.UsagePercent)
	}
	return f, nil
}

// fakeParts is how many processes have the pretended machines, counted from 0.
func (l layout) fakeParts() int { return l.fakePart(l.Machines) + 1 }

// fakePart is the process that has machine k.
func (l layout) fakePart(k int) int { return (k - 1) / cmp.Or(l.Fake.Each, fakeEach) }

func (l layout) fakePort(part int) uint16 { return uint16(l.PortBase + borgletPortOffset + part) }

func (l layout) fakeSocket(part int) string {
	return filepath.Join(l.RunDir, "fake"+strings.TrimPrefix(fakePartName(part), fakeName)+".sock")
}

func fakePartName(part int) string {
	if part == 0 {
		return fakeName
	}
	return fmt.Sprintf("%s-%d", fakeName, part+1)
}

// fakeCommand is a process that borgcell starts for pretended machines.
func fakeCommand() *ucli.Command {
	return &ucli.Command{
		Name: fakeName, Hidden: true, Usage: "answer for pretended machines of a cell (started by run)",
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "dir", Required: true, Usage: "`DIRECTORY` of the cell"},
			&ucli.IntFlag{Name: "part", Usage: "which of the processes this is, counted from 0"},
			&ucli.StringFlag{Name: "log-level", Value: "info", Usage: "debug, info, warn or error"},
			&ucli.StringFlag{Name: "log-format", Value: "text", Usage: "text or json"},
		},
		Action: func(ctx *ucli.Context) error {
			l, err := readLayout(ctx.String("dir"))
			part := ctx.Int("part")
			switch {
			case err != nil:
			case l.Fake == nil:
				err = errors.New("its machines are not pretended")
			case part < 0 || part >= l.fakeParts():
				err = fmt.Errorf("its machines are those of %d processes, and this one is --part %d", l.fakeParts(), part)
			}
			if err != nil {
				return cli.Errorf(cli.Invalid, "the cell in %s: %w", ctx.String("dir"), err)
			}
			log, err := cli.NewLogger(ctx)
			if err != nil {
				return err
			}
			authority, err := l.readAuthority()
			if err != nil {
				return err
			}
			each := cmp.Or(l.Fake.Each, fakeEach)
			f, err := fleet.New(fleet.Config{
				First: 1 + part*each, Machines: min(each, l.Machines-part*each), Port: l.fakePort(part), Name: l.machineName, Identity: l.fakeIdentity(authority),
				Seed: l.Fake.Seed, Life: l.Fake.Life, ExclusiveCores: l.Fake.ExclusiveCores, Build: cli.Build(), Logger: log,
			})
			if err != nil {
				return err
			}
			stop := catchSignals(ctx.Context)
			defer stop.release()
			return serveFake(stop.running, l, part, f)
		},
	}
}

// serveFake serves the machines, and how they stand, until ctx ends.
func serveFake(ctx context.Context, l layout, part int, f *fleet.Fleet) error {
	// The page first: whoever finds the machines may ask how they stand.
	socket, err := door.Listen("unix:" + l.fakeSocket(part))
	if err != nil {
		return err
	}
	defer socket.Close()
	listener, err := fleet.Listen(l.fakePort(part))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// Whoever asked and went away needs no answer.
		_ = json.NewEncoder(w).Encode(f.Status())
	})
	mux.HandleFunc("POST /vanish", func(w http.ResponseWriter, r *http.Request) {
		part, err := strconv.Atoi(r.FormValue("part"))
		of, err2 := strconv.Atoi(r.FormValue("of"))
		if err != nil || err2 != nil || part < 0 || part > of {
			http.Error(w, "want ?part=N&of=M: of every M machines N vanish; 0 of 0: all come back", http.StatusBadRequest)
			return
		}
		if err := f.Vanish(part, of); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("POST /cut", func(w http.ResponseWriter, r *http.Request) {
		replica, err := strconv.ParseUint(r.FormValue("replica"), 10, 64)
		if err != nil {
			http.Error(w, "want ?replica=N: no machine hears that replica; 0: all do", http.StatusBadRequest)
			return
		}
		f.Cut(replica)
	})
	mux.HandleFunc("POST /use", func(w http.ResponseWriter, r *http.Request) {
		percent, err := strconv.Atoi(r.FormValue("percent"))
		if err != nil || percent < 0 || percent > 100 {
			http.Error(w, "want ?percent=N: all tasks use N % of their limits, 1 to 100; 0: as drawn", http.StatusBadRequest)
			return
		}
		f.Use(percent)
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	page := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.Serve(ctx, listener) })
	group.Go(func() error {
		if err := page.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the page of pretended machines: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return page.Close()
	})
	return group.Wait()
}

// readAuthority reads the cell's authority as the first master has it.
func (l layout) readAuthority() (*identity.Authority, error) {
	data, err := identity.ReadSecret(l.authorityFile())
	if err != nil {
		return nil, fmt.Errorf("the cell's authority: %w", err)
	}
	return identity.DecodeAuthority(l.Name, data, rand.Reader)
}

// fakeIdentity makes the certificates of pretended machines.
func (l layout) fakeIdentity(a *identity.Authority) func(machine string) (*identity.Source, error) {
	return func(machine string) (*identity.Source, error) {
		name := identity.Name{Cell: l.Name, Role: identity.Borglet, ID: machine}
		first, err := a.Certify(name, time.Now(), identity.BorgletLife)
		if err != nil {
			return nil, err
		}
		renew := func(_ context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
			// The masters may have another one by now.
			now, err := l.readAuthority()
			if err != nil {
				return nil, err
			}
			return now.Issue(public, name, time.Now(), identity.BorgletLife)
		}
		return identity.NewSource(first, renew, nil), nil
	}
}

// StartFake starts the processes of all pretended machines and returns when they
// serve.
func (c *Cell) StartFake(ctx context.Context) error {
	for part := range c.fakeParts() {
		name := fakePartName(part)
		err := c.startAndServe(ctx, processSpec{
			Name: name, Path: c.bin("borgcell"), LogPath: c.logPath(name), Env: []string{c.envMark()},
			Args: []string{fakeName, "--dir", c.dir, "--part", strconv.Itoa(part)},
		}, c.borgletAddr(1+part*cmp.Or(c.Fake.Each, fakeEach)))
		if err != nil {
			return err
		}
	}
	return nil
}

// addFake makes the pretended machines machines of the cell, and waits until each
// is up and was polled. Nobody has to ask them first what they are: they are drawn.
func (c *Cell) addFake(ctx context.Context) error {
	state, err := c.client.GetCell(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, fakeWait)
	defer cancel()
	if int(state.MachinesUp+state.MachinesDown) < c.Machines {
		adds, addCtx := errgroup.WithContext(ctx)
		adds.SetLimit(fakeAddsAtOnce)
		for k := 1; k <= c.Machines && addCtx.Err() == nil; k++ {
			adds.Go(func() error { return c.addFakeMachine(addCtx, k) })
		}
		if err := adds.Wait(); err != nil {
			return err
		}
	}
	return until(ctx, "all machines are up and polled and the scheduler works", func(ctx context.Context) error {
		return errors.Join(c.crash(), c.fakeReady(ctx))
	})
}

func (c *Cell) addFakeMachine(ctx context.Context, k int) error {
	add := &borgpb.AddMachine{Name: c.machineName(k), Spec: fleet.Spec(c.Fake.Seed, k, c.fakePort(c.fakePart(k)))}
	fleet.OfferCores(add.Spec, c.Fake.ExclusiveCores)
	_, err := c.client.Mutate(ctx, &borgpb.Op{Command: "borgcell: add pretended machines", Op: &borgpb.Op_AddMachine{AddMachine: add}})
	var refused *client.RefusedError
	if errors.As(err, &refused) && refused.Refusal.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS {
		return nil
	}
	if err != nil {
		return fmt.Errorf("add machine %s: %w", add.Name, err)
	}
	return nil
}

// fakeReady says what is still missing before jobs can run.
func (c *Cell) fakeReady(ctx context.Context) error {
	state, err := c.client.GetCell(ctx)
	if err != nil {
		return err
	}
	if int(state.MachinesUp) < c.Machines {
		return fmt.Errorf("%d of %d machines are up", state.MachinesUp, c.Machines)
	}
	s, err := c.FakeStatus(ctx)
	if err == nil && s.Unpolled > 0 {
		err = fmt.Errorf("%d machines were not polled yet", s.Unpolled)
	}
	if err != nil {
		return err
	}
	return c.scheduled(ctx)
}

// FakeStatus asks how the pretended machines stand.
func (c *Cell) FakeStatus(ctx context.Context) (s fleet.Status, err error) {
	for part := range c.fakeParts() {
		of, err := c.fakeStatus(ctx, part)
		if err != nil {
			return s, fmt.Errorf("ask the pretended machines how they stand: %w", err)
		}
		s = s.With(of)
	}
	return s, nil
}

func (c *Cell) fakeStatus(ctx context.Context, part int) (s fleet.Status, err error) {
	resp, err := c.askFake(ctx, part, http.MethodGet, "/status")
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// FakeVanish has nothing more be heard of part of every so many pretended machines,
// whose tasks go on; 0 of 0: all are heard again.
func (c *Cell) FakeVanish(ctx context.Context, part, of int) error {
	return c.tellFake(ctx, fmt.Sprintf("/vanish?part=%d&of=%d", part, of))
}

// FakeCut has no pretended machine hear that replica; 0: all do again.
func (c *Cell) FakeCut(ctx context.Context, replica int) error {
	return c.tellFake(ctx, fmt.Sprintf("/cut?replica=%d", replica))
}

// FakeUse has all tasks use just so much of their limits, in per cent; 0: as drawn.
func (c *Cell) FakeUse(ctx context.Context, percent int) error {
	return c.tellFake(ctx, fmt.Sprintf("/use?percent=%d", percent))
}

func (c *Cell) tellFake(ctx context.Context, path string) error {
	for part := range c.fakeParts() {
		if err := c.tellFakePart(ctx, part, path); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cell) tellFakePart(ctx context.Context, part int, path string) error {
	resp, err := c.askFake(ctx, part, http.MethodPost, path)
	if err != nil {
		return fmt.Errorf("tell the pretended machines: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("tell the pretended machines: %s", bytes.TrimSpace(why))
	}
	return nil
}

func (c *Cell) askFake(ctx context.Context, part int, method, path string) (*http.Response, error) {
	asking := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.fakeSocket(part))
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://fake"+path, nil)
	if err != nil {
		return nil, err
	}
	return asking.Do(req)
}
