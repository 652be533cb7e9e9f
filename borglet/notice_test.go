package borglet

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// eviction is one copy that is to stop, and what becomes of it. Times are since that was
// decided; zero: it did not happen.
type eviction struct {
	t    *testing.T
	core *Core
	id   ID
	now  time.Duration
	// What its machine is asked to do, and when it hears of it.
	order, stop *borgrpc.Stop
	heard       time.Duration
	// As last written by a borglet.
	saved Record
	// What its process heard first, and when it ended.
	warned, termed, killed, ended time.Duration
	// How long it takes to end after SIGTERM; it does not when that is negative.
	takes time.Duration
	endAt time.Duration
	exit  *borgpb.Exit
	// Its last state was reported.
	stopped bool
}

const sinceBoot = time.Hour

func (e *eviction) moment() Now {
	return Now{MonoNs: int64(sinceBoot + e.now), WallNs: epoch.Add(e.now).UnixNano()}
}

func (e *eviction) step(ev Event) {
	for _, f := range e.core.Step(e.moment(), ev) {
		switch f := f.(type) {
		case Save:
			e.saved = f.Record
			if f.Record.Ended != 0 {
				e.stopped = f.Record.Ended == borgpb.AttemptState_ATTEMPT_STATE_STOPPED
				e.core.Step(e.moment(), Saved{f.Record.ID})
			}
		case Start:
			e.saved, e.ended, e.endAt = f.Record, 0, 0
			defer e.step(Observed{ID: e.id, Run: f.Record.Run, Kind: Running, Pid: 7, StartedWallNs: 1})
		case Warn:
			e.first(&e.warned)
		case Terminate:
			if e.first(&e.termed) && e.takes >= 0 {
				e.endAt, e.exit = e.now+e.takes, &borgpb.Exit{}
			}
		case Kill:
			e.first(&e.killed)
			e.end(&borgpb.Exit{Signal: 9})
		}
	}
}

// first notes when something happened for the first time; never at zero.
func (e *eviction) first(at *time.Duration) bool {
	if *at != 0 {
		return false
	}
	*at = max(e.now, 1)
	return true
}

func (e *eviction) end(exit *borgpb.Exit) {
	if e.ended == 0 {
		e.exit, e.ended = exit, max(e.now, 1)
		if e.core != nil {
			e.step(Observed{ID: e.id, Run: e.saved.Run, Kind: Exited, Exit: exit})
		}
	}
}

func newEviction(t *testing.T, takes time.Duration) *eviction {
	e := &eviction{t: t, core: NewCore(CoreConfig{Backoff: DefaultBackoff(), Boot: "b"}), takes: takes}
	var err error
	copyID := &borgrpc.CopyID{JobUid: "1-5-0", Attempt: 1}
	if e.id, err = IDOf(copyID); err != nil {
		t.Fatal(err)
	}
	d := &borgrpc.Desired{Copy: copyID, User: "ann", Job: "low", Kind: borgpb.JobKind_JOB_KIND_SERVICE, Version: 1, Spec: &borgpb.TaskSpec{Args: []string{"x"}}}
	e.step(Polled{Desired: []*borgrpc.Desired{d}})
	return e
}

// restart is the next borglet, on what the last one left.
func (e *eviction) restart() {
	e.core = NewCore(CoreConfig{Backoff: DefaultBackoff(), Boot: "b"})
	o := Observed{ID: e.id, Run: e.saved.Run, Kind: Running, Pid: 7, StartedWallNs: 1}
	if e.ended != 0 {
		o = Observed{ID: e.id, Run: e.saved.Run, Kind: Exited, Exit: e.exit}
	}
	e.step(Recovered{[]Found{{Record: e.saved, Observed: o}}})
}

// run lets time pass until the copy has stopped, or its machine has died at dies. The
// borglet is killed at crash and the next one begins at back; zero: never.
func (e *eviction) run(crash, back, dies time.Duration) {
	const never = time.Duration(1<<63 - 1)
	or := func(d time.Duration) time.Duration {
		if d == 0 {
			return never
		}
		return d
	}
	crash, back, dies = or(crash), or(back), or(dies)
	for range 1000 {
		timer, end, order := never, never, never
		if e.core != nil {
			if e.order != nil {
				order = max(e.heard, e.now)
			}
			if ns, ok := e.core.NextNs(); ok {
				timer = time.Duration(ns) - sinceBoot
			}
		}
		if e.ended == 0 && e.endAt != 0 {
			end = e.endAt
		}
		next := min(timer, end, order, crash, back, dies)
		if e.stopped || next == never || next == dies {
			return
		}
		e.now = max(e.now, next)
		switch next {
		case end:
			e.end(e.exit)
		case crash:
			e.core, crash = nil, never
		case back:
			back = never
			e.restart()
		case order:
			e.heard, e.order, order = e.now, nil, never
			e.step(Polled{Stops: []*borgrpc.Stop{e.stop}})
		default:
			e.step(Tick{})
		}
	}
	e.t.Fatal("it never ends")
}

// TestScenario18 stops a thousand tasks that asked to be told. A victim that traps
// SIGTERM gets it 30 s before SIGKILL, its own grace, or 10 s before when whoever takes
// its place waits no longer, and what is left of that before it with the notice. Of all,
// with borglets that are killed, tasks that end by themselves and machines that die
// meanwhile, four in five have been told.
func TestScenario18(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BORG_NOTICE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	r := rand.New(rand.NewPCG(seed, 18))
	again := func() string {
		return "; repeat with: BORG_NOTICE_SEED=" + strconv.FormatUint(seed, 10) + " go test ./borglet -run TestScenario18"
	}
	const evictions = 1000
	told, killed, calm := 0, 0, 0
	for range evictions {
		// As the cell has it: the bound is who takes the place, and SIGTERM comes first.
		bound := []time.Duration{10 * time.Second, 30 * time.Second, 45 * time.Second}[r.IntN(3)]
		grace := min(30*time.Second, bound)
		notice := min(time.Duration(r.IntN(4))*10*time.Second, bound-grace)
		e := newEviction(t, []time.Duration{-1, time.Duration(r.Int64N(int64(50 * time.Second)))}[r.IntN(2)])
		var crash, back, dies time.Duration
		switch r.IntN(10) {
		case 0:
			dies = time.Duration(1 + r.Int64N(int64(bound)))
		case 1, 2, 3:
			crash = time.Duration(1 + r.Int64N(int64(bound)))
			back = crash + time.Duration(1+r.Int64N(int64(20*time.Second)))
		case 4:
			e.endAt, e.exit = time.Duration(1+r.Int64N(int64(bound))), &borgpb.Exit{Code: 1}
		}
		// A machine hears with its next poll.
		e.heard = time.Duration(1 + r.Int64N(int64(4*time.Second)))
		e.stop = &borgrpc.Stop{
			Copy: e.id.wire(), Cause: borgpb.StopCause_STOP_CAUSE_PREEMPTION, Reason: "makes room for bob/prod/0", GraceNs: int64(grace), NoticeNs: int64(notice),
		}
		e.order = e.stop
		e.run(crash, back, dies)
		if e.warned != 0 || e.termed != 0 {
			told++
		}
		if e.killed == 0 {
			continue
		}
		killed++
		switch left := (e.killed - e.termed).Round(time.Millisecond); {
		case e.termed == 0 || (notice > 0) != (e.warned != 0):
			t.Fatalf("with a notice of %v it was told at %v, got SIGTERM at %v, and SIGKILL at %v%s", notice, e.warned, e.termed, e.killed, again())
		case crash == 0 && (left != grace || (e.killed-e.heard).Round(time.Millisecond) != notice+grace || notice+grace > bound):
			t.Fatalf("SIGTERM at %v and SIGKILL at %v, want %v and %v after %v%s", e.termed, e.killed, notice, notice+grace, e.heard, again())
		case crash == 0:
			calm++
		case left < grace:
			t.Fatalf("the borglet was restarted, and SIGKILL came %v after SIGTERM, want at least %v%s", left, grace, again())
		}
	}
	t.Logf("%d of %d were told before their end, %d were killed, %d of them where nothing else went wrong", told, evictions, killed, calm)
	if 5*told < 4*evictions || calm < 100 {
		t.Errorf("%d of %d were told, want four in five; %d were killed by a borglet that lived%s", told, evictions, calm, again())
	}
}
