package borglet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"borg/borglet/beneath"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// FilesPapers is where the small files lie that a copy sees, beside its papers. Each is
// replaced as a whole when the cell has a newer one: who opens it finds the old one
// or the new one.
const FilesPapers = "files"

// owedPaper lists, beside them, the signals that the copy has yet to get for files that
// were replaced. It is written before they are and goes after the signals: a borglet that
// is killed in between leaves it to the next one.
const owedPaper = "owed"

// repushAfter is the wait after files that were not to be had.
const repushAfter = 5 * time.Second

// pushed keeps the files of copies as the cell has them. With each poll masters tell
// which versions those are; what is in them is asked for when they change. A nil pushed
// knows no files.
type pushed struct {
	papers *papers
	issuer Issuer
	log    *slog.Logger
	// signal tells a copy that runs that its files have changed.
	signal func(ID, syscall.Signal) error
	// wake has run look at once.
	wake chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	copies map[ID]*pushedTo
}

// pushedTo is how the files of a copy stand.
type pushedTo struct {
	desired *borgrpc.Desired
	// wanted and have are versions, in the order of the spec's files; have is nil when it is
	// not known, as after a restart of the borglet.
	wanted, have []uint64
	// again is before when it is not asked for.
	again time.Time
}

func newPushed(p *papers, cfg Config) *pushed {
	if p == nil {
		return nil
	}
	return &pushed{
		papers: p, issuer: cfg.Issuer, log: cfg.Log.With("machine", cfg.Name), signal: cfg.Runtime.Signal,
		wake: make(chan struct{}, 1), copies: map[ID]*pushedTo{},
	}
}

// hear takes in which versions a master says that count.
func (p *pushed) hear(desired []*borgrpc.Desired, specOf func(ID) *borgrpc.Desired) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range desired {
		id, err := IDOf(d.GetCopy())
		if err != nil || len(d.GetFiles()) == 0 {
			continue
		}
		whole := specOf(id)
		versions := make([]uint64, len(d.Files))
		for i, f := range d.Files {
			versions[i] = f.Version
		}
		if whole == nil || len(versions) != len(whole.GetSpec().GetFiles()) {
			// It hears of another spec than it has.
			continue
		}
		to := p.copies[id]
		if to == nil {
			to = &pushedTo{}
			p.copies[id] = to
		}
		if to.desired = whole; !slices.Equal(to.wanted, versions) {
			to.wanted, to.again = versions, time.Time{}
			select {
			case p.wake <- struct{}{}:
			default:
			}
		}
	}
}

// before has the files there before a run begins. If they are not to be had, those of
// an earlier run will do.
func (p *pushed) before(r Record) error {
	named := r.Desired.GetSpec().GetFiles()
	if p == nil {
		if len(named) > 0 {
			return errors.New("the task names files, and this machine has no directory in memory to put them into; see the borglet's log")
		}
		return nil
	}
	dir := filepath.Join(p.papers.path(r.ID), FilesPapers)
	if len(named) == 0 {
		return errors.Join(os.RemoveAll(dir), p.settle(r.ID))
	}
	ctx, cancel := context.WithTimeout(context.Background(), issueBound)
	defer cancel()
	given, err := p.issuer.Files(ctx, r.ID)
	if err == nil {
		// It reads them when it begins.
		err = errors.Join(p.put(r.ID, named, given), p.settle(r.ID))
	}
	for _, f := range named {
		if _, statErr := os.Stat(filepath.Join(dir, filepath.FromSlash(f.GetName()))); statErr != nil {
			if err == nil {
				err = fmt.Errorf("user %s has no file %s", r.Desired.GetUser(), f.GetName())
			}
			return fmt.Errorf("get the task's files: %w", err)
		}
	}
	if err != nil {
		p.log.Warn("no new files for a task; it starts with those that it has", "copy", r.ID.String(), "err", err)
	}
	return nil
}

// run replaces files as they change, until ctx ends.
func (p *pushed) run(ctx context.Context, runs func() map[ID]bool) {
	if p == nil {
		return
	}
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-ticker.C:
		}
		for _, id := range p.stale(runs()) {
			if err := p.refresh(ctx, id); err != nil && ctx.Err() == nil {
				p.log.Warn("the files of a task cannot be renewed; tried again", "copy", id.String(), "err", err)
			}
		}
	}
}

// stale are the copies that run of which the cell has other files. Those that do not run
// get theirs before they do.
func (p *pushed) stale(runs map[ID]bool) (ids []ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for id, to := range p.copies {
		if runs[id] && !slices.Equal(to.wanted, to.have) && !now.Before(to.again) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

// refresh gets the files of a copy, and tells it if they are others than it had.
func (p *pushed) refresh(ctx context.Context, id ID) error {
	p.mu.Lock()
	to := p.copies[id]
	if to == nil {
		p.mu.Unlock()
		return nil
	}
	to.again = time.Now().Add(repushAfter)
	named, wanted := to.desired.GetSpec().GetFiles(), to.wanted
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, issueBound)
	defer cancel()
	given, err := p.issuer.Files(ctx, id)
	if err != nil {
		return err
	}
	// A replica that is behind gives older ones than the one that told of them, and a task
	// does not go back.
	given, whole := newest(given, named, wanted)
	if err := p.put(id, named, given); err != nil {
		return err
	}
	owed, err := p.owed(id)
	if err != nil {
		return err
	}
	for _, s := range owed {
		if err := p.signal(id, s); err != nil {
			return fmt.Errorf("tell it of its files: %w", err)
		}
	}
	if err := p.settle(id); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.copies[id] == to && whole {
		to.have = wanted
	}
	return nil
}

// newest leaves out what is older than what is wanted, and says whether all that is wanted
// is there.
func newest(given []*borgrpc.TaskFile, named []*borgpb.PushedFile, wanted []uint64) (list []*borgrpc.TaskFile, whole bool) {
	whole = true
	for i, f := range named {
		at := slices.IndexFunc(given, func(g *borgrpc.TaskFile) bool { return g.GetName() == f.GetName() })
		switch {
		case at >= 0 && given[at].GetVersion() >= wanted[i]:
			list = append(list, given[at])
		case at >= 0 || wanted[i] > 0:
			whole = false
		}
	}
	return list, whole
}

// put replaces the files that differ, and has written down before which signals are owed
// for that. Files that are not given stay as they are.
func (p *pushed) put(id ID, named []*borgpb.PushedFile, given []*borgrpc.TaskFile) error {
	p.papers.mu.Lock()
	defer p.papers.mu.Unlock()
	if _, live := p.papers.due[id]; !live {
		return nil
	}
	dir := filepath.Join(p.papers.path(id), FilesPapers)
	for _, f := range named {
		at := slices.IndexFunc(given, func(g *borgrpc.TaskFile) bool { return g.GetName() == f.GetName() })
		if at < 0 {
			continue
		}
		if !filepath.IsLocal(f.GetName()) {
			return fmt.Errorf("write files: %q is not a name of a file", f.GetName())
		}
		path := filepath.Join(dir, filepath.FromSlash(f.GetName()))
		// What is there and cannot be read, or is no file, is replaced.
		was, err := beneath.ReadFile(filepath.Dir(path), filepath.Base(path))
		if err == nil && bytes.Equal(was, given[at].GetContent()) {
			continue
		}
		if err := p.owe(id, f.GetSignal()); err != nil {
			return fmt.Errorf("write files: %w", err)
		}
		if err := writePushed(path, given[at].GetContent()); err != nil {
			return fullPapers(fmt.Errorf("write files: %w", err))
		}
	}
	return nil
}

// owe writes down that a copy is to get a signal.
func (p *pushed) owe(id ID, s borgpb.ReloadSignal) error {
	if _, asks := reloadSignals[s]; !asks {
		return nil
	}
	was, err := p.owed(id)
	if err != nil || slices.Contains(was, reloadSignals[s]) {
		return err
	}
	var text []byte
	for _, one := range append(was, reloadSignals[s]) {
		text = fmt.Appendln(text, int(one))
	}
	return replaceFile(filepath.Join(p.papers.path(id), owedPaper), text, 0o400)
}

// owed are the signals that a copy is to get, each once.
func (p *pushed) owed(id ID) (list []syscall.Signal, err error) {
	text, err := os.ReadFile(filepath.Join(p.papers.path(id), owedPaper))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read which signals are owed: %w", err)
	}
	for _, s := range slices.Sorted(maps.Values(reloadSignals)) {
		if slices.Contains(strings.Fields(string(text)), strconv.Itoa(int(s))) {
			list = append(list, s)
		}
	}
	return list, nil
}

// settle writes down that a copy is owed no signal.
func (p *pushed) settle(id ID) error {
	err := os.Remove(filepath.Join(p.papers.path(id), owedPaper))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write down that no signal is owed: %w", err)
	}
	return nil
}

// writePushed replaces one file. No name of a file of the cell begins with a dot.
func writePushed(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return replaceFile(path, content, 0o444)
}

// replaceFile puts a whole file in the place of another.
func replaceFile(path string, content []byte, mode fs.FileMode) error {
	made := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(made, content, mode); err != nil {
		// What is half written takes room.
		return errors.Join(err, os.Remove(made))
	}
	return os.Rename(made, path)
}

var reloadSignals = map[borgpb.ReloadSignal]syscall.Signal{
	borgpb.ReloadSignal_RELOAD_SIGNAL_HUP:  syscall.SIGHUP,
	borgpb.ReloadSignal_RELOAD_SIGNAL_USR1: syscall.SIGUSR1,
	borgpb.ReloadSignal_RELOAD_SIGNAL_USR2: syscall.SIGUSR2,
}

// drop forgets a copy that has ended; its files go with its papers.
func (p *pushed) drop(id ID) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.copies, id)
}
