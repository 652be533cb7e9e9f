package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/beneath"
	"borg/proto/borgpb"
)

// eventQueue bounds what was observed and not yet taken; a follower waits when
// it is full.
const eventQueue = 256

// lookEvery is how often a shim that was found in the middle of a start is
// looked at.
const lookEvery = 50 * time.Millisecond

// Config is what a Runtime is made with.
type Config struct {
	// Name of the borglet: its cgroups lie under /borg/<name>.
	Name string
	// RunDir is for what need not outlive a boot. Absolute.
	RunDir string
	// Kind is "container", "process", or "auto": containers where they can be
	// had.
	Kind string
	// Writable lists directories of the machine below which a task may have
	// writable mounts.
	Writable []string
	// TaskIDs are the first and last of the machine's user and group ids of which
	// each copy gets 65,536; zero: DefaultTaskIDs. Borglets of one machine have
	// different ones.
	TaskIDs [2]uint32
	// ExclusiveCores is how many cores tasks may have alone, at most.
	ExclusiveCores int
	// Private lists directories that no task may see: the borglet's own.
	Private []string
	Log     *slog.Logger
}

// backend is what differs between containers and plain processes, on the
// borglet's side.
type backend interface {
	capabilities() borglet.Capabilities
	// prepare completes the order for a run; remember takes note of one that an
	// earlier borglet gave.
	prepare(o *order) error
	remember(o *order)
	// settleShared puts in order what copies share, after all were remembered; started does
	// it for one that was prepared and has begun since.
	settleShared() error
	started(o *order) error
	// orphan finds the process of a run whose shim died without a word; begun
	// says whether the task's program was let go.
	orphan(id borglet.ID, dir string) (p proc, begun bool)
	// listening: a signal to the run's process reaches the task.
	listening(dir string) bool
	// kill ends the run's processes.
	kill(id borglet.ID, p proc) error
	// settle ends what an ended run left running, and returns what the kernel killed in it
	// for want of memory.
	settle(id borglet.ID, p proc) oomKills
	update(l *borglet.Launch) error
	stats(runs map[borglet.ID]proc) map[borglet.ID]borglet.Stats
	allocStats(allocs []string) map[string]borglet.Stats
	// kills says what the kernel killed in runs for want of memory.
	kills(runs map[borglet.ID]proc) map[borglet.ID]borglet.Kills
	// cgroups are those of runs; nil where they have none.
	cgroups(runs map[borglet.ID]proc) map[borglet.ID]paths
	// members are the processes of runs.
	members(runs map[borglet.ID]proc) (map[borglet.ID][]int, error)
	// block closes what copies were found to listen on, where that can be done.
	block(found map[borglet.ID][]borglet.Listener) error
	destroy(id borglet.ID) error
	close()
}

// Runtime is the borglet's side of the shims.
type Runtime struct {
	cfg     Config
	backend backend
	self    string
	events  chan borglet.Observed

	// ctx ends with Close; it stops the followers, of which wg keeps count.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// runs holds what is followed. Guarded by mu.
	runs map[borglet.ID]*run

	listeners listeners
	// sockets is what SocketsHeld, one call at a time, remembers.
	sockets socketWatch
	// protected is what ProtectedHolders remembers.
	protected protectedWatch
	// heldPast is what was found of copies before. Only HeldOpen uses it, one call at a time.
	heldPast map[borglet.ID]heldPast

	// OwnNetworks: tasks can have networks of their own here. Set before first use.
	OwnNetworks bool
	// DiskQuotas: the file system refuses what tasks write beyond their disk limit. Set
	// before first use.
	DiskQuotas bool
}

// run is one run that is followed.
type run struct {
	id  borglet.ID
	n   uint32
	dir string
	// Guarded by Runtime.mu from here.
	shim   proc
	task   proc
	killed bool
}

// New returns the runtime that cfg.Kind asks for.
func New(cfg Config) (*Runtime, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the borglet's own program: %w", err)
	}
	b, err := newBackend(cfg)
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		cfg: cfg, backend: b, self: self,
		events: make(chan borglet.Observed, eventQueue),
		runs:   map[borglet.ID]*run{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

func newBackend(cfg Config) (backend, error) {
	switch cfg.Kind {
	case kindProcess:
		return newProcessBackend(cfg), nil
	case kindContainer:
		return newContainerBackend(cfg)
	case "auto", "":
		b, err := newContainerBackend(cfg)
		if err == nil {
			return b, nil
		}
		cfg.Log.Info("containers cannot be had here", "machine", cfg.Name, "err", err)
		return newProcessBackend(cfg), nil
	}
	return nil, fmt.Errorf("runtime %q: want auto, container or process", cfg.Kind)
}

// Capabilities says what this runtime can do here.
func (r *Runtime) Capabilities() borglet.Capabilities {
	caps := r.backend.capabilities()
	if caps.Network = "machine"; r.OwnNetworks {
		caps.Network = "own"
	}
	if caps.DiskLimit = "measured"; r.DiskQuotas {
		caps.DiskLimit = "refused"
	}
	return caps
}

// Settle puts in order what runs share.
func (r *Runtime) Settle() error { return r.backend.settleShared() }

// Events are what is observed, until Close.
func (r *Runtime) Events() <-chan borglet.Observed { return r.events }

// Close stops following; what runs goes on.
func (r *Runtime) Close() error {
	r.cancel()
	r.wg.Wait()
	r.backend.close()
	return nil
}

// Start begins a run: its shim is running, or an error says why not. It gives
// the shim some time to have started the task too, so that who starts many
// tasks a few at a time does so.
func (r *Runtime) Start(l *borglet.Launch) error {
	if l.Refused != "" {
		r.wg.Go(func() { r.refuse(l) })
		return nil
	}
	for _, name := range []string{exitFile, pidFile, statusFile} {
		if err := removeFile(filepath.Join(l.Dir, name)); err != nil {
			return fmt.Errorf("clear the files of the last run: %w", err)
		}
	}
	o := order{
		StateDir: stateDir(r.cfg), CgroupParent: cgroupParent(r.cfg.Name),
		Kind: r.Capabilities().Runtime, Marker: marker(r.cfg, l.ID), Launch: *l,
	}
	if err := r.check(l); err != nil {
		refused := *l
		refused.Refused, refused.RefusedWay = err.Error(), startWay(err)
		r.wg.Go(func() { r.refuse(&refused) })
		return nil
	}
	if err := r.backend.prepare(&o); err != nil {
		return err
	}
	if err := replaceJSON(l.Dir, launchFile, o); err != nil {
		return err
	}
	shim, ready, err := r.spawn(&o)
	if err != nil {
		return err
	}
	followed := &run{id: l.ID, n: l.Run, dir: l.Dir, shim: shim}
	r.mu.Lock()
	r.runs[l.ID] = followed
	r.mu.Unlock()
	awaitReady(r.ctx, ready)
	if err := r.backend.started(&o); err != nil {
		r.cfg.Log.Error("what a task shares with others is not divided as it should be", "machine", r.cfg.Name, "copy", l.ID.String(), "err", err)
	}
	r.wg.Go(func() { r.follow(followed) })
	return nil
}

// refuse ends a run that cannot begin for a reason that lies in the task.
func (r *Runtime) refuse(l *borglet.Launch) {
	way := cmp.Or(l.RefusedWay, borgpb.ExitReason_EXIT_REASON_NOT_STARTED)
	e := borglet.ExitFile{Run: l.Run, Code: 127, Error: l.Refused, Way: way, EndedWallNs: time.Now().UnixNano()}
	if err := writeExit(l.Dir, e); err != nil {
		r.cfg.Log.Error("exit.json cannot be written", "machine", r.cfg.Name, "err", err)
	}
	r.emit(observedExit(l.ID, l.Run, e))
}

// spawn starts the shim of a run. It inherits the lock, so that there is no
// moment in which it lives without holding it.
func (r *Runtime) spawn(o *order) (shim proc, ready *os.File, err error) {
	dir := o.Launch.Dir
	lock, held, err := takeLock(dir)
	if err != nil {
		return proc{}, nil, err
	}
	if held {
		return proc{}, nil, errors.New("the shim of the last run still lives")
	}
	defer lock.Close()
	log, err := beneath.Open(dir, shimLog, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return proc{}, nil, fmt.Errorf("open the shim's log: %w", err)
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return proc{}, nil, fmt.Errorf("start shim: %w", err)
	}
	defer null.Close()
	ready, readyShim, err := os.Pipe()
	if err != nil {
		return proc{}, nil, fmt.Errorf("start shim: %w", err)
	}
	defer readyShim.Close()
	p, err := os.StartProcess(r.self, []string{"borglet", "shim", dir}, &os.ProcAttr{
		Dir:   "/",
		Env:   append(shimEnv(), "GOMAXPROCS=1", "GOGC=50"),
		Files: []*os.File{null, log, log, readyShim, lock},
		Sys:   attributes(o),
	})
	if err != nil {
		ready.Close()
		return proc{}, nil, fmt.Errorf("start shim: %w", err)
	}
	// It is waited for by its handle, like those of earlier borglets.
	defer p.Release()
	shim, err = identify(p.Pid)
	if err != nil {
		shim = proc{Pid: p.Pid}
	}
	return shim, ready, nil
}

// attributes are how a shim is started. One that mounts something has a mount name
// space of its own, in which these mounts end with it.
func attributes(o *order) *unix.SysProcAttr {
	sys := &unix.SysProcAttr{Setsid: true}
	if len(o.Launch.Packages) > 0 || o.Cover || o.Launch.Network != "" {
		sys.Unshareflags = unix.CLONE_NEWNS
	}
	return sys
}

// shimEnv is the environment without what would change how a Go program runs.
func shimEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "GOCOVERDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// readyBound is how long Start waits for a shim that does not say anything.
const readyBound = 10 * time.Second

// awaitReady returns when the shim has said that the task runs, or that it
// does not, or has died, or takes long.
func awaitReady(ctx context.Context, ready *os.File) {
	defer ready.Close()
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var buf [16]byte
	// The word itself does not matter: the files say how it went.
	_, _ = ready.Read(buf[:])
}

// Warn sends SIGUSR1 to the task.
func (r *Runtime) Warn(id borglet.ID) error { return r.Signal(id, unix.SIGUSR1) }

// Terminate sends SIGTERM to the task.
func (r *Runtime) Terminate(id borglet.ID) error { return r.Signal(id, unix.SIGTERM) }

// Signal sends a signal to the task.
func (r *Runtime) Signal(id borglet.ID, signal syscall.Signal) error {
	r.mu.Lock()
	followed := r.runs[id]
	var task proc
	if followed != nil {
		task = followed.task
	}
	r.mu.Unlock()
	if task.Pid == 0 {
		return fmt.Errorf("send %s: no process is known", signal)
	}
	r.awaitListening(followed.dir, task)
	return ignoreGone(task.signal(signal))
}

// listenBound is how long a signal is held back for a container that has only
// just been let go.
const listenBound = 10 * time.Second

func (r *Runtime) awaitListening(dir string, task proc) {
	ctx, cancel := context.WithTimeout(r.ctx, listenBound)
	defer cancel()
	ticker := time.NewTicker(listenBound / 1000)
	defer ticker.Stop()
	for !r.backend.listening(dir) && task.alive() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Kill ends a run for certain. One that has not got as far as a process ends
// with its shim.
func (r *Runtime) Kill(id borglet.ID) error {
	r.mu.Lock()
	followed := r.runs[id]
	var task, shim proc
	if followed != nil {
		followed.killed = true
		task, shim = followed.task, followed.shim
	}
	r.mu.Unlock()
	switch {
	case followed == nil:
		return nil
	case task.Pid != 0:
		return ignoreGone(r.backend.kill(id, task))
	case shim.Pid != 0:
		return ignoreGone(shim.signal(unix.SIGKILL))
	default:
		return errors.New("kill: no process is known yet")
	}
}

func ignoreGone(err error) error {
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// Update changes limits in place.
func (r *Runtime) Update(l *borglet.Launch) error { return r.backend.update(l) }

// Stats says what copies use.
func (r *Runtime) Stats(ids []borglet.ID) map[borglet.ID]borglet.Stats {
	return r.backend.stats(r.processes(ids))
}

// AllocStats says what all in each alloc uses together.
func (r *Runtime) AllocStats(allocs []string) map[string]borglet.Stats {
	return r.backend.allocStats(allocs)
}

// processes are those that copies began with.
func (r *Runtime) processes(ids []borglet.ID) map[borglet.ID]proc {
	runs := make(map[borglet.ID]proc, len(ids))
	r.mu.Lock()
	for _, id := range ids {
		if f := r.runs[id]; f != nil && f.task.Pid != 0 {
			runs[id] = f.task
		}
	}
	r.mu.Unlock()
	return runs
}

// Kills says what the kernel killed of copies that run; those of which it killed nothing
// are absent.
func (r *Runtime) Kills(ids []borglet.ID) map[borglet.ID]borglet.Kills {
	return r.backend.kills(r.processes(ids))
}

// Destroy takes away what an ended run left.
func (r *Runtime) Destroy(id borglet.ID) error { return r.backend.destroy(id) }

func (r *Runtime) emit(o borglet.Observed) {
	select {
	case r.events <- o:
	case <-r.ctx.Done():
	}
}

func observedExit(id borglet.ID, n uint32, e borglet.ExitFile) borglet.Observed {
	if e.Retry {
		return borglet.Observed{ID: id, Run: n, Kind: borglet.NotStarted, Text: e.Error}
	}
	return borglet.Observed{ID: id, Run: n, Kind: borglet.Exited, Exit: e.Exit()}
}
