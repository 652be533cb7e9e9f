package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"borg/borgmaster/client"
	"borg/identity"
	"borg/proto/borgrpc"
)

// Who floods a cell, or lists all of it, sits at other machines, whose processors are not the
// masters'. On the one machine of a benchmark he has a process of his own that yields to all
// others: otherwise what is measured is how he crowds out the masters and who measures.

// afarEnv makes a process of this test program one of those: what it holds is an
// afarOrder.
const afarEnv = "BORG_TEST_AFAR"

type afarOrder struct {
	Cell string
	// File of the cell's authority.
	Authority string
	Masters   []string
	// Changes that are asked for in a second, over so many connections to each master.
	PerS  float64
	Conns int
	// Be a thousand slow clients besides.
	Slow bool
	// Not zero: ask nothing, and take this part of the time of each processor.
	Burn float64
	// Not empty: for each question list all tasks of this user, and count them as made.
	Lists string
	// Not zero: so many users list all tasks again and again, each with as many lists under
	// way; each list counts as done, and each time that one was asked to come back as refused.
	Listers, ListsEach int
	// Not nil: ask nothing, and for each question take the processor as a list does.
	Stand *standIn
}

// standIn is the processor time of a list, page by page: that of the replica, which yields
// to nobody, and then that of who asked.
type standIn struct {
	Pages           int
	ServeNs, ReadNs int64
}

// afarCounts are what a flood has come to so far. Of the calls that it wanted to make, Made,
// the masters had room for those that were sent.
type afarCounts struct{ Made, Sent, Done, Refused, Untold, Failed, Late, Conns int64 }

// afar is somebody in a process of his own.
type afar struct {
	m    *masterBench
	cmd  *exec.Cmd
	ask  io.WriteCloser
	told *bufio.Reader
}

// floodFromAfar begins to ask for so many changes a second, and to be slow.
func (m *masterBench) floodFromAfar(perS float64, slow bool) *afar {
	m.Helper()
	return m.fromAfar(afarOrder{Cell: m.cell.Name, Authority: m.cell.authorityFile(), Masters: m.cell.masterAddrs(), PerS: perS, Conns: benchFloodConns(), Slow: slow})
}

// burnFromAfar takes as much processor time as a flood took, and asks the cell for
// nothing: what others notice of that, they do not notice of the flood.
func (m *masterBench) burnFromAfar(cores float64) *afar {
	m.Helper()
	return m.fromAfar(afarOrder{Burn: cores / float64(runtime.NumCPU())})
}

// listFromAfar is somebody who lists all tasks at one replica, once for each counts.
func (m *masterBench) listFromAfar(replica int) *afar {
	m.Helper()
	return m.fromAfar(afarOrder{Cell: m.cell.Name, Authority: m.cell.authorityFile(), Masters: []string{m.cell.masterAddr(replica)}, Lists: m.cell.user})
}

// listsFromAfar are so many users who list all tasks again and again, each so often at once.
func (m *masterBench) listsFromAfar(users, each int) *afar {
	m.Helper()
	return m.fromAfar(afarOrder{Cell: m.cell.Name, Authority: m.cell.authorityFile(), Masters: m.cell.masterAddrs(), Lists: m.cell.user, Listers: users, ListsEach: each})
}

func (m *masterBench) fromAfar(o afarOrder) *afar {
	m.Helper()
	order, err := json.Marshal(o)
	if err != nil {
		m.Fatal(err)
	}
	return m.helper(afarEnv, string(order))
}

// helper starts this test program as a process of another kind, that of the variable, until the
// benchmark ends.
func (m *masterBench) helper(variable, order string) *afar {
	m.Helper()
	self, err := os.Executable()
	if err != nil {
		m.Fatal(err)
	}
	a := &afar{m: m, cmd: exec.Command(self)}
	a.cmd.Env, a.cmd.Stderr = append(os.Environ(), variable+"="+order), os.Stderr
	if a.ask, err = a.cmd.StdinPipe(); err != nil {
		m.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		m.Fatal(err)
	}
	a.told = bufio.NewReader(out)
	if err := a.cmd.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		a.ask.Close()
		// A second wait does nothing.
		_ = a.cmd.Wait()
	})
	return a
}

// counts asks what it has come to.
func (a *afar) counts() (c afarCounts) {
	a.m.Helper()
	_, err := io.WriteString(a.ask, "counts\n")
	line := ""
	if err == nil {
		line, err = a.told.ReadString('\n')
	}
	if err == nil {
		err = json.Unmarshal([]byte(line), &c)
	}
	if err != nil {
		a.m.Fatalf("the process that stands for other machines does not answer: %v", err)
	}
	return c
}

// cpuSeconds is the processor time that it has used so far.
func (a *afar) cpuSeconds() float64 {
	a.m.Helper()
	s, err := spentBy(a.cmd.Process.Pid)
	if err != nil {
		a.m.Fatal(err)
	}
	return s.cpuSeconds
}

// stop ends it.
func (a *afar) stop() {
	a.m.Helper()
	a.ask.Close()
	if err := a.cmd.Wait(); err != nil {
		a.m.Errorf("the process that stands for other machines: %v", err)
	}
}

// afarMain is the process that stands for other machines, until nobody asks it any more.
func afarMain(order string) error {
	var o afarOrder
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		return err
	}
	if o.Stand != nil {
		return o.Stand.serve()
	}
	// Who lists has his share of the processors; a flood takes what is left over, at any moment.
	policy := uint32(unix.SCHED_NORMAL)
	if o.Burn > 0 || o.PerS > 0 || o.Slow {
		policy = unix.SCHED_IDLE
	}
	if err := yield(policy); err != nil {
		return err
	}
	if o.Burn > 0 {
		return burn(o.Burn)
	}
	// Its collector would take all processors for a while, many times a second.
	debug.SetGCPercent(1000)
	pem, err := identity.ReadSecret(o.Authority)
	if err != nil {
		return err
	}
	authority, err := identity.DecodeAuthority(o.Cell, pem, rand.Reader)
	if err != nil {
		return err
	}
	user := func(name string) (*identity.Source, error) {
		return authority.Source(identity.Name{Cell: o.Cell, Role: identity.User, ID: name}, time.Now(), identity.Life)
	}
	if o.Listers > 0 {
		return listAgainAndAgain(o, user)
	}
	if o.Lists != "" {
		who, err := user("lister")
		if err != nil {
			return err
		}
		return list(o, who)
	}
	floods, err := user("flood")
	if err != nil {
		return err
	}
	crawls, err := user("slow")
	if err != nil {
		return err
	}
	f := &openFlood{who: floods}
	ctx, stop := context.WithCancel(context.Background())
	var at sync.WaitGroup
	defer at.Wait()
	defer stop()
	if o.Slow {
		slow(ctx, o.Masters, crawls, &at)
	}
	if o.PerS > 0 {
		f.begin(ctx, o.Masters, o.Conns, o.PerS, &at)
	}
	return answers(func() (afarCounts, error) {
		return afarCounts{f.offered(), f.made.Load(), f.done.Load(), f.refused.Load(), f.untold.Load(), f.failed.Load(), f.late.Load(), f.conns.Load()}, nil
	})
}

// answers answers each question until there are no more.
func answers(counts func() (afarCounts, error)) error {
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		c, err := counts()
		if err != nil {
			return err
		}
		line, err := json.Marshal(c)
		if err != nil {
			return err
		}
		if _, err := fmt.Println(string(line)); err != nil {
			return err
		}
	}
	return nil
}

// list lists all tasks of a user, page by page, for each question.
func list(o afarOrder, who *identity.Source) error {
	c, err := client.New(client.Config{Masters: o.Masters, Identity: who})
	if err != nil {
		return err
	}
	defer c.Close()
	return answers(func() (afarCounts, error) {
		resp, err := c.ListAllTasks(context.Background(), &borgrpc.ListTasksRequest{User: o.Lists}, 0)
		return afarCounts{Made: int64(len(resp.GetTasks()))}, err
	})
}

// listAgainAndAgain has users list all tasks of one until nobody asks any more.
func listAgainAndAgain(o afarOrder, user func(name string) (*identity.Source, error)) error {
	var done, refused atomic.Int64
	ctx, stop := context.WithCancel(context.Background())
	var at sync.WaitGroup
	defer at.Wait()
	defer stop()
	for i := range o.Listers {
		who, err := user(fmt.Sprint("lister-", i))
		if err != nil {
			return err
		}
		c, err := client.New(client.Config{Masters: o.Masters, Identity: who, Waits: func(string, string, time.Duration) { refused.Add(1) }})
		if err != nil {
			return err
		}
		defer c.Close()
		for range o.ListsEach {
			at.Go(func() {
				for ctx.Err() == nil {
					if _, err := c.ListTasks(ctx, &borgrpc.ListTasksRequest{User: o.Lists, Limit: listPage}); err == nil {
						done.Add(1)
					}
				}
			})
		}
	}
	return answers(func() (afarCounts, error) { return afarCounts{Done: done.Load(), Refused: refused.Load()}, nil })
}

// serve takes the processor time of a list for each question, in turns of two threads.
func (s standIn) serve() error {
	reads, read := make(chan bool), make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19)
		for range reads {
			if err == nil {
				err = spend(s.ReadNs)
			}
			read <- err
		}
		close(read)
	}()
	runtime.LockOSThread()
	err := answers(func() (c afarCounts, err error) {
		for ; c.Made < int64(s.Pages) && err == nil; c.Made++ {
			if err = spend(s.ServeNs); err == nil {
				reads <- true
				err = <-read
			}
		}
		return c, err
	})
	close(reads)
	<-read
	return err
}

// spend keeps this thread busy until it has used so much of a processor.
func spend(ns int64) error {
	var began, now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &began)
	for now = began; err == nil && now.Nano()-began.Nano() < ns; {
		err = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now)
	}
	return err
}

// burnTick is how often a burst begins: several connections' calls are due in it.
const burnTick = 5 * time.Millisecond

// burn keeps each processor busy for a part of the time until nobody asks any more.
func burn(part float64) error {
	var over atomic.Bool
	var at sync.WaitGroup
	for range runtime.NumCPU() {
		at.Go(func() {
			tick := time.NewTicker(burnTick)
			defer tick.Stop()
			for began := range tick.C {
				for float64(time.Since(began)) < part*float64(burnTick) && !over.Load() {
				}
				if over.Load() {
					return
				}
			}
		})
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	over.Store(true)
	at.Wait()
	return err
}

// yield gives all threads of this process the lowest priority within a policy; those to come
// have it from who makes them.
func yield(policy uint32) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		id := 0
		if _, err := fmt.Sscan(t.Name(), &id); err != nil {
			return err
		}
		if err := unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Nice: 19}, 0); err != nil {
			return err
		}
	}
	return nil
}
