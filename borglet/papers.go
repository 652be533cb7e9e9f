package borglet

import (
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
	"time"

	"borg/proto/borgrpc"
)

// Papers are what a copy is given to prove who it is, and the secrets that it
// names: files, by their paths below its directory.
type Papers struct {
	Files map[string][]byte
	// When others are asked for.
	RenewAt time.Time
	// When they run out; zero: not known.
	Expires time.Time
}

// Format implements fmt.Formatter for all verbs: the files are named, and what is in
// them is not shown.
func (p Papers) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "papers %s until %s", strings.Join(slices.Sorted(maps.Keys(p.Files)), ", "), p.RenewAt.UTC().Format(time.RFC3339))
}

// LogValue implements slog.LogValuer.
func (p Papers) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

// Files of a copy's papers.
const (
	// Key, certificate and authorities in one file, so that they always belong
	// together.
	IdentityPaper = "identity.pem"
	// The same in files of their own, for programs that want that.
	KeyPaper  = "key.pem"
	CertPaper = "cert.pem"
	CAPaper   = "ca.pem"
	// Where the masters are, as borgcfg takes it.
	CellPaper = "cell.yaml"
	// Directory of the secrets, a file for each.
	SecretPapers = "secrets"

	// PapersPath is where a task with a file system of its own sees its papers.
	PapersPath = "/run/borg"
	// currentPapers is a link to the directory of the papers that count, so that
	// all of them change at once.
	currentPapers = "current"
)

// Issuer asks the masters for the papers of a copy. They give none for a copy
// that the cell does not have running on this machine.
type Issuer interface {
	Issue(ctx context.Context, id ID) (*Papers, error)
	// Files are the small files that its spec names, as far as the cell has them.
	Files(ctx context.Context, id ID) ([]*borgrpc.TaskFile, error)
	// PackageCredentials are the secrets, by name, with which its packages are brought.
	PackageCredentials(ctx context.Context, id ID) (map[string][]byte, error)
}

const (
	// issueBound is how long a start waits for papers.
	issueBound = 5 * time.Second
	// renewEvery is how often is looked for papers that are due.
	renewEvery = time.Second
	// reissueAfter is the wait after papers that were not to be had.
	reissueAfter = 30 * time.Second
	// maxIssueFailures ends a round of renewals, and the next one begins after
	// awayPause: the masters are away.
	maxIssueFailures = 3
	awayPause        = 10 * time.Second
)

// papers keeps the papers of the copies that live, in memory:
//
//	<dir>/<copy>/<n>/     what was given last
//	<dir>/<copy>/current  a link to it
//
// A nil papers gives none.
type papers struct {
	dir    string
	issuer Issuer
	log    *slog.Logger
	// bounded: as BoundPapers of Config.
	bounded bool

	mu sync.Mutex
	// When the papers of a copy are renewed; only of copies that may have some.
	// Guarded by mu, as are the files.
	due map[ID]time.Time
	// When those that have been given run out. Guarded by mu.
	ends map[ID]time.Time
}

func newPapers(cfg Config) *papers {
	if cfg.PapersDir == "" {
		return nil
	}
	return &papers{dir: cfg.PapersDir, issuer: cfg.Issuer, bounded: cfg.BoundPapers, log: cfg.Log.With("machine", cfg.Name), due: map[ID]time.Time{}, ends: map[ID]time.Time{}}
}

// path is a copy's directory of papers; empty: there are none here.
func (p *papers) path(id ID) string {
	if p == nil {
		return ""
	}
	return filepath.Join(p.dir, id.String())
}

// sweep removes papers of copies that have ended, and has those of the others
// renewed at once: when they are due is not written down.
func (p *papers) sweep(records []Record) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range records {
		if r.Ended == 0 && r.Run > 0 {
			p.due[r.ID] = time.Time{}
		}
	}
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return fmt.Errorf("read papers: %w", err)
	}
	for _, e := range entries {
		if id, err := ParseID(e.Name()); err == nil {
			if _, live := p.due[id]; live {
				continue
			}
		}
		if err := p.remove(filepath.Join(p.dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// before has papers there before a run begins. A task that names secrets does
// not begin without them; any other may, when the masters are away: no failure
// of theirs keeps a task from being started again.
func (p *papers) before(id ID, task string, secrets []string) error {
	if p == nil {
		if len(secrets) > 0 {
			return errors.New("the task names secrets, and this machine has no directory in memory to put them into; see the borglet's log")
		}
		return nil
	}
	if fresh, err := p.hold(id); err != nil || (fresh && len(secrets) == 0) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), issueBound)
	defer cancel()
	err := p.issue(ctx, id)
	if err == nil {
		return nil
	}
	missing := slices.ContainsFunc(secrets, func(name string) bool {
		_, err := os.Stat(filepath.Join(p.path(id), currentPapers, SecretPapers, name))
		return err != nil
	})
	if missing {
		return fmt.Errorf("get the task's secrets: %w", err)
	}
	p.log.Warn("no new papers for a task; it starts with what it has", "task", task, "attempt", id.Attempt, "err", err)
	return nil
}

// hold makes a copy's directory, and says whether its papers are not yet due.
func (p *papers) hold(id ID) (fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := os.MkdirAll(p.path(id), 0o700); err != nil {
		return false, fmt.Errorf("make a directory for papers: %w", err)
	}
	due := p.due[id]
	p.due[id] = due
	return time.Now().Before(due), nil
}

// issue gets new papers and puts them in the place of the old ones.
func (p *papers) issue(ctx context.Context, id ID) error {
	given, err := p.issuer.Issue(ctx, id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, live := p.due[id]; !live {
		// It has ended meanwhile.
		return nil
	}
	if err == nil {
		err = fullPapers(writePapers(p.path(id), given.Files))
	}
	if err != nil {
		p.due[id] = time.Now().Add(reissueAfter)
		return err
	}
	p.due[id], p.ends[id] = given.RenewAt, given.Expires
	return nil
}

// paperState is how the papers of all copies stand.
type paperState struct {
	// Copies that may have some, and those of them whose papers should have been
	// renewed by now.
	copies, overdue int
	// When the next ones are due; zero: none are.
	next time.Time
	// When the first ones run out; zero: of none it is known.
	ends time.Time
}

// overdueAfter is how long papers that are due may wait: they are renewed one by one.
const overdueAfter = 5 * time.Minute

func (p *papers) state(now time.Time) (s paperState) {
	if p == nil {
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.copies = len(p.due)
	for _, due := range p.due {
		if !due.IsZero() && now.Sub(due) > overdueAfter {
			s.overdue++
		}
		if s.next.IsZero() || due.Before(s.next) {
			s.next = due
		}
	}
	for _, end := range p.ends {
		if !end.IsZero() && (s.ends.IsZero() || end.Before(s.ends)) {
			s.ends = end
		}
	}
	return s
}

// drop takes away the papers of a copy that has ended.
func (p *papers) drop(id ID) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.due, id)
	delete(p.ends, id)
	return p.remove(p.path(id))
}

// run renews papers when they are due, until ctx ends. What fails is tried
// again: half the life of a certificate is left.
func (p *papers) run(ctx context.Context, begun func() map[ID]bool) {
	if p == nil {
		return
	}
	timer := time.NewTimer(renewEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		failures, err := p.renew(ctx, p.whoIsDue(begun()))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			p.log.Warn("papers cannot be renewed; tried again", "copies", failures, "err", err)
		}
		if failures == maxIssueFailures {
			timer.Reset(awayPause)
		} else {
			timer.Reset(renewEvery)
		}
	}
}

// renew makes one round, and says how many failed and what was said first.
func (p *papers) renew(ctx context.Context, due []ID) (failures int, first error) {
	for _, id := range due {
		one, cancel := context.WithTimeout(ctx, issueBound)
		err := p.issue(one, id)
		cancel()
		if err == nil {
			continue
		}
		if first == nil {
			first = fmt.Errorf("copy %s: %w", id, err)
		}
		if failures++; failures == maxIssueFailures || ctx.Err() != nil {
			return failures, first
		}
	}
	return failures, first
}

// hasten has the papers of all copies renewed now.
func (p *papers) hasten() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.due {
		p.due[id] = time.Time{}
	}
}

func (p *papers) whoIsDue(begun map[ID]bool) []ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var ids []ID
	for id, at := range p.due {
		if begun[id] && !now.Before(at) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

// writePapers makes a directory of files and links to it: whoever opens one
// finds all of the old ones or all of the new ones. They are the task's alone.
func writePapers(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write papers: %w", err)
	}
	was, err := os.Readlink(filepath.Join(dir, currentPapers))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write papers: %w", err)
	}
	n, _ := strconv.Atoi(was)
	now := strconv.Itoa(n + 1)
	next := filepath.Join(dir, now)
	if err := os.RemoveAll(next); err != nil {
		return fmt.Errorf("write papers: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(next, name)
		if !filepath.IsLocal(name) {
			return fmt.Errorf("write papers: %q is not a name of a file", name)
		}
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, files[name], 0o400)
		}
		if err != nil {
			// What is half written takes room.
			return errors.Join(fmt.Errorf("write papers: %w", err), os.RemoveAll(next))
		}
	}
	link := filepath.Join(dir, "."+currentPapers)
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write papers: %w", err)
	}
	if err := os.Symlink(now, link); err != nil {
		return fmt.Errorf("write papers: %w", err)
	}
	if err := os.Rename(link, filepath.Join(dir, currentPapers)); err != nil {
		return fmt.Errorf("write papers: %w", err)
	}
	if was == "" {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(dir, filepath.Base(was))); err != nil {
		return fmt.Errorf("remove old papers: %w", err)
	}
	return nil
}
