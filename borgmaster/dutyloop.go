package borgmaster

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/borgmaster/duty"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	dutyTick = 100 * time.Millisecond
	// Without a tick for so long, this process itself stood still.
	dutyPausedNs = int64(3 * dutyTick)
	// Probes and proposals of the duties under way at most; what is beyond it
	// waits its turn.
	maxDutyActions = 64
	// A proposal of the duties that takes longer has failed; they come back to
	// it.
	dutyTimeout = 10 * time.Second
	// A try of a replica's door takes no longer.
	knockTimeout = 500 * time.Millisecond
)

// dutyLoop is the shell around the duties: it hears reports, the log and the
// clock, and carries out what the core decides.
type dutyLoop struct {
	m       *Master
	wake    chan struct{}
	actions chan struct{}
	running sync.WaitGroup

	mu sync.Mutex
	// Guarded by mu.
	core *duty.Core
	// The term that the core is at work for; 0: not elected. Guarded by mu.
	term uint64
	// Who was elected before this replica was; 0: not known. Guarded by mu.
	before uint64
	// Last step of the core in this term. Guarded by mu.
	steppedNs int64
	// Machines that changed in the cell. Guarded by mu.
	changed map[string]bool
	// Replicas whose doors are being tried. Guarded by mu.
	knocking map[uint64]bool
	// Ends with Run. Guarded by mu.
	ctx context.Context
}

func newDutyLoop(m *Master) *dutyLoop {
	return &dutyLoop{
		m: m, wake: make(chan struct{}, 1), actions: make(chan struct{}, maxDutyActions),
		core: duty.New(m.cfg.Downs), changed: map[string]bool{}, knocking: map[uint64]bool{},
	}
}

// machineChanged says that the cell changed a machine. It does not block.
func (d *dutyLoop) machineChanged(name string) {
	d.mu.Lock()
	d.changed[name] = true
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run does the duties while this replica is elected, until ctx ends.
func (d *dutyLoop) Run(ctx context.Context) {
	d.mu.Lock()
	d.ctx = ctx
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.ctx, d.term = nil, 0
		d.mu.Unlock()
		d.running.Wait()
	}()
	ticker := time.NewTicker(dutyTick)
	defer ticker.Stop()
	last := d.m.cfg.MonotonicNs()
	for {
		changed := d.m.stateChanged.Wait()
		d.follow()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-d.wake:
		case <-ticker.C:
			now := d.m.cfg.MonotonicNs()
			d.tick(now - last - int64(dutyTick))
			last = now
		}
	}
}

// silent names the machines that are silent and not down, while this replica is elected.
func (d *dutyLoop) silent() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term == 0 {
		return nil
	}
	return d.core.Silent(d.m.cfg.MonotonicNs())
}

// tick lets a tick pass that came so much later than it was due.
func (d *dutyLoop) tick(lateNs int64) {
	state := d.m.cfg.Log.State()
	ticked := duty.Ticked{Applied: state.Applied, Members: d.m.memberIDs(), LateNs: lateNs, Raft: d.raftHeard()}
	d.m.cfg.Log.View(func(c *cell.Cell) {
		if ticked.Format = c.Format(); c.NumAdmins() == 0 {
			ticked.FirstAdmin = d.m.cfg.FirstAdmin
		}
		ticked.LostDeclared, ticked.DueInNs, ticked.Ending = c.LostDeclared() > 0, c.DueInNs(), c.Ending()
	})
	d.step(ticked)
	if state.Ready {
		d.lookAtDoors(state.Replica, ticked.Members)
	}
}

// raftHeard is when the log last heard the other replicas.
func (d *dutyLoop) raftHeard() (heard []duty.RaftHeard) {
	if d.m.cfg.Insides == nil {
		return nil
	}
	for _, p := range d.m.cfg.Insides.Peers() {
		heard = append(heard, duty.RaftHeard{ID: p.ID, AgoNs: int64(time.Since(p.At) + p.Heard)})
	}
	return heard
}

// follow begins or ends the duties with this replica's election, and tells
// them what changed in the cell.
func (d *dutyLoop) follow() {
	state := d.m.cfg.Log.State()
	d.mu.Lock()
	begun, changed := d.term, d.changed
	d.changed = map[string]bool{}
	if state.Elected != 0 && state.Elected != state.Replica {
		d.before = state.Elected
	}
	if !state.Ready {
		d.term = 0
	}
	before := d.before
	d.mu.Unlock()
	if !state.Ready {
		return
	}
	if begun != state.Term {
		begin := duty.Elected{Term: state.Term, Self: state.Replica, Before: before, Members: d.m.memberIDs()}
		d.m.cfg.Log.View(func(c *cell.Cell) {
			for machine := range c.Machines() {
				begin.Machines = append(begin.Machines, duty.Seen(c, machine))
			}
		})
		d.mu.Lock()
		d.steppedNs = d.m.cfg.MonotonicNs()
		d.core.Step(d.steppedNs, begin)
		d.term = state.Term
		d.mu.Unlock()
	}
	var events []duty.Event
	d.m.cfg.Log.View(func(c *cell.Cell) {
		for name := range changed {
			if machine := c.Machine(name); machine != nil {
				events = append(events, duty.Seen(c, machine))
			} else {
				events = append(events, duty.MachineGone{Name: name})
			}
		}
	})
	for _, e := range events {
		d.step(e)
	}
}

// raises reports whether the cell is about to be raised from that format, as far as this
// elected replica knows.
func (d *dutyLoop) raises(format uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term == 0 {
		// An elected replica begins its duties a moment later, if it has any.
		return d.ctx != nil && d.m.cfg.Log.State().Ready
	}
	return d.core.Raises(d.m.cfg.MonotonicNs(), format)
}

// reach is how the duties see the machines; nil: this replica is not elected.
func (d *dutyLoop) reach() *borgrpc.Reach {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term == 0 {
		return nil
	}
	return d.core.Reach()
}

// lookAtDoors tells the duties of replicas at whose addresses nobody listens. A
// connection to each is kept for that: it ends with the replica's process. It also fails
// when a replica takes too long for a handshake; but only where no process listens is a
// connection refused, which takes the kernel there and nobody's time.
func (d *dutyLoop) lookAtDoors(self uint64, members []uint64) {
	for _, id := range members {
		if id == self {
			continue
		}
		conn, err := d.m.replicaConn(id)
		if err != nil {
			// This replica stops, or the member has just left.
			continue
		}
		switch conn.GetState() {
		case connectivity.Idle:
			conn.Connect()
		case connectivity.TransientFailure:
			d.knock(id)
		}
	}
}

// knock tries the address of a replica, once at a time, and tells the duties if it refuses.
func (d *dutyLoop) knock(id uint64) {
	addr := ""
	for _, member := range d.m.cfg.Members.Members() {
		if member.Id == id {
			addr = member.Addr
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil || d.knocking[id] {
		return
	}
	d.knocking[id] = true
	ctx := d.ctx
	d.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, knockTimeout)
		defer cancel()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			conn.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			d.step(duty.DoorClosed{Replica: id})
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.knocking, id)
	})
}

// step drives the core while elected, and carries out what it decides.
func (d *dutyLoop) step(event duty.Event) {
	d.mu.Lock()
	if d.term == 0 || d.ctx == nil {
		d.mu.Unlock()
		return
	}
	ctx, term := d.ctx, d.term
	now := d.m.cfg.MonotonicNs()
	if pausedNs := now - d.steppedNs; pausedNs > dutyPausedNs {
		d.core.Step(now, duty.Paused{Ns: pausedNs})
	}
	d.steppedNs = now
	_, before := d.core.Live()
	// Started under mu, so that none starts once Run waits for them.
	for _, e := range d.core.Step(now, event) {
		d.running.Go(func() { d.act(ctx, term, e) })
	}
	live, version := d.core.Live()
	d.mu.Unlock()
	if version != before {
		d.m.shareSets.Inc()
		d.m.cfg.Logger.Info("replicas that share the machines", "live", live, "term", term)
	}
}

// hear takes in a shard's report and says who shares the machines.
func (d *dutyLoop) hear(req *borgrpc.ReportRequest) (*borgrpc.ReportResponse, error) {
	d.mu.Lock()
	ready := d.term != 0 && d.ctx != nil
	d.mu.Unlock()
	if !ready {
		return nil, status.Error(codes.Unavailable, "this replica has only just been elected; try again")
	}
	d.step(duty.ReportOf(req))
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.Answer(), nil
}

// act carries out one effect.
func (d *dutyLoop) act(ctx context.Context, term uint64, effect duty.Effect) {
	select {
	case d.actions <- struct{}{}:
		defer func() { <-d.actions }()
	case <-ctx.Done():
		return
	}
	switch e := effect.(type) {
	case duty.Probe:
		resp, ok := d.m.probeFrom(ctx, e.Replica, e.Machine, e.Addr, term)
		d.step(duty.Probed{Machine: e.Machine, Replica: e.Replica, NoAnswer: !ok, Reached: resp.GetReached(), Err: resp.GetError()})
	case duty.Propose:
		ok := d.propose(ctx, e)
		if e.Machine != "" {
			d.step(duty.Proposed{Machine: e.Machine, OK: ok})
		}
	}
}

func (d *dutyLoop) propose(ctx context.Context, e duty.Propose) bool {
	ctx, cancel := context.WithTimeout(ctx, dutyTimeout)
	defer cancel()
	e.Op.Principal = ownOp
	result, err := d.m.cfg.Log.Propose(ctx, e.Op)
	if err == nil && result.GetRefusal() != nil {
		err = refusalError(result.Refusal)
	}
	logger := d.m.cfg.Logger
	switch {
	case err != nil && ctx.Err() == nil:
		logger.Warn("op of the elected master was not done", "machine", e.Machine, "err", err)
	case err == nil:
		switch op := e.Op.Op.(type) {
		case *borgpb.Op_MachineDown:
			logger.Warn("machine is down", "machine", e.Machine, "term", op.MachineDown.Term, "reason", op.MachineDown.Reason)
		case *borgpb.Op_MachineUp:
			logger.Info("machine is up again", "machine", e.Machine)
		case *borgpb.Op_Grant:
			logger.Info("the cell has its first admin", "user", op.Grant.User)
		case *borgpb.Op_RaiseFormat:
			logger.Info("cell is raised to a later format", "format", op.RaiseFormat.Format)
		}
	}
	return err == nil
}

// unknownOn returns the copies on a machine that the cell knows nothing of.
func (m *Master) unknownOn(machine string) []*borgpb.TaskReport {
	m.duty.mu.Lock()
	defer m.duty.mu.Unlock()
	if m.duty.term == 0 {
		return nil
	}
	return m.duty.core.Unknown(machine)
}

func (m *Master) memberIDs() []uint64 {
	var ids []uint64
	for _, member := range m.cfg.Members.Members() {
		ids = append(ids, member.Id)
	}
	slices.Sort(ids)
	return ids
}

// live returns the replicas that share the machines; none while this replica
// is not elected.
func (d *dutyLoop) live() []uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term == 0 {
		return nil
	}
	live, _ := d.core.Live()
	return slices.Clone(live)
}
