package borglet

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// fakeIssuer numbers the papers that it gives.
type fakeIssuer struct {
	mu sync.Mutex
	// Guarded by mu, as is the rest.
	given int
	err   error
	life  time.Duration
}

func (f *fakeIssuer) Issue(_ context.Context, id ID) (*Papers, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	f.given++
	return &Papers{
		Files:   map[string][]byte{CertPaper: fmt.Appendf(nil, "%s %d", id, f.given), "secrets/db": []byte("hunter2")},
		RenewAt: time.Now().Add(f.life),
	}, nil
}

// Files gives none.
func (f *fakeIssuer) Files(context.Context, ID) ([]*borgrpc.TaskFile, error) { return nil, nil }

// PackageCredentials gives none.
func (f *fakeIssuer) PackageCredentials(context.Context, ID) (map[string][]byte, error) {
	return nil, nil
}

func (f *fakeIssuer) set(err error, life time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.life = err, life
}

func papersUnderTest(t *testing.T, dir string, issuer Issuer) *papers {
	t.Helper()
	return newPapers(Config{Name: "m1", PapersDir: dir, Issuer: issuer, Log: slog.New(slog.DiscardHandler)})
}

func paper(t *testing.T, p *papers, id ID, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.path(id), currentPapers, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// TestPapersOfARun: they are there before a run begins, the task's alone, new
// ones take the place of old ones as a whole, and they go with the copy.
func TestPapersOfARun(t *testing.T) {
	issuer := &fakeIssuer{life: time.Hour}
	dir := t.TempDir()
	p := papersUnderTest(t, dir, issuer)
	id := ID{"1-5-0", 3, 1}
	if err := p.before(id, "alice/web/3", nil); err != nil {
		t.Fatal(err)
	}
	if got := paper(t, p, id, CertPaper); got != "1-5-0.3.1 1" {
		t.Errorf("the certificate is %q", got)
	}
	for name, want := range map[string]fs.FileMode{"": 0o700, currentPapers + "/" + CertPaper: 0o400, currentPapers + "/secrets": 0o700, currentPapers + "/secrets/db": 0o400} {
		if info, err := os.Stat(filepath.Join(p.path(id), name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v, want mode %o", name, info, err, want)
		}
	}
	// Another run of the same copy: they are still good.
	if err := p.before(id, "alice/web/3", nil); err != nil || paper(t, p, id, CertPaper) != "1-5-0.3.1 1" {
		t.Errorf("a second run: %v, %q", err, paper(t, p, id, CertPaper))
	}
	// One that names secrets gets their newest values.
	if err := p.before(id, "alice/web/3", []string{"db"}); err != nil || paper(t, p, id, CertPaper) != "1-5-0.3.1 2" {
		t.Errorf("a run with secrets: %v, %q", err, paper(t, p, id, CertPaper))
	}
	if entries, err := os.ReadDir(p.path(id)); err != nil || len(entries) != 2 {
		t.Errorf("in its directory are %v, %v, want the link and what it leads to", entries, err)
	}
	if err := p.drop(id); err != nil {
		t.Fatal(err)
	}
	// An answer that comes after the end leaves nothing behind.
	if err := p.issue(t.Context(), id); err != nil {
		t.Errorf("late papers: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("after the end there are %v, %v", entries, err)
	}
}

// TestMastersAreAway: a task starts without papers, or with those of its last
// run, unless a secret that it names is missing.
func TestMastersAreAway(t *testing.T) {
	issuer := &fakeIssuer{life: time.Hour}
	issuer.set(errors.New("nobody answers"), time.Hour)
	p := papersUnderTest(t, t.TempDir(), issuer)
	id := ID{"1-5-0", 0, 1}
	if err := p.before(id, "alice/web/0", nil); err != nil {
		t.Errorf("a task without secrets: %v, want it started", err)
	}
	if err := p.before(id, "alice/web/0", []string{"db"}); err == nil || !strings.Contains(err.Error(), "secrets: nobody answers") {
		t.Errorf("a task with secrets: %v, want it held back with the reason", err)
	}
	issuer.set(nil, time.Hour)
	if err := p.before(id, "alice/web/0", []string{"db"}); err != nil {
		t.Fatal(err)
	}
	issuer.set(errors.New("nobody answers"), time.Hour)
	if err := p.before(id, "alice/web/0", []string{"db"}); err != nil {
		t.Errorf("started again while the masters are away: %v", err)
	}
	if err := p.before(id, "alice/web/0", []string{"other"}); err == nil {
		t.Error("started without a secret that it never had")
	}
	var none *papers
	if err := none.before(id, "alice/web/0", []string{"db"}); err == nil || !strings.Contains(err.Error(), "no directory in memory") {
		t.Errorf("on a machine without memory: %v", err)
	}
}

// TestPapersAreRenewed: by the borglet that gave them, and by the next one, which
// also removes those of copies that are no more.
func TestPapersAreRenewed(t *testing.T) {
	issuer := &fakeIssuer{life: 0}
	dir, papersDir := t.TempDir(), t.TempDir()
	start := func() *agentUnderTest {
		return startAgentWith(t, dir, func(c *Config) { c.PapersDir, c.Issuer = papersDir, issuer })
	}
	a := start()
	id, batch := ID{"1-5-0", 0, 1}, ID{"1-6-0", 0, 1}
	ends := wanted(batch)
	ends.Kind = borgpb.JobKind_JOB_KIND_BATCH
	req := &borgrpc.PollRequest{Fence: fence(1, 4, 100), Desired: []*borgrpc.Desired{wanted(id), ends}}
	a.until(req, allIn(running1))
	p := a.agent.papers
	renewed := func(id ID, from string) {
		t.Helper()
		for deadline := time.Now().Add(patience); paper(t, p, id, CertPaper) == from; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the papers of %s are still %q", id, from)
			}
		}
	}
	renewed(id, paper(t, p, id, CertPaper))
	a.fake.End(batch, &borgpb.Exit{})
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(p.path(batch)); errors.Is(err, fs.ErrNotExist) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the papers of a copy that has ended are still there")
		}
	}
	a.stop()
	if err := os.Mkdir(filepath.Join(papersDir, "1-4-0.0.1"), 0o700); err != nil {
		t.Fatal(err)
	}
	last := paper(t, p, id, CertPaper)
	a = start()
	p = a.agent.papers
	a.until(req, func(r *borgrpc.PollResponse) bool {
		return len(r.GetTasks()) == 2 && r.GetTasks()[0].GetState() == int32(running1)
	})
	renewed(id, last)
	if entries, err := os.ReadDir(papersDir); err != nil || len(entries) != 1 {
		t.Errorf("there are papers of %v, %v, want those of %s alone", entries, err, id)
	}
}

func TestPapersHaveNamesOfFiles(t *testing.T) {
	for _, odd := range []string{"../x", "/x", "a/../../x", ""} {
		if err := writePapers(t.TempDir(), map[string][]byte{odd: nil}); err == nil {
			t.Errorf("a file %q was written", odd)
		}
	}
}

// authorityIssuer gives papers as a master would, when one answers.
type authorityIssuer struct {
	ca   *identity.Authority
	away atomic.Bool
	n    atomic.Int64
}

// Files gives none.
func (a *authorityIssuer) Files(context.Context, ID) ([]*borgrpc.TaskFile, error) { return nil, nil }

// PackageCredentials gives none.
func (a *authorityIssuer) PackageCredentials(context.Context, ID) (map[string][]byte, error) {
	return nil, nil
}

func (a *authorityIssuer) Issue(_ context.Context, id ID) (*Papers, error) {
	if a.away.Load() {
		return nil, errors.New("nobody answers")
	}
	a.n.Add(1)
	c, err := a.ca.Certify(identity.Name{Cell: "test", Role: identity.Task, ID: fmt.Sprintf("alice/web/%d", id.Index)}, time.Now(), identity.Life)
	if err != nil {
		return nil, err
	}
	whole, err := c.Encode()
	return &Papers{Files: map[string][]byte{IdentityPaper: whole}, RenewAt: c.RenewAt()}, err
}

// TestTwoDaysOfPapers: for 48 hours, of which the masters are away for 25 minutes
// of each hour, whoever opens a task's certificate finds one that is good.
func TestTwoDaysOfPapers(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca, err := identity.NewAuthority("test", time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		issuer := &authorityIssuer{ca: ca}
		p := papersUnderTest(t, dir, issuer)
		begun := map[ID]bool{}
		for i := range uint32(2) {
			id := ID{"1-5-0", i, 1}
			if err := p.before(id, "a task", nil); err != nil {
				t.Fatal(err)
			}
			begun[id] = true
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { p.run(ctx, func() map[ID]bool { return begun }) })
		looks := 0
		for minute := range 48 * 60 {
			issuer.away.Store(minute%60 >= 35)
			time.Sleep(time.Minute)
			for id := range begun {
				c, err := identity.ReadCredential(filepath.Join(p.path(id), currentPapers, IdentityPaper))
				if err != nil {
					t.Fatalf("minute %d: %v", minute, err)
				}
				leaf := c.TLS().Leaf
				if _, err := c.Trust.Verify([]*x509.Certificate{leaf}, identity.ToCall, time.Now()); err != nil || c.Expired(time.Now()) {
					t.Fatalf("minute %d: copy %s: %v, until %v", minute, id, err, c.Expires())
				}
				looks++
			}
		}
		cancel()
		running.Wait()
		if n := issuer.n.Load(); n < 2*48 || n > 2*48*3 {
			t.Errorf("%d certificates in 48 hours for 2 tasks, want about two an hour for each", n)
		}
		t.Logf("looked %d times; %d certificates", looks, issuer.n.Load())
	})
}

// TestPapersAreNotShown: papers print as their names.
func TestPapersAreNotShown(t *testing.T) {
	p := &Papers{Files: map[string][]byte{"secrets/db": []byte("hunter2")}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
		for _, v := range []any{p, *p, []*Papers{p}, struct{ P Papers }{*p}} {
			text := fmt.Sprintf(verb, v)
			if strings.Contains(text, "hunter2") || strings.Contains(text, fmt.Sprintf("%x", "hunter2")) || strings.Contains(text, "104 117 110 116 101 114") || strings.Contains(text, "0x68, 0x75") {
				t.Errorf("%s of %T shows a secret: %s", verb, v, text)
			}
		}
	}
	if text := fmt.Sprint(p); !strings.Contains(text, "secrets/db") {
		t.Errorf("papers print as %q", text)
	}
}
