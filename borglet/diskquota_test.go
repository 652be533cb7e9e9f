package borglet

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// fakeQuotas has the limits of directories below root, and what was said of them.
type fakeQuotas struct {
	root string

	mu sync.Mutex
	// Guarded by mu.
	limits map[string]int64
	told   []string
	refuse error
}

func (f *fakeQuotas) Limit(dir string, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	if f.refuse != nil {
		return f.refuse
	}
	f.limits[dir] = bytes
	f.tell("limit", dir, fmt.Sprint(bytes))
	return nil
}

func (f *fakeQuotas) Used(dir string) (int64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.limits[dir]
	return 42, ok
}

func (f *fakeQuotas) Drop(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	delete(f.limits, dir)
	f.tell("drop", dir, "")
	return nil
}

func (f *fakeQuotas) tell(verb, dir, bytes string) {
	name, _ := filepath.Rel(f.root, dir)
	f.told = append(f.told, strings.TrimSpace(verb+" "+name+" "+bytes))
}

// take returns what was said since.
func (f *fakeQuotas) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	told := strings.Join(f.told, "; ")
	f.told = nil
	return told
}

// TestDiskQuotas: a run begins within the limits of all that it may write to, an update
// changes them in place, and who goes leaves none.
func TestDiskQuotas(t *testing.T) {
	f := &fakeQuotas{root: t.TempDir(), limits: map[string]int64{}}
	var log strings.Builder
	walked := map[string]bool{}
	agent, err := New(Config{
		Name: "m1", Dir: f.root, Runtime: NewFake(), Log: slog.New(slog.NewTextHandler(&log, nil)), DiskQuotas: f,
		Spec: &borgpb.MachineSpec{Addr: "m1:7101"}, Backoff: Backoff{FirstNs: 1, BaseNs: 1, MaxNs: 1, HealthyNs: 1},
		TreeBytes: func(dir string) (int64, error) { walked[filepath.Base(dir)] = true; return 7, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	id := ID{"1-5-0", 0, 1}
	r := Record{ID: id, Run: 1, Desired: wanted(id)}
	r.Desired.Spec.Resources.DiskBytes = 1000
	r.Desired.Spec.Volumes = []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 3000}}
	r.Desired.Alloc, r.Desired.AllocResources = "alice/pool/0", &borgpb.Resources{DiskBytes: 2000}
	r.Desired.AllocVolumes = []*borgpb.Volume{{Name: "data", DiskBytes: 3000}}
	want := func(when, want string) {
		t.Helper()
		if got := f.take(); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	if err := agent.begin(r); err != nil {
		t.Fatal(err)
	}
	want("a run begins", "limit tasks/1-5-0.0.1/task 1000; limit allocs/alice.pool.0 2000; limit volumes/alice.pool.0.data/data 3000")
	if bytes, err := agent.keeps(id, HeldOpen{}); bytes != 42 || err != nil || len(walked) > 0 {
		t.Errorf("it keeps %d (%v), want what the file system counted; walked: %v", bytes, err, walked)
	}
	r.Desired.Spec.Resources.DiskBytes = 1500
	agent.do(Update{r}, nil)
	<-agent.results
	want("an update", "limit tasks/1-5-0.0.1/task 1500; limit allocs/alice.pool.0 2000; limit volumes/alice.pool.0.data/data 3000")

	// Whoever owns its files for the machine could take them out of what is counted.
	r.Desired.Spec.Relax = &borgpb.Relax{UserIds: true}
	agent.limitDisk(r)
	want("with the machine's user ids", "drop tasks/1-5-0.0.1/task; limit allocs/alice.pool.0 2000; limit volumes/alice.pool.0.data/data 3000")
	if bytes, err := agent.keeps(id, HeldOpen{}); bytes != 14 || err != nil || !walked[taskSubdir] || !walked[UpperSubdir] {
		t.Errorf("it keeps %d (%v), want what was added up; walked: %v", bytes, err, walked)
	}

	// Where the file system cannot, that is said once, and the copy runs.
	f.refuse = errors.New("no such thing here")
	other := ID{"1-6-0", 0, 1}
	if err := agent.begin(Record{ID: other, Run: 1, Desired: wanted(other)}); err != nil {
		t.Fatal(err)
	}
	agent.limitDisk(Record{ID: other, Run: 2, Desired: wanted(other)})
	if got := strings.Count(log.String(), "measured and not refused"); got != 1 {
		t.Errorf("it was said %d times:\n%s", got, log.String())
	}
	agent.do(Remove{ID: id}, nil)
	want("the copy is forgotten", "drop tasks/1-5-0.0.1/task")
	agent.store.volumes.obey(agent.core, &borgrpc.PollRequest{DeleteVolumes: []*borgpb.VolumeName{{User: "alice", Job: "pool", Volume: "data"}}}, &borgrpc.PollResponse{}, func(err error) { t.Error(err) })
	want("its volume is deleted", "drop volumes/alice.pool.0.data/data")
	// What was in it is removed beside the polls.
	removed := func() bool {
		v := agent.store.volumes
		v.mu.Lock()
		defer v.mu.Unlock()
		return len(v.removing) == 0
	}
	for !removed() {
		time.Sleep(time.Millisecond)
	}
}
