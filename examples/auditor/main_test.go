package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// audited runs the auditor against a fake cell, as `auditor` itself would.
func audited(t *testing.T, cfg config, cell *fakeCell) (*witness, string, error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	authority := newAuthority(t)
	own, err := authority.Source(identity.Name{Cell: "test", Role: identity.Master, ID: "1"}, time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	server := door.NewServer(door.Config{Identity: own})
	borgrpc.RegisterMasterServiceServer(server, cell)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	cfg.authority = authority
	cfg.masters = []string{listener.Addr().String(), listener.Addr().String()}
	w, out := &witness{book: newBook()}, &bytes.Buffer{}
	err = runWith(t.Context(), cfg, w, out)
	if perr := w.book.print(out); perr != nil {
		t.Error(perr)
	}
	return w, out.String(), err
}

func newAuthority(t *testing.T) *identity.Authority {
	t.Helper()
	a, err := identity.NewAuthority("test", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func testConfig() config {
	return config{seed: 1, clients: 2, steps: 250, drainEach: 20 * time.Millisecond, operator: "root", patience: 20 * time.Second}
}

func TestHonestCell(t *testing.T) {
	cfg := testConfig()
	cfg.journal = filepath.Join(t.TempDir(), "journal")
	w, out, err := audited(t, cfg, newFakeCell(""))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if w.book.violations() > 0 {
		t.Errorf("violations in an honest cell:\n%s", out)
	}
	for _, p := range promises {
		if w.book.verdicts[p.name].checks == 0 {
			t.Errorf("%s was never checked:\n%s", p.name, out)
		}
	}
}

// TestLies shows of each promise that its check can fail.
func TestLies(t *testing.T) {
	for _, p := range promises {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig()
			cfg.steps = 120
			// A cell that lies may never settle.
			cfg.patience = 200 * time.Millisecond
			cell := newFakeCell(p.name)
			w, out, err := audited(t, cfg, cell)
			if err != nil {
				t.Logf("the run ended early: %v", err)
			}
			if w.book.verdicts[p.name].violations == 0 {
				t.Errorf("the cell lied %d times about %q and was believed:\n%s", cell.lies, p.name, out)
			}
		})
	}
}

// TestAuditAgain holds a cell to the journal of an earlier run: the one that
// it was, and one that has lost its jobs.
func TestAuditAgain(t *testing.T) {
	for _, lost := range []bool{false, true} {
		cfg := testConfig()
		cfg.journal, cfg.keep, cfg.steps = filepath.Join(t.TempDir(), "journal"), true, 60
		cell := newFakeCell("")
		if _, out, err := audited(t, cfg, cell); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if lost {
			clear(cell.jobs)
			cfg.patience = 200 * time.Millisecond
		}
		cfg.auditOnly = true
		w, out, err := audited(t, cfg, cell)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := w.book.verdicts["acknowledged"].violations > 0; got != lost {
			t.Errorf("jobs lost: %v, and acknowledged jobs found missing: %v\n%s", lost, got, out)
		}
	}
}

func TestExits(t *testing.T) {
	for _, args := range []string{"", "--masters a:1 more", "--masters a:1 --clients 0", "--masters a:1 --audit-only", "--masters a:1 --rate 0", "--nonsense"} {
		if _, err := parse(strings.Fields(args)); !errors.Is(err, errUsage) {
			t.Errorf("auditor %s: %v, want a usage error", args, err)
		}
	}
	cfg := testConfig()
	cfg.masters, cfg.authority = []string{"127.0.0.1:1"}, newAuthority(t)
	var out bytes.Buffer
	if err := run(t.Context(), cfg, &out); !errors.Is(err, errUnreachable) {
		t.Errorf("without a cell: %v, want %v", err, errUnreachable)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, cfg, &out); err == nil || !strings.Contains(out.String(), "PROMISE") {
		t.Errorf("interrupted: %v, and this table:\n%s", err, out.String())
	}
}

// TestPromisesAreMade wants every promise to be found on its page, and the
// table in docs/auditor.md to be this one.
func TestPromisesAreMade(t *testing.T) {
	const root = "../.."
	table, err := os.ReadFile(root + "/docs/auditor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range promises {
		page, err := os.ReadFile(filepath.Join(root, p.page))
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Join(strings.Fields(strings.ReplaceAll(string(page), "//", "")), " ")
		if !strings.Contains(words, p.at) {
			t.Errorf("%s does not say %q, from where %s has its promise", p.page, p.at, p.name)
		}
		if row := "| `" + p.name + "` | " + p.says + " | " + p.page + ": " + p.at + " |"; !strings.Contains(string(table), row) {
			t.Errorf("docs/auditor.md lacks the row\n%s", row)
		}
	}
}
