package borglet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/tell/hostpath"
	"borg/tell/repeat"
)

const (
	// parallelStarts is how many runs may be starting at once, at least; on a
	// larger machine, two for each processor.
	parallelStarts = 4
	// parallelEffects bounds how many copies are otherwise worked on at once.
	parallelEffects = 8
	// resultQueue bounds results of effects that the loop has not yet heard; a
	// worker waits when it is full.
	resultQueue = 256
	// holdNs is how long a restarted borglet waits for a master's word before
	// it starts anything by itself.
	holdNs = int64(10 * time.Second)
	// sampleEvery is how often usage is measured.
	sampleEvery = time.Second
)

// Config is what an Agent is made with.
type Config struct {
	// Name of the machine. DNS label.
	Name string
	// Dir is the borglet's directory.
	Dir string
	// Spec is what is said of the machine.
	Spec *borgpb.MachineSpec
	// Build of the program, for people.
	Build string
	// Boot names this boot of the machine.
	Boot    string
	Backoff Backoff
	Runtime Runtime
	Log     *slog.Logger
	// HostPaths are the borglet's directories and files, which masters and users are not
	// told of; nil: Dir alone.
	HostPaths *hostpath.Dirs
	// PapersDir holds the papers of copies; it must be memory and not a disk, and
	// the borglet's own. Empty: copies get none.
	PapersDir string
	// BoundPapers gives the papers of each copy a file system of their own in PapersDir, of
	// a fixed size; needs the right to mount.
	BoundPapers bool
	// Packages of the machine; nil: tasks that name some are refused.
	Packages Packages
	// PackagePort is where other machines fetch them, beside the address of Spec;
	// zero: nowhere.
	PackagePort uint16
	// Issuer of papers; needed with PapersDir.
	Issuer Issuer
	// Networks for tasks that want one of their own; nil: those are refused.
	Networks Networks
	// TrustIs hears, with each poll that is obeyed, by which mark the cell's
	// authorities go; it must not block. Nil: nobody.
	TrustIs func(mark []byte)
	// CertificateExpires is when the machine's own certificate runs out, for people;
	// nil: it has none.
	CertificateExpires func() time.Time
	// AvailableMemBytes says how much memory can be had on the machine; nil: only what
	// tasks use counts, against the capacity.
	AvailableMemBytes func() (bytes int64, ok bool)
	// AvailableDiskBytes says how much may still be written on the disk of Dir; nil:
	// only the limits of tasks count.
	AvailableDiskBytes func() (bytes int64, ok bool)
	// TreeBytes adds up what the files below a directory take of the disk, or says why
	// that cannot be done; one that is not there takes nothing. Nil: what tasks keep
	// is not measured.
	TreeBytes func(dir string) (int64, error)
	// HeldOpen says what runs hold open of files without a name, on the file system of Dir,
	// by places: paths as the processes see them. Nil: nobody looks.
	HeldOpen func(places map[ID][]string) map[ID]HeldOpen
	// DiskQuotas of the file system of Dir; nil: what tasks keep is measured.
	DiskQuotas DiskQuotas
	// Listening says on which ports copies listen, in the machine's network. One that
	// cannot be asked is absent. Nil: nobody looks.
	Listening func(ids []ID) (map[ID][]Listener, error)
	// Kills says what the kernel killed of copies that go on; those without are absent.
	// Nil: nobody looks.
	Kills func(ids []ID) map[ID]Kills
	// HeldPorts returns who holds ports of the machine's network, if one of wanted is held;
	// nil: nobody looks, and tasks find out themselves.
	HeldPorts func(wanted []uint32, all PortRange) (PortHolders, error)
	// SocketsHeld returns what copies hold of what the machine's sockets share, if one may
	// hold too much; nil: nobody looks. One call at a time.
	SocketsHeld func() (SocketsHeld, bool)
	// Protected returns the TCP ports of the machine that programs of the cell need; nil: none.
	Protected func() []ProtectedPort
	// ProtectedHolders returns which copies have bound some of these ports; nil: nobody looks.
	// It is called by the goroutine that calls SocketsHeld.
	ProtectedHolders func(ports []uint16) (map[ID][]uint16, error)
	// Block closes what copies were found to listen on and were not granted, and opens
	// what it closed before. Nil: nobody does.
	Block func(found map[ID][]Listener) error
	// Path is the machine's search path for tasks that see its files.
	Path string
	// LogKeepBytes is how much disk each output stream of a task takes at most, its
	// compressed pieces included; zero: all is kept.
	LogKeepBytes int64
	// KeptFor is how long the output of a forgotten copy is kept at most; zero: until
	// there is too much of it.
	KeptFor time.Duration
	// Punch gives back the disk that a file takes before end, without moving what is
	// behind it, or says errors.ErrUnsupported; nil: logs are not bounded.
	Punch func(file *os.File, end int64) error
}

// Validate says what is wrong with it.
func (c *Config) Validate() error {
	switch {
	case !isUID(c.Name):
		return fmt.Errorf("machine name %q is not a DNS label; use lower-case letters, digits and dashes, at most 63 (--name)", c.Name)
	case c.PapersDir != "" && c.Issuer == nil:
		return errors.New("borglet: PapersDir needs an Issuer")
	case c.Dir == "" || c.Runtime == nil || c.Log == nil || c.Spec == nil:
		return errors.New("borglet: Dir, Spec, Runtime and Log must be given")
	}
	return c.Backoff.Validate()
}

// Agent is the shell around a Core: one goroutine owns the core, the fence and
// the clock; workers do its effects; a sampler measures.
type Agent struct {
	cfg Config
	// What the log is told of errors whose paths users are not told.
	repeated    repeat.Limiter
	core        *Core
	store       *Store
	master      Master
	usage       *usage
	volumeUse   volumeUse
	papers      *papers
	pushed      *pushed
	networks    *networks
	clock       *logClock
	rotator     *rotator
	unlimited   unlimited
	incarnation string
	start       time.Time

	polls   chan pollCall
	looks   chan chan<- look
	meter   *meter
	results chan Event
	workers *executor
	// What waits to start is cancelled with life, which ends with Run.
	life context.Context
	die  context.CancelFunc
	// execs are the programs that run beside tasks.
	execs  execs
	prober *prober
	// advised: the last poll had something to say of packages. said is what it was
	// told of the machine. Both belong to the loop.
	advised bool
	said    *borgpb.MachineSpec
	// view is what the other goroutines may know of the core.
	view atomic.Pointer[view]
	// strays are what tasks listen on and were not granted; never nil.
	strays atomic.Pointer[strays]
	// protectedErr is the last error of ProtectedHolders. Of watchSockets.
	protectedErr string
	// removed is what the fence says of replicas that were taken out.
	removed atomic.Pointer[[]uint64]
	// Pages name tasks to masters and to their own user alone: a master has said so, or
	// none was heard yet.
	private atomic.Bool
	// Allocs whose directories masters want to stay, once one was heard. Of the loop.
	keptAllocs []string
	heard      bool
	// done is closed when the loop has ended.
	done chan struct{}
}

type pollCall struct {
	req *borgrpc.PollRequest
	// Who polls, for people.
	by    string
	reply chan pollAnswer
}

type pollAnswer struct {
	resp *borgrpc.PollResponse
	err  error
}

// New opens the directory and takes over what is in it. Nothing is started
// before Run.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.HostPaths == nil {
		cfg.HostPaths = hostpath.New(cfg.Dir, cfg.PapersDir)
	}
	store, err := OpenStore(cfg.Dir)
	if err != nil {
		return nil, err
	}
	fence, err := LoadFence(cfg.Dir)
	if err != nil {
		return nil, err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("make an incarnation: %w", err)
	}
	a := &Agent{
		cfg:         cfg,
		core:        NewCore(CoreConfig{Backoff: cfg.Backoff, Boot: cfg.Boot, HoldNs: holdNs, HostPaths: cfg.HostPaths}),
		store:       store,
		master:      Master{Fence: fence, Dir: cfg.Dir},
		usage:       newUsage(),
		papers:      newPapers(cfg),
		networks:    newNetworks(cfg),
		clock:       newLogClock(cfg.LogKeepBytes),
		rotator:     newRotator(store, cfg),
		incarnation: hex.EncodeToString(id[:]),
		start:       time.Now(),
		polls:       make(chan pollCall),
		looks:       make(chan chan<- look),
		results:     make(chan Event, resultQueue),
		done:        make(chan struct{}),
	}
	store.unlimit = a.unlimitDisk
	store.volumes.unlimit = a.unlimitDisk
	a.rotator.hoarded = a.hoarded
	a.pushed = newPushed(a.papers, cfg)
	a.private.Store(true)
	a.prober = newProber(cfg.Runtime, func() { a.meter.checksDelayed.Inc() })
	a.meter = newMeter(a)
	a.removed.Store(&fence.Removed)
	a.strays.Store(&strays{})
	a.life, a.die = context.WithCancel(context.Background())
	a.workers = newExecutor(a.life, max(2*runtime.NumCPU(), parallelStarts), parallelEffects, a.fetch, a.do)
	return a, nil
}

// Run adopts what an earlier borglet left, then works until ctx ends. Tasks go
// on after it.
func (a *Agent) Run(ctx context.Context) error {
	defer close(a.done)
	defer a.die()
	found, err := a.recover()
	if err != nil {
		return err
	}
	var sampler sync.WaitGroup
	sampler.Go(func() { a.sample(ctx) })
	sampler.Go(func() { a.watchSockets(ctx) })
	sampler.Go(func() { a.rotator.run(ctx, a.begun) })
	sampler.Go(func() { a.pushed.run(ctx, a.running) })
	sampler.Go(func() { a.networks.run(ctx) })
	// Papers are renewed.
	sampler.Go(func() { a.papers.run(ctx, a.begun) })
	effects := a.core.Step(a.now(), Recovered{Copies: found})
	a.publish() // a start looks at the runs of others
	a.apply(effects)
	a.loop(ctx)
	a.die()
	sampler.Wait()
	// What is under way is finished, so that the records are as true as they
	// can be; what fails now is found again by the next borglet.
	finished := make(chan struct{})
	go func() {
		a.workers.wait()
		a.prober.wg.Wait()
		close(finished)
	}()
	for {
		select {
		case <-a.results:
		case <-a.cfg.Runtime.Events():
		case <-finished:
			return nil
		}
	}
}

// loop owns the core.
func (a *Agent) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var ev Event
		select {
		case <-ctx.Done():
			return
		case call := <-a.polls:
			resp, err := a.poll(call.req)
			a.meter.polled(call.by, resp.GetFenced(), err)
			call.reply <- pollAnswer{resp, err}
		case to := <-a.looks:
			to <- a.look()
		case ev = <-a.cfg.Runtime.Events():
		case ev = <-a.results:
		case <-timer.C:
			ev = Tick{}
		}
		if o, ok := ev.(Observed); ok {
			o.Addr = a.networks.of(o.ID).Addr
			ev = o
		}
		if ev != nil {
			a.note(ev)
			a.apply(a.core.Step(a.now(), ev))
		}
		if due, ok := a.core.NextNs(); ok {
			timer.Reset(time.Duration(max(due-a.now().MonoNs, 0)))
		} else {
			timer.Stop()
		}
		a.publish()
	}
}

// view is the state as of the loop's last turn. It is never changed.
type view struct {
	// live is the copies that have not ended.
	live map[ID]bool
	// begun is the copies of which a run was begun: they have papers.
	begun map[ID]bool
	// runs is which run of a copy runs now.
	runs map[ID]uint32
	// ports is what copies that run were granted.
	ports map[ID][]uint32
	// allocs is the allocs that are in use: their names, by AllocName.
	allocs map[string]string
	// inAlloc is the AllocName of the alloc that a copy is in.
	inAlloc map[ID]string
	// kept is those that masters want to stay; nil: no master was heard yet.
	kept map[string]bool
	// desired is what copies that run were to be.
	desired map[ID]*borgrpc.Desired
}

// publish lets the other goroutines see who lives and who runs.
func (a *Agent) publish() {
	v := &view{live: make(map[ID]bool, len(a.core.copies)), begun: map[ID]bool{}, runs: map[ID]uint32{}, ports: map[ID][]uint32{}, allocs: map[string]string{}, inAlloc: map[ID]string{}, desired: map[ID]*borgrpc.Desired{}}
	for id, t := range a.core.copies {
		if t.phase != ended {
			v.live[id] = true
		}
		if t.phase == running || t.phase == backoff {
			v.begun[id] = true
		}
		if t.phase == running {
			v.runs[id] = t.Run
			v.ports[id] = t.Desired.GetPorts()
			v.desired[id] = t.Desired
		}
		if alloc := t.Desired.GetAlloc(); alloc != "" {
			v.allocs[AllocName(alloc)], v.inAlloc[id] = alloc, AllocName(alloc)
		}
	}
	if a.heard {
		v.kept = make(map[string]bool, len(a.keptAllocs))
		for _, alloc := range a.keptAllocs {
			v.kept[AllocName(alloc)] = true
		}
	}
	a.view.Store(v)
	a.usage.setRunning(a.core.Running())
}

// begun are the copies that have begun, and not ended.
func (a *Agent) begun() map[ID]bool {
	if v := a.view.Load(); v != nil {
		return v.begun
	}
	return nil
}

// running are the copies that run now.
func (a *Agent) running() map[ID]bool {
	ids := map[ID]bool{}
	if v := a.view.Load(); v != nil {
		for id := range v.runs {
			ids[id] = true
		}
	}
	return ids
}

// runOf returns the run of a copy that runs now.
func (a *Agent) runOf(id ID) (run uint32, ok bool) {
	if v := a.view.Load(); v != nil {
		run, ok = v.runs[id]
	}
	return run, ok
}

// over says whether a copy writes no more.
func (a *Agent) over(id ID) bool {
	v := a.view.Load()
	return v != nil && !v.live[id]
}

func (a *Agent) now() Now {
	now := time.Now()
	return Now{MonoNs: int64(now.Sub(a.start)) + 1, WallNs: now.UnixNano()}
}

// recover asks the runtime how each copy is that was left, several at once.
func (a *Agent) recover() ([]Found, error) {
	records, bad, err := a.store.Load()
	if err != nil {
		return nil, err
	}
	for _, err := range bad {
		a.cfg.Log.Error("a copy cannot be taken over; left as it is", "machine", a.cfg.Name, "err", err)
	}
	if err := errors.Join(a.papers.sweep(records), a.keepPackages(records), a.networks.recover(records)); err != nil {
		return nil, err
	}
	found := make([]Found, len(records))
	slots := make(chan struct{}, parallelEffects)
	var wg sync.WaitGroup
	for i, r := range records {
		found[i].Record, found[i].Observed.Addr = r, a.networks.of(r.ID).Addr
		if r.Ended != 0 || r.Run == 0 || r.RunEnded {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			found[i].Observed = a.recoverOne(r)
			found[i].Observed.Addr = a.networks.of(r.ID).Addr
		})
	}
	wg.Wait()
	if err := a.cfg.Runtime.Settle(); err != nil {
		// It is tried again when the next task starts or ends that has a part in it.
		a.cfg.Log.Error("what tasks share on the machine is not in order", "machine", a.cfg.Name, "err", err)
	}
	if len(records) > 0 {
		a.cfg.Log.Info("took over what an earlier borglet left", "machine", a.cfg.Name, "copies", len(records))
	}
	return found, nil
}

func (a *Agent) recoverOne(r Record) Observed {
	o, err := a.cfg.Runtime.Recover(&Launch{
		ID: r.ID, Run: r.Run, Dir: a.store.TaskDir(r.ID), Ports: r.Desired.GetPorts(),
		Limits: limitsOf(r.Desired.GetSpec(), batchClass(r.Desired)), AllocLimits: allocLimitsOf(r.Desired),
	})
	if err != nil {
		a.cfg.Log.Error("a run cannot be found again", "task", a.taskName(r), "attempt", r.ID.Attempt, "err", err)
		return Observed{Kind: Exited, Exit: &borgpb.Exit{Unknown: true, EndedWallNs: time.Now().UnixNano()}}
	}
	return o
}

func (a *Agent) taskName(r Record) string {
	return (&task{Record: r}).name()
}

func (a *Agent) launch(r Record) (*Launch, error) {
	return NewLaunch(r.Desired, r.Run, Places{
		Dir:      a.store.TaskDir(r.ID),
		AllocDir: a.store.AllocDir(r.Desired.GetAlloc()),
		Machine:  a.cfg.Name,
		Papers:   a.papers.path(r.ID),
		OwnFiles: a.cfg.Runtime.Capabilities().OwnFiles,
		Path:     a.cfg.Path,
		Network:  a.networks.of(r.ID),
		Volume:   a.store.volumes.path,
	})
}

func (a *Agent) apply(effects []Effect) {
	for _, e := range effects {
		switch e.(type) {
		case Kill, Destroy, Remove:
			a.execs.end(e.Copy())
		}
		if check, ok := e.(Check); ok {
			a.probe(check)
			continue
		}
		a.workers.add(e, a.turnOf(e))
	}
}

// turnOf returns whose work an effect is. What is left of a copy that is forgotten is removed last.
// Only the loop calls it.
func (a *Agent) turnOf(e Effect) Turn {
	var turn Turn
	if t := a.core.copies[e.Copy()]; t != nil {
		turn = turnOf(t.Desired)
	}
	switch e.(type) {
	case Warn, Terminate, Kill:
		turn.Urgent = true
	}
	return turn
}

func turnOf(d *borgrpc.Desired) Turn { return Turn{Priority: d.GetPriority(), User: d.GetUser()} }

// do is one effect, done by a worker. startErr is why a start cannot be: for want of
// packages, or because its copy was told to stop while it waited.
func (a *Agent) do(e Effect, startErr error) {
	failed := Failed{ID: e.Copy()}
	var err error
	switch e := e.(type) {
	case Save:
		failed.Op, failed.Run = OpSave, e.Record.Run
		err = a.store.Save(e.Record)
		switch {
		case e.Record.Ended == 0 && err != nil:
			// The next save holds all that this one did.
			a.cfg.Log.Error("a record cannot be saved", "task", a.taskName(e.Record), "attempt", e.Record.ID.Attempt, "err", err)
			return
		case e.Record.Ended == 0:
			return
		case err == nil:
			a.results <- Saved{ID: e.Record.ID}
		}
	case Start:
		failed.Op, failed.Run = OpStart, e.Record.Run
		failed.Way = borgpb.ExitReason_EXIT_REASON_NOT_STARTED
		if err = startErr; err == nil {
			err = a.begin(e.Record)
		} else if len(e.Record.Desired.GetSpec().GetPackages()) > 0 {
			failed.Way = borgpb.ExitReason_EXIT_REASON_PACKAGE
		}
		if err == nil {
			a.results <- Observed{ID: e.Record.ID, Run: e.Record.Run, Kind: Starting}
		}
	case Update:
		failed.Op, failed.Run = OpUpdate, e.Record.Run
		var l *Launch
		if l, err = a.launch(e.Record); err == nil {
			a.limitDisk(e.Record)
			err = a.cfg.Runtime.Update(l)
		}
		if err == nil {
			a.tell(e.Record)
			a.results <- Updated{ID: e.Record.ID, Run: e.Record.Run}
		}
	case Tell:
		a.tell(e.Record)
		return
	case Warn:
		failed.Op, failed.Run = OpWarn, e.Run
		a.notify(e.ID, e.Notice)
		if e.Signal {
			err = a.cfg.Runtime.Warn(e.ID)
		}
	case Terminate:
		failed.Op, failed.Run = OpTerminate, e.Run
		a.notify(e.ID, e.Notice)
		err = a.cfg.Runtime.Terminate(e.ID)
	case Kill:
		failed.Op, failed.Run = OpKill, e.Run
		err = a.cfg.Runtime.Kill(e.ID)
	case Destroy:
		failed.Op, failed.Run = OpDestroy, e.Run
		err = a.cfg.Runtime.Destroy(e.ID)
		if err == nil && e.Ended {
			a.pushed.drop(e.ID)
			err = errors.Join(a.papers.drop(e.ID), a.dropPackages(e.ID), a.networks.drop(e.ID))
		}
	case Clear:
		if err = a.store.Clear(e.ID); err != nil {
			// It is tried again before the next run.
			a.cfg.Log.Error("what a task left on a full disk cannot be removed", "machine", a.cfg.Name, "err", err)
			return
		}
	case Remove:
		failed.Op = OpRemove
		a.pushed.drop(e.ID)
		if err = errors.Join(a.cfg.Runtime.Destroy(e.ID), a.papers.drop(e.ID), a.dropPackages(e.ID), a.networks.drop(e.ID)); err == nil {
			err = a.store.Remove(e.ID)
		}
	}
	if held, ok := errors.AsType[*portsHeldError](err); ok {
		a.results <- PortsHeld{ID: failed.ID, Run: failed.Run, Ports: held.ports, Text: held.text}
		return
	}
	if err != nil {
		failed.Text = hostpath.Text(err)
		if failed.Text != err.Error() {
			if others, ok := a.repeated.Allow(failed.Text, time.Now()); ok {
				a.cfg.Log.Warn("users are told of an error without its paths", "machine", a.cfg.Name, "copy", failed.ID.String(), "err", err, "others", others)
			}
		}
		a.results <- failed
	}
}

// notify leaves word for a task of why it is to end. That it is not told does not keep
// it running.
func (a *Agent) notify(id ID, n Notice) {
	if err := a.papers.notify(id, n); err != nil {
		a.cfg.Log.Warn("a task is not told why it is to end", "machine", a.cfg.Name, "copy", id.String(), "err", err)
	}
}

// begin writes the intent, clears what an earlier run left, and starts.
func (a *Agent) begin(r Record) error {
	if err := a.store.reserve.startable(); err != nil {
		return err
	}
	if r.Clear {
		if err := a.store.Clear(r.ID); err != nil {
			return err
		}
		r.Clear = false
	}
	if err := a.store.Save(r); err != nil {
		return err
	}
	if err := a.cfg.Runtime.Destroy(r.ID); err != nil {
		return fmt.Errorf("clear what the last run left: %w", err)
	}
	if err := a.clock.begin(a.store, r.ID, r.Run); err != nil {
		// A task is not kept from running by what is told of its output.
		a.cfg.Log.Warn("the times of a log cannot be kept", "machine", a.cfg.Name, "err", err)
	}
	a.rotator.begin(r.ID)
	if err := a.papers.makeRoom(r.ID, r.Desired.GetSpec()); err != nil {
		return err
	}
	if err := a.papers.before(r.ID, a.taskName(r), r.Desired.GetSpec().GetSecrets()); err != nil {
		return err
	}
	if err := a.pushed.before(r); err != nil {
		return err
	}
	if err := a.papers.unnotify(r.ID); err != nil {
		return err
	}
	a.tell(r)
	packages, err := a.holdPackages(a.life, r)
	if err != nil {
		return err
	}
	refused, err := a.networks.before(r)
	if err != nil {
		return err
	}
	if err := a.store.volumes.before(r.Desired); err != nil {
		return err
	}
	a.limitDisk(r)
	l, err := a.launch(r)
	if err != nil {
		refused = a.cfg.HostPaths.Hide(err.Error())
		a.cfg.Log.Warn("a task is refused", "machine", a.cfg.Name, "copy", r.ID.String(), "err", err)
	}
	if refused == "" {
		if err := a.freePorts(r, l); err != nil {
			return err
		}
		l.Packages = packages
	} else {
		l = &Launch{ID: r.ID, Run: r.Run, Dir: a.store.TaskDir(r.ID), Refused: refused}
	}
	return a.cfg.Runtime.Start(l)
}

// note logs what people want to find again.
func (a *Agent) note(ev Event) {
	a.meter.note(ev)
	log := func(id ID) *slog.Logger {
		l := a.cfg.Log.With("machine", a.cfg.Name)
		if t := a.core.copies[id]; t != nil {
			l = l.With("task", t.name())
		}
		return l.With("attempt", id.Attempt)
	}
	switch ev := ev.(type) {
	case Observed:
		switch ev.Kind {
		case Running:
			if ev.ShimLost {
				log(ev.ID).Warn("a shim died; its task goes on", "pid", ev.Pid)
			} else {
				log(ev.ID).Info("task started", "pid", ev.Pid)
			}
		case Exited:
			log(ev.ID).Info("task ended", "exit", ExitText(ev.Exit))
		case NotStarted:
			log(ev.ID).Warn("task not started", "err", ev.Text)
		}
	case Checked:
		if ev.Undecided {
			log(ev.ID).Warn("a health check could not be made", "err", ev.Failure)
		}
	case AtFault:
		log(ev.ID).Warn("a task is ended for what it does to others", "why", ev.Text)
	case PortsHeld:
		log(ev.ID).Warn("task not started: others hold its ports", "err", ev.Text)
	case Squeezed:
		a.cfg.Log.Warn("the machine is short of memory; tasks give way", "machine", a.cfg.Name, "room_bytes", ev.RoomBytes)
	case Failed:
		log(ev.ID).Warn("could not be done; tried again", "op", ev.Op.String(), "err", ev.Text)
	}
}

// Poll answers a master.
func (a *Agent) Poll(ctx context.Context, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	call := pollCall{req: req, by: door.Caller(ctx).Words(), reply: make(chan pollAnswer, 1)}
	select {
	case a.polls <- call:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-a.done:
		return nil, errStopped
	}
	// The loop has it and answers at once, whatever becomes of the asker.
	answer := <-call.reply
	return answer.resp, answer.err
}

// poll checks the fence, obeys, and answers. Only the loop calls it.
func (a *Agent) poll(req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	resp, effects, err := a.master.Poll(a.core, a.now(), req, a.store.SaveFence)
	if err == nil && !resp.Fenced {
		// Before what needs them begins.
		a.advise(req.GetPackages())
		a.networks.hear(req.GetAllocNetworks())
		a.keptAllocs = req.GetKeepAllocs()
		a.heard = true
	}
	a.apply(effects)
	if err == nil && !resp.Fenced {
		a.store.volumes.obey(a.core, req, resp, func(err error) {
			a.cfg.Log.Error("a volume cannot be deleted; it is tried again", "machine", a.cfg.Name, "err", err)
		})
		a.pushed.hear(req.GetDesired(), a.core.desired)
	}
	if err != nil {
		return nil, err
	}
	if removed := a.master.Fence.Removed; !slices.Equal(removed, *a.removed.Load()) {
		a.removed.Store(&removed)
		a.cfg.Log.Info("replicas were taken out of the cell and are not believed", "machine", a.cfg.Name, "replicas", removed)
	}
	if !resp.Fenced {
		a.private.Store(req.GetBelief().GetPrivate())
	}
	if mark := req.GetBelief().GetAuthorities(); a.cfg.TrustIs != nil && !resp.Fenced && len(mark) > 0 {
		a.cfg.TrustIs(mark)
	}
	resp.Incarnation, resp.Spec = a.incarnation, a.spec()
	if !resp.Fenced && !req.GetNoUsage() {
		resp.Usage = a.usage.take()
		if v := a.view.Load(); v != nil {
			resp.AllocUsage = a.usage.takeAllocs(v.allocs)
		}
		resp.VolumeUsage = a.volumeUse.take()
	}
	return resp, nil
}

// RenewPapers has the papers of all copies renewed now, a few at a time: who is
// believed in the cell has changed.
func (a *Agent) RenewPapers() { a.papers.hasten() }

// Removed tells, from any goroutine, that a replica was taken out of the cell, as
// masters have said: its certificate is good for nothing here.
func (a *Agent) Removed(replica uint64) bool {
	_, found := slices.BinarySearch(*a.removed.Load(), replica)
	return found
}

// Describe says what machine this is.
func (a *Agent) Describe() *borgrpc.DescribeResponse {
	// The fence on disk is never behind the one obeyed.
	fence, err := LoadFence(a.cfg.Dir)
	if err != nil {
		a.cfg.Log.Error("fence cannot be read", "err", err)
	}
	return &borgrpc.DescribeResponse{
		Name:   a.cfg.Name,
		Spec:   proto.CloneOf(a.cfg.Spec),
		CellId: fence.CellID,
		Build:  a.cfg.Build,
	}
}
