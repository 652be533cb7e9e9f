package borglet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// fileIssuer gives files.
type fileIssuer struct {
	fakeIssuer
	files []*borgrpc.TaskFile
	fail  error
	asked int
}

func (f *fileIssuer) Files(context.Context, ID) ([]*borgrpc.TaskFile, error) {
	f.asked++
	return f.files, f.fail
}

// Files are there before a run begins, change when the cell's do, and the task is told
// once when what is in them is other than before.
func TestPushedFiles(t *testing.T) {
	id := ID{"1-5-0", 0, 1}
	issuer := &fileIssuer{files: []*borgrpc.TaskFile{{Name: "conf/a", Version: 1, Content: []byte("one")}, {Name: "b", Version: 2, Content: []byte("bee")}}}
	issuer.life = 1 << 50
	runtime := NewFake()
	cfg := Config{Name: "m1", PapersDir: t.TempDir(), Issuer: issuer, Runtime: runtime, Log: slog.New(slog.DiscardHandler)}
	papers := newPapers(cfg)
	p := newPushed(papers, cfg)
	desired := &borgrpc.Desired{Copy: id.wire(), User: "alice", Spec: &borgpb.TaskSpec{Files: []*borgpb.PushedFile{
		{Name: "conf/a", Signal: borgpb.ReloadSignal_RELOAD_SIGNAL_HUP}, {Name: "b", Signal: borgpb.ReloadSignal_RELOAD_SIGNAL_HUP},
	}}}
	record := Record{ID: id, Desired: desired, Run: 1}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(papers.path(id), FilesPapers, name))
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	begin := func() error { return errors.Join(papers.before(id, "alice/web/0", nil), p.before(record)) }
	if err := begin(); err != nil || read("conf/a") != "one" || read("b") != "bee" {
		t.Fatalf("before a run: %v, %q, %q", err, read("conf/a"), read("b"))
	}
	if err := runtime.Start(&Launch{ID: id, Run: 1}); err != nil {
		t.Fatal(err)
	}
	running := map[ID]bool{id: true}
	hear := func(versions ...uint64) {
		t.Helper()
		d := &borgrpc.Desired{Copy: id.wire()}
		for i, v := range versions {
			d.Files = append(d.Files, &borgrpc.FileVersion{Name: desired.Spec.Files[i].Name, Version: v})
		}
		p.hear([]*borgrpc.Desired{d}, func(ID) *borgrpc.Desired { return desired })
	}
	// What was put there before the run is looked at once, and is as it was.
	hear(1, 2)
	if got := p.stale(running); !slices.Equal(got, []ID{id}) || p.refresh(t.Context(), id) != nil || len(p.stale(running)) != 0 || len(runtime.Signals) != 0 {
		t.Fatalf("stale %v then %v, signals %v", got, p.stale(running), runtime.Signals)
	}
	held, err := os.Open(filepath.Join(papers.path(id), FilesPapers, "conf/a"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	// Both change: one signal.
	issuer.files[0] = &borgrpc.TaskFile{Name: "conf/a", Version: 3, Content: []byte("three")}
	issuer.files[1] = &borgrpc.TaskFile{Name: "b", Version: 4, Content: []byte("wasp")}
	hear(3, 4)
	if err := p.refresh(t.Context(), id); err != nil || read("conf/a") != "three" || read("b") != "wasp" {
		t.Fatalf("after a change: %v, %q, %q", err, read("conf/a"), read("b"))
	}
	if !slices.Equal(runtime.Signals, []syscall.Signal{syscall.SIGHUP}) {
		t.Errorf("signals %v", runtime.Signals)
	}
	old := make([]byte, 10)
	if n, _ := held.Read(old); string(old[:n]) != "one" {
		t.Errorf("who had it open reads %q", old[:n])
	}
	// A replica that is behind gives what was: it is asked for again.
	issuer.files[1] = &borgrpc.TaskFile{Name: "b", Version: 2, Content: []byte("bee")}
	hear(5, 4)
	if err := p.refresh(t.Context(), id); err != nil || len(p.stale(running)) != 0 {
		t.Fatalf("%v, asked for again at once", err)
	}
	if read("b") != "wasp" || len(runtime.Signals) != 1 {
		t.Errorf("what is older than what it has: it has %q, signals %v", read("b"), runtime.Signals)
	}
	issuer.files[1] = &borgrpc.TaskFile{Name: "b", Version: 4, Content: []byte("wasp")}
	p.copies[id].again = p.copies[id].again.Add(-repushAfter)
	if !slices.Equal(p.stale(running), []ID{id}) {
		t.Error("what a replica gave that is behind was taken for the newest")
	}
	// It was deleted: the task keeps what it has.
	issuer.files = issuer.files[1:]
	hear(0, 4)
	if err := p.refresh(t.Context(), id); err != nil || read("conf/a") != "three" || len(p.stale(running)) != 0 {
		t.Errorf("after it was deleted: %v, %q", err, read("conf/a"))
	}
	// Masters that are away keep no task from being started again, and one that was never
	// given a file is not begun without.
	issuer.fail = errors.New("away")
	if err := begin(); err != nil {
		t.Errorf("with the files of an earlier run: %v", err)
	}
	p.drop(id)
	if err := papers.drop(id); err != nil {
		t.Fatal(err)
	}
	if err := begin(); err == nil || !strings.Contains(err.Error(), "away") {
		t.Errorf("without files: %v", err)
	}
	issuer.fail = nil
	if err := begin(); err == nil || !strings.Contains(err.Error(), "user alice has no file conf/a") {
		t.Errorf("without one of them: %v", err)
	}
}

// A task whose borglet is killed between a new file and its signal, or that cannot be
// told, is told later, once; a run that begins with the new file is not.
func TestPushedSignalIsOwed(t *testing.T) {
	id := ID{"1-5-0", 0, 1}
	issuer := &fileIssuer{files: []*borgrpc.TaskFile{{Name: "a", Version: 1, Content: []byte("one")}, {Name: "b", Version: 1, Content: []byte("bee")}}}
	issuer.life = 1 << 50
	runtime := NewFake()
	cfg := Config{Name: "m1", PapersDir: t.TempDir(), Issuer: issuer, Runtime: runtime, Log: slog.New(slog.DiscardHandler)}
	desired := &borgrpc.Desired{Copy: id.wire(), User: "alice", Spec: &borgpb.TaskSpec{Files: []*borgpb.PushedFile{
		{Name: "a", Signal: borgpb.ReloadSignal_RELOAD_SIGNAL_USR2}, {Name: "b", Signal: borgpb.ReloadSignal_RELOAD_SIGNAL_HUP},
	}}}
	record := Record{ID: id, Desired: desired, Run: 1}
	begin := func() *pushed {
		t.Helper()
		papers := newPapers(cfg)
		if err := papers.sweep([]Record{record}); err != nil {
			t.Fatal(err)
		}
		return newPushed(papers, cfg)
	}
	changes := func(p *pushed, version uint64, signal func(ID, syscall.Signal) error) error {
		t.Helper()
		for i, f := range issuer.files {
			issuer.files[i] = &borgrpc.TaskFile{Name: f.Name, Version: version, Content: fmt.Appendf(nil, "%s of %d", f.Name, version)}
		}
		p.signal = signal
		told := &borgrpc.Desired{Copy: id.wire(), Files: []*borgrpc.FileVersion{{Name: "a", Version: version}, {Name: "b", Version: version}}}
		p.hear([]*borgrpc.Desired{told}, func(ID) *borgrpc.Desired { return desired })
		return p.refresh(t.Context(), id)
	}
	p := begin()
	if err := errors.Join(p.papers.before(id, "alice/web/0", nil), p.before(record), runtime.Start(&Launch{ID: id, Run: 1})); err != nil {
		t.Fatal(err)
	}
	killed := errors.New("killed")
	if err := changes(p, 2, func(ID, syscall.Signal) error { return killed }); !errors.Is(err, killed) {
		t.Fatalf("%v, want %v", err, killed)
	}
	// The same borglet tries again, and so does the next one.
	p.copies[id].again = p.copies[id].again.Add(-repushAfter)
	if got := p.stale(map[ID]bool{id: true}); !slices.Equal(got, []ID{id}) {
		t.Errorf("a task that could not be told is left alone: %v", got)
	}
	p = begin()
	for range 2 {
		if err := changes(p, 2, runtime.Signal); err != nil {
			t.Fatal(err)
		}
	}
	if want := []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR2}; !slices.Equal(runtime.Signals, want) {
		t.Errorf("signals %v, want %v", runtime.Signals, want)
	}
	if err := changes(p, 3, func(ID, syscall.Signal) error { return killed }); !errors.Is(err, killed) {
		t.Fatalf("%v, want %v", err, killed)
	}
	p, runtime.Signals = begin(), nil
	if err := p.before(record); err != nil {
		t.Fatal(err)
	}
	if err := changes(p, 3, runtime.Signal); err != nil || len(runtime.Signals) > 0 {
		t.Errorf("a new run was told of the files that it began with: %v, %v", runtime.Signals, err)
	}
}

// A reader finds the old file or the new one, whole.
func TestPushedFileIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "conf", "a")
	if err := writePushed(path, []byte(strings.Repeat("0", 200_000))); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			text, err := os.ReadFile(path)
			if err != nil || len(text) != 200_000 || strings.Count(string(text), string(text[:1])) != len(text) {
				t.Errorf("read %d bytes, %v", len(text), err)
				return
			}
		}
	})
	for i := range 200 {
		if err := writePushed(path, []byte(strings.Repeat(string(rune('0'+i%10)), 200_000))); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

// The secret that a package names is asked for when it is brought, and no other one's.
func TestPackageLogin(t *testing.T) {
	record := Record{ID: ID{"1-5-0", 0, 1}, Desired: &borgrpc.Desired{Spec: &borgpb.TaskSpec{Packages: []*borgpb.Package{
		{Digest: "sha256:a", Credentials: "registry"}, {Digest: "sha256:b"}, {Digest: "sha256:c", Credentials: "absent"},
	}}}}
	a := &Agent{cfg: Config{Issuer: &loginIssuer{}}}
	for digest, want := range map[string]string{"sha256:a": "value of registry", "sha256:b": "", "sha256:c": "masters do not give it", "sha256:d": ""} {
		got, err := a.packageLogin(record)(t.Context(), digest)
		if err != nil {
			got = []byte(err.Error())
		}
		if !strings.HasSuffix(string(got), want) || want == "" && got != nil {
			t.Errorf("for %s: %q, want %q", digest, got, want)
		}
	}
	a.cfg.Issuer = nil
	if _, err := a.packageLogin(record)(t.Context(), "sha256:a"); err == nil {
		t.Error("without masters to ask there is a secret")
	}
}

type loginIssuer struct{ fakeIssuer }

func (*loginIssuer) PackageCredentials(context.Context, ID) (map[string][]byte, error) {
	return map[string][]byte{"registry": []byte("value of registry")}, nil
}
