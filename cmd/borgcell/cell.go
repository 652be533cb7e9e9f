package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// Bound on one program's start until it serves.
	serveWait = 20 * time.Second
	// A program that was told to stop is killed after so long.
	stopGrace = 10 * time.Second
	// Bound on one question to a master that is looked at by itself.
	askWait = time.Second
	// Bound on having another certificate believed: one second and a half after the one
	// before was revoked it is.
	believeWait = 5 * time.Second
)

// Cell is a cell of real processes on this machine. Masters and machines are
// numbered from 1. Its methods are what a person with a cluster and a hammer
// can do; chaos tests use it as much as the commands.
type Cell struct {
	layout
	log *slog.Logger
	sup *supervisor
	// Held while the cell exists: on its directory and on its run-time
	// directory, which two cells of one name would share.
	locks []*lock
	// Client asks in the name of user, who runs the cell.
	client *client.Client
	user   string
	// Makes certificates, as the masters do: their disks are on this machine.
	authority *identity.Authority
	source    *identity.Source
	// Stops the renewal of source; nil: it does not run.
	endRenewal func()
	// Each asks the replica of its index plus one. It changes under eachMu.
	each   []*client.Client
	eachMu *sync.Mutex
	// Where a program listens whom others reach at an address, when something
	// lies in between; nil: at that address.
	behind func(addr string) string
	// Changes how a program is started; nil: as it is.
	alter func(*processSpec)
}

// OpenCell takes the directories of a cell for itself, removes what a killed
// run left, and makes the replicas of a new cell. With fresh, what the
// directory held is thrown away first. Nothing runs yet.
func OpenCell(ctx context.Context, l layout, fresh bool, log *slog.Logger) (*Cell, error) {
	c := &Cell{layout: l, log: log, user: userName(), eachMu: new(sync.Mutex)}
	for _, dir := range []string{l.dir, l.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make a directory for the cell: %w", err)
		}
		held, err := takeLock(dir)
		if err != nil {
			c.unlock()
			return nil, err
		}
		c.locks = append(c.locks, held)
	}
	err := c.sweepEarlier(ctx, fresh)
	if err == nil {
		err = c.prepare(ctx)
	}
	if err != nil {
		c.unlock()
		return nil, err
	}
	c.sup = newSupervisor(log, l.recordPath())
	c.sup.writeRecord()
	return c, nil
}

// sweepEarlier removes what an earlier run left running. We hold the locks of
// its directory or of its run-time directory, so it is not there any more.
func (c *Cell) sweepEarlier(ctx context.Context, fresh bool) error {
	for _, old := range c.earlier() {
		if err := old.sweep(ctx); err != nil {
			return fmt.Errorf("sweep what an earlier run left in %s: %w", old.dir, err)
		}
	}
	if err := os.WriteFile(c.placeFile(), []byte(c.dir+"\n"), 0o644); err != nil {
		return err
	}
	if !fresh {
		return nil
	}
	// Only what is ours: the directory may be somebody's home.
	for _, name := range []string{"masters", "borglets", "log", filepath.Base(c.cellFile()), filepath.Base(c.identityFile()), filepath.Base(c.recordPath()), filepath.Base(c.layoutFile())} {
		if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
			return fmt.Errorf("throw away the earlier cell: %w", err)
		}
	}
	return nil
}

// prepare makes what is missing on disk, and the client.
func (c *Cell) prepare(ctx context.Context) error {
	if err := c.checkPorts(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.logDir(), 0o755); err != nil {
		return err
	}
	if c.CellID == "" {
		var id [8]byte
		rand.Read(id[:])
		c.CellID = hex.EncodeToString(id[:])
	}
	if err := writeJSON(c.layoutFile(), c.layout); err != nil {
		return err
	}
	for _, i := range c.masterNumbers() {
		if err := c.initMaster(ctx, i); err != nil {
			return err
		}
	}
	if !c.Made {
		c.Made = true
		if err := writeJSON(c.layoutFile(), c.layout); err != nil {
			return err
		}
	}
	if err := c.certify(); err != nil {
		return err
	}
	if err := c.writeCellFile(); err != nil {
		return err
	}
	return c.dial()
}

// dial makes the clients; nothing is connected before the first question.
func (c *Cell) dial() (err error) {
	c.client, err = client.New(client.Config{Masters: c.masterAddrs(), CellID: c.CellID, Identity: c.source, Log: c.log})
	if err != nil {
		return err
	}
	_, err = c.one(slices.Max(append(c.masterNumbers(), c.Masters)))
	return err
}

// one returns the client that asks replica i alone. Replicas may join after the others were dialled.
func (c *Cell) one(i int) (*client.Client, error) {
	c.eachMu.Lock()
	defer c.eachMu.Unlock()
	for len(c.each) < i {
		one, err := client.New(client.Config{Masters: []string{c.masterAddr(len(c.each) + 1)}, Identity: c.source, Timeout: askWait, Log: c.log})
		if err != nil {
			return nil, err
		}
		c.each = append(c.each, one)
	}
	return c.each[i-1], nil
}

// checkPorts refuses ports that somebody else has, before anything starts.
func (c *Cell) checkPorts() error {
	var taken []string
	for _, addr := range c.doors() {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			taken = append(taken, addr)
			continue
		}
		listener.Close()
	}
	if len(taken) == 0 {
		return nil
	}
	return cli.Errorf(cli.Failed, "in use by another program: %s", strings.Join(taken, ", ")).
		Hint("see who has it: ss -ltnp\nor take other ports: --port-base %d", c.otherPortBase())
}

// doors are the addresses that the cell's programs listen on.
func (l layout) doors() []string {
	addrs := l.masterAddrs()
	for _, i := range l.masterNumbers() {
		addrs = append(addrs, l.masterPage(i))
	}
	if l.Fake != nil {
		for part := range l.fakeParts() {
			addrs = append(addrs, net.JoinHostPort("0.0.0.0", strconv.Itoa(int(l.fakePort(part)))))
		}
		return addrs
	}
	for k := 1; k <= l.Machines; k++ {
		addrs = append(addrs, l.borgletAddr(k), l.borgletPage(k))
	}
	return addrs
}

// ownPorts are the ports on which the cell itself listens, as `borglet --protected-ports` takes
// them: the borglets are on one machine, and each keeps its tasks from the others' ports.
func (l layout) ownPorts() string {
	var ports []string
	for _, addr := range l.doors() {
		if _, port, err := net.SplitHostPort(addr); err == nil {
			ports = append(ports, port)
		}
	}
	return strings.Join(ports, ",")
}

// StartBorglet starts the borglet of machine k and returns when it serves.
func (c *Cell) StartBorglet(ctx context.Context, k int) error {
	name, listen := c.machineName(k), c.listenAddr(c.borgletAddr(k))
	share, err := c.share()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.borgletDir(k), 0o755); err != nil {
		return err
	}
	if err := c.certifyBorglet(k); err != nil {
		return err
	}
	return c.startAndServe(ctx, processSpec{
		Name: name, Path: c.bin("borglet"), LogPath: c.logPath(name), Env: []string{c.envMark()},
		Args: []string{"serve", "--name", name, "--dir", c.borgletDir(k), "--run-dir", c.runOf(name), "--listen", listen, "--http", c.borgletPage(k), "--advertise", c.borgletAddr(k),
			"--capacity", share, "--task-ports", c.taskPorts(k), "--attr", "rack=" + c.rack(k), "--runtime", c.Runtime, "--log-format", "text", "--protected-ports", c.ownPorts()},
	}, listen)
}

// listenAddr is where a program listens whom others reach at addr.
func (c *Cell) listenAddr(addr string) string {
	if c.behind == nil {
		return addr
	}
	return c.behind(addr)
}

// startAndServe starts a process and waits until its door is open. One that
// dies before is an error with the end of its log.
func (c *Cell) startAndServe(ctx context.Context, spec processSpec, addr string) error {
	if c.alter != nil {
		c.alter(&spec)
	}
	p := c.sup.add(spec)
	ctx, cancel := context.WithTimeout(ctx, serveWait)
	defer cancel()
	if err := p.start(ctx); err != nil {
		return err
	}
	in := p.running()
	err := until(ctx, fmt.Sprintf("%s serves on %s", p.spec.Name, addr), func(ctx context.Context) error {
		if in == nil || p.running() != in {
			return &finalError{errors.New("it ended")}
		}
		conn, err := (&net.Dialer{Timeout: askWait}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		p.stop(ctx, time.Second)
		return cli.Errorf(cli.Failed, "%w\n%s", err, p.logEnd())
	}
	p.serves(in)
	return nil
}

// crash says which process has ended by itself since it was started, and how.
func (c *Cell) crash() error {
	for _, p := range c.sup.all() {
		if p.crashed() {
			return &finalError{fmt.Errorf("%s has ended by itself\n%s", p.spec.Name, p.logEnd())}
		}
	}
	return nil
}

// Start starts everything and returns when jobs can be run: a master is
// elected, its scheduler follows, all machines are up.
func (c *Cell) Start(ctx context.Context) error {
	if err := c.StartMasters(ctx); err != nil {
		return err
	}
	if c.Fake != nil {
		if err := c.StartFake(ctx); err != nil {
			return err
		}
		return c.addFake(ctx)
	}
	for k := 1; k <= c.Machines; k++ {
		if err := c.StartBorglet(ctx, k); err != nil {
			return err
		}
	}
	return c.AddMachines(ctx)
}

// AddMachines makes the borglets machines of the cell and waits until all are
// up and the scheduler works.
func (c *Cell) AddMachines(ctx context.Context) error {
	known, err := c.client.ListMachines(ctx, &borgrpc.ListMachinesRequest{})
	if err != nil {
		return err
	}
	for k := 1; k <= c.Machines; k++ {
		name := c.machineName(k)
		if slices.ContainsFunc(known.Machines, func(m *borgpb.Machine) bool { return m.Meta.Name == name }) {
			continue
		}
		if _, err := c.client.AddMachine(ctx, &borgrpc.AddMachineRequest{Addr: c.borgletAddr(k)}); err != nil {
			return fmt.Errorf("add machine %s: %w", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*serveWait)
	defer cancel()
	return until(ctx, "all machines are up and the scheduler works", func(ctx context.Context) error {
		return errors.Join(c.crash(), c.ready(ctx))
	})
}

// ready says what is still missing before jobs can run.
func (c *Cell) ready(ctx context.Context) error {
	machines, err := c.client.ListMachines(ctx, &borgrpc.ListMachinesRequest{})
	if err != nil {
		return err
	}
	up := 0
	for _, m := range machines.Machines {
		if m.Status.GetState() == borgpb.MachineState_MACHINE_STATE_UP {
			up++
		}
	}
	if up < c.Machines {
		return fmt.Errorf("%d of %d machines are up", up, c.Machines)
	}
	return c.scheduled(ctx)
}

// scheduled says what is missing before tasks are placed.
func (c *Cell) scheduled(ctx context.Context) error {
	if _, err := c.Elected(ctx); err != nil {
		return err
	}
	// Followers hear of the scheduler a moment later, and users may ask any.
	for _, i := range c.masterNumbers() {
		if c.PID(c.masterName(i)) == 0 {
			continue
		}
		state, err := c.Ask(ctx, i)
		if err != nil {
			return err
		}
		if !state.SchedulerConnected {
			return fmt.Errorf("master %d sees no scheduler that follows", i)
		}
	}
	return nil
}

// Ask asks replica i alone how it sees the cell.
func (c *Cell) Ask(ctx context.Context, i int) (*borgrpc.GetCellResponse, error) {
	one, err := c.one(i)
	if err != nil {
		return nil, err
	}
	return one.GetCell(ctx)
}

// Elected returns the elected replica: the one that says so of itself in the
// highest term.
func (c *Cell) Elected(ctx context.Context) (int, error) {
	elected, term := 0, uint64(0)
	for _, i := range c.masterNumbers() {
		if c.PID(c.masterName(i)) == 0 {
			continue
		}
		state, err := c.Ask(ctx, i)
		if err != nil || state.Elected != state.Replica {
			continue
		}
		if state.Term > term {
			elected, term = int(state.Replica), state.Term
		}
	}
	if elected == 0 {
		return 0, errors.New("no master is elected")
	}
	return elected, nil
}

// Client talks to the cell in the name of the user who runs it.
func (c *Cell) Client() *client.Client { return c.client }

// Kill kills a process with SIGKILL; it stays dead until it is started.
func (c *Cell) Kill(name string) error {
	p := c.sup.get(name)
	if p == nil {
		return fmt.Errorf("kill %s: there is no such process; there are %s", name, strings.Join(c.Processes(), ", "))
	}
	return p.kill(true)
}

// Crash kills a process with SIGKILL; the supervisor starts it again.
func (c *Cell) Crash(name string) error {
	p := c.sup.get(name)
	if p == nil {
		return fmt.Errorf("crash %s: there is no such process; there are %s", name, strings.Join(c.Processes(), ", "))
	}
	return p.kill(false)
}

// PID is the process of that name, or 0.
func (c *Cell) PID(name string) int {
	if p := c.sup.get(name); p != nil {
		return p.pid()
	}
	return 0
}

// Processes are the names of the cell's processes.
func (c *Cell) Processes() []string {
	var names []string
	for _, p := range c.sup.all() {
		names = append(names, p.spec.Name)
	}
	return names
}

func (c *Cell) processesOf(name func(int) string, n int) []*process {
	var procs []*process
	for i := 1; i <= n; i++ {
		if p := c.sup.get(name(i)); p != nil {
			procs = append(procs, p)
		}
	}
	return procs
}

func (c *Cell) unlock() {
	if c.endRenewal != nil {
		c.endRenewal()
	}
	for _, one := range append(c.each, c.client) {
		if one != nil {
			one.Close()
		}
	}
	for _, l := range c.locks {
		l.release()
	}
}
