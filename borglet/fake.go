package borglet

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"borg/proto/borgpb"
)

// Fake is a Runtime without processes: runs begin at once and end when they
// are told to, or when a test says so.
type Fake struct {
	// Caps is what it says it can do.
	Caps Capabilities
	// Refuse, if set, is asked before a run begins; an error keeps it from
	// beginning.
	Refuse func(*Launch) error

	events chan Observed
	// Signals that were sent, while nothing is sent.
	Signals []syscall.Signal

	mu sync.Mutex
	// runs are those that live. Guarded by mu.
	runs map[ID]*Launch
	// pids counts up. Guarded by mu.
	pids int64
	// deaf copies do not end by SIGTERM. Guarded by mu.
	deaf map[ID]bool
}

// NewFake returns a Fake without runs.
func NewFake() *Fake {
	return &Fake{
		Caps:   Capabilities{Runtime: "fake", Cgroup: "none", Seccomp: "none", Userns: "none", Ports: "told", Network: "machine", OwnFiles: true},
		events: make(chan Observed, 1<<14),
		runs:   map[ID]*Launch{}, deaf: map[ID]bool{},
	}
}

// Capabilities returns Caps.
func (f *Fake) Capabilities() Capabilities { return f.Caps }

// Start begins a run.
func (f *Fake) Start(l *Launch) error {
	if f.Refuse != nil {
		if err := f.Refuse(l); err != nil {
			return err
		}
	}
	if l.Refused != "" {
		f.events <- Observed{ID: l.ID, Run: l.Run, Kind: Exited, Exit: &borgpb.Exit{Code: 127, Error: l.Refused, EndedWallNs: time.Now().UnixNano()}}
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs[l.ID] != nil {
		return fmt.Errorf("copy %s runs already", l.ID)
	}
	f.runs[l.ID] = l
	f.pids++
	f.events <- Observed{ID: l.ID, Run: l.Run, Kind: Running, Pid: f.pids, StartedWallNs: time.Now().UnixNano()}
	return nil
}

// Recover finds nothing: a Fake's runs end with it.
func (f *Fake) Recover(*Launch) (Observed, error) { return Observed{Kind: Absent}, nil }

// Settle does nothing.
func (f *Fake) Settle() error { return nil }

// End ends a run as exit says.
func (f *Fake) End(id ID, exit *borgpb.Exit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.runs[id]
	if l == nil {
		return
	}
	delete(f.runs, id)
	if exit.GetEndedWallNs() == 0 {
		exit.EndedWallNs = time.Now().UnixNano()
	}
	f.events <- Observed{ID: id, Run: l.Run, Kind: Exited, Exit: exit}
}

// Live lists the copies that run, in the order of reports.
func (f *Fake) Live() []ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Keys(f.runs), compareIDs)
}

// Launched returns what a living copy was started with.
func (f *Fake) Launched(id ID) *Launch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs[id]
}

// Warn does nothing: what runs here expects it.
func (f *Fake) Warn(ID) error { return nil }

// Terminate ends a run by signal 15, unless it is deaf.
func (f *Fake) Terminate(id ID) error {
	f.mu.Lock()
	deaf := f.deaf[id]
	f.mu.Unlock()
	if !deaf {
		f.End(id, &borgpb.Exit{Signal: 15})
	}
	return nil
}

// Signal notes a signal, which changes nothing.
func (f *Fake) Signal(id ID, signal syscall.Signal) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs[id] == nil {
		return fmt.Errorf("copy %s does not run", id)
	}
	f.Signals = append(f.Signals, signal)
	return nil
}

// Kill ends a run by signal 9.
func (f *Fake) Kill(id ID) error {
	f.End(id, &borgpb.Exit{Signal: 9})
	return nil
}

// Update takes the new limits.
func (f *Fake) Update(l *Launch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs[l.ID] == nil {
		return fmt.Errorf("copy %s does not run", l.ID)
	}
	f.runs[l.ID] = l
	return nil
}

// Stats says that each run uses its limits.
func (f *Fake) Stats(ids []ID) map[ID]Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[ID]Stats, len(ids))
	for _, id := range ids {
		if l := f.runs[id]; l != nil {
			out[id] = Stats{At: time.Now(), MemBytes: l.Limits.MemBytes}
		}
	}
	return out
}

// AllocStats says that allocs use what the runs in them do.
func (f *Fake) AllocStats(allocs []string) map[string]Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]Stats{}
	for _, l := range f.runs {
		if slices.Contains(allocs, l.Alloc) {
			out[l.Alloc] = Stats{At: time.Now(), MemBytes: out[l.Alloc].MemBytes + l.Limits.MemBytes}
		}
	}
	return out
}

// Exec has no processes to run a program beside.
func (f *Fake) Exec(p *Program) (*Execution, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs[p.ID] == nil {
		return nil, ErrNotRunning
	}
	return nil, &ProgramError{Text: "a fake runtime runs no programs"}
}

// Destroy has nothing to take away.
func (f *Fake) Destroy(ID) error { return nil }

// Events are what happens to the runs.
func (f *Fake) Events() <-chan Observed { return f.events }

// Close does nothing.
func (f *Fake) Close() error { return nil }
