package deploy

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// So often a job is submitted, and each call is tried for so long.
	loadEvery   = 50 * time.Millisecond
	loadTimeout = 20 * time.Second
)

// load submits jobs, steadily, and remembers which were acknowledged.
type load struct {
	s      *site
	client *client.Client
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	acked []string // guarded by mu
	lost  []error  // guarded by mu: calls that came to nothing
}

// startLoad submits as the admin of the page.
func (s *site) startLoad() *load {
	s.t.Helper()
	place, err := client.Lookup{Flag: filepath.Join(s.hosts["master1"].dir, "home/root/.borg/cell.yaml")}.Find()
	if err != nil {
		s.t.Fatal(err)
	}
	who, err := place.Source()
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := client.New(client.Config{Masters: place.Masters, CellID: place.CellID, Identity: who, Timeout: loadTimeout})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(s.t.Context())
	l := &load{s: s, client: c, stop: stop}
	s.t.Cleanup(func() { stop(); l.work.Wait(); c.Close() })
	l.work.Go(func() {
		ticker := time.NewTicker(loadEvery)
		defer ticker.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			l.submit(fmt.Sprintf("load-%d", n))
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
	return l
}

// submit submits a job that no machine can hold: it is the masters that are loaded.
func (l *load) submit(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	spec, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 1, Priority: 100,
		Task: &borgpb.TaskSpec{
			Args:        []string{"/bin/true"},
			Resources:   &borgpb.Resources{CpuMilli: 10, MemBytes: 16 << 20},
			GraceNs:     int64(time.Second),
			Constraints: []*borgpb.Constraint{{Key: "there-is-no-such", Relation: borgpb.Relation_RELATION_PRESENT}},
		},
	})
	if err == nil {
		_, err = l.client.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "ops", Name: name, Spec: spec}}})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.lost = append(l.lost, fmt.Errorf("submit %s: %w", name, err))
		return
	}
	l.acked = append(l.acked, name)
}

// format is that of the cell.
func (l *load) format() uint32 {
	l.s.t.Helper()
	c, err := l.client.GetCell(l.s.t.Context())
	if err != nil {
		l.s.t.Fatal(err)
	}
	return c.Format
}

// untilFormat waits until the cell is raised.
func (l *load) untilFormat(want uint32) {
	l.s.t.Helper()
	for deadline := time.Now().Add(blockTimeout); l.format() != want; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.s.t.Fatalf("the cell has format %d; all masters know %d, and none is held back", l.format(), want)
		}
	}
}

// end stops the load, and looks whether all that was acknowledged is there, and
// nobody was turned away.
func (l *load) end() {
	t := l.s.t
	t.Helper()
	l.stop()
	l.work.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lost) > 0 {
		t.Errorf("%d of %d submits came to nothing: %v", len(l.lost), len(l.lost)+len(l.acked), errors.Join(l.lost...))
	}
	resp, err := l.client.ListJobs(t.Context(), &borgrpc.ListJobsRequest{User: "ops", Dead: true})
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[string]bool)
	for _, j := range resp.Jobs {
		there[j.Meta.Name] = true
	}
	for _, name := range l.acked {
		if !there[name] {
			t.Errorf("job %s was acknowledged, and is not there", name)
		}
	}
	if len(l.acked) < 20 {
		t.Errorf("%d submits were acknowledged during the upgrade, too few to show anything", len(l.acked))
	}
	t.Logf("%d submits acknowledged during the upgrade", len(l.acked))
}
