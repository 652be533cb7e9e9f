package fauxmaster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"borg/borgmaster/client"
	"borg/fauxmaster"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a picture that is served, and somebody who talks to it.
type served struct {
	*client.Client
	t      *testing.T
	server *fauxmaster.Server
	stop   func()
}

func serve(t *testing.T, p *fauxmaster.Picture, change func(*fauxmaster.Config)) *served {
	t.Helper()
	cfg := fauxmaster.Config{Picture: p, User: "visitor", Speed: fauxmaster.Speed{Factor: 1}, Search: scheduler.Config{Reschedule: scheduler.RescheduleOff}}
	if change != nil {
		change(&cfg)
	}
	s, err := fauxmaster.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	place, err := client.Lookup{Flag: s.CellFile()}.Find()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(place.Simulated, "simulated, "+p.AsOf()) {
		t.Errorf("the cell file says that the cell is %q", place.Simulated)
	}
	source, err := place.Source()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{Masters: place.Masters, CellID: place.CellID, Identity: source})
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		c.Close()
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return &served{c, t, s, stop}
}

// pictureOf is the last moment of a recorded run.
func pictureOf(t *testing.T, r *recorded) *fauxmaster.Picture {
	t.Helper()
	p, err := fauxmaster.OpenAt(r.dir, fauxmaster.Moment{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *served) submit(name string, kind borgpb.JobKind, tasks uint32, cpuMilli int64) {
	s.t.Helper()
	_, err := s.Mutate(s.t.Context(), &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{
		User: "visitor", Name: name, Spec: spec(s.t, kind, 210, tasks, cpuMilli),
	}}})
	if err != nil {
		s.t.Fatal(err)
	}
}

var errSeen = errors.New("seen")

// await waits for an event of an object.
func (s *served) await(kind borgpb.EventKind, object string) *borgpb.Event {
	s.t.Helper()
	var seen *borgpb.Event
	err := s.Events(s.t.Context(), &borgrpc.EventsRequest{Follow: true}, func(resp *borgrpc.EventsResponse) error {
		for _, e := range resp.Events {
			if e.Kind == kind && e.Object == object {
				seen = e
				return errSeen
			}
		}
		return nil
	})
	if !errors.Is(err, errSeen) {
		s.t.Fatalf("waiting for %v of %s: %v", kind, object, err)
	}
	return seen
}

func (s *served) cell() *borgrpc.GetCellResponse {
	s.t.Helper()
	c, err := s.GetCell(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *served) state(name string, index uint32) *borgpb.TaskStatus {
	s.t.Helper()
	resp, err := s.ListTasks(s.t.Context(), &borgrpc.ListTasksRequest{User: "visitor", Name: name, HasIndex: true, Index: index})
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.Tasks[0].Status
}

// pass lets virtual time pass, and then has it stand still.
func (s *served) pass(d time.Duration) {
	s.t.Helper()
	if err := s.server.World().Pass(s.t.Context(), d); err != nil {
		s.t.Fatal(err)
	}
}

// TestServe drives a moment of a recorded run: what ran goes on with the same
// processes, what is submitted is scheduled and runs, and nothing stays behind.
func TestServe(t *testing.T) {
	r := record(t, 8, 600)
	p := pictureOf(t, r)
	type copyOf struct {
		pid     int64
		attempt uint64
	}
	before := map[string]copyOf{}
	for j := range p.Cell.Jobs() {
		for _, task := range j.Tasks() {
			if c := task.Current(); c != nil && c.State() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING && j.Priority() >= 200 {
				before[task.ID().String()] = copyOf{c.PID(), c.Attempt()}
			}
		}
	}
	asOf, wallNs := p.Header.Index, p.Header.WallTimeNs
	s := serve(t, p, func(c *fauxmaster.Config) { c.HTTP = "127.0.0.1:0" })
	if sim := s.cell().Simulated; sim.GetAsOfIndex() != asOf || sim.GetAsOfWallNs() != wallNs || sim.GetSpeed() == "" {
		t.Errorf("the cell says that it is simulated as %v; it is of index %d, %d", sim, asOf, wallNs)
	}
	s.submit("web", borgpb.JobKind_JOB_KIND_SERVICE, 1, 100)
	s.await(borgpb.EventKind_EVENT_KIND_START, "visitor/web/0")
	if st := s.state("web", 0); st.AttemptState != borgpb.AttemptState_ATTEMPT_STATE_RUNNING || st.Pid == 0 {
		t.Errorf("web/0 runs: %v", st)
	}
	if len(before) < 5 {
		t.Fatalf("only %d production tasks ran at the moment", len(before))
	}
	resp, err := s.ListAllTasks(t.Context(), &borgrpc.ListTasksRequest{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, task := range resp.Tasks {
		name := fmt.Sprintf("%s/%s/%d", task.Meta.User, task.Meta.Name, task.Index)
		was, ran := before[name]
		if !ran {
			continue
		}
		found++
		if st := task.Status; st.Pid != was.pid || st.Attempt != was.attempt || st.Restarts != 0 {
			t.Errorf("%s ran as pid %d, attempt %d; after opening it is %v", name, was.pid, was.attempt, st)
		}
	}
	if found != len(before) {
		t.Errorf("%d of %d tasks are there", found, len(before))
	}
	s.submit("giant", borgpb.JobKind_JOB_KIND_SERVICE, 1, 64_000)
	why, err := s.Why(t.Context(), &borgrpc.WhyRequest{User: "visitor", Name: "giant"})
	if err != nil {
		t.Fatal(err)
	}
	refused := uint32(0)
	for _, reason := range why.Reasons {
		refused += reason.Machines
	}
	if why.Machines != 12 || refused != 12 {
		t.Errorf("why giant waits: %v", why)
	}
	// Its tasks have written nothing, and what was kept of the real ones is not here.
	err = s.Logs(t.Context(), &borgrpc.LogsRequest{User: "visitor", Name: "web"}, func(*borgrpc.LogsResponse) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "simulated") {
		t.Errorf("logs: %v", err)
	}
	// Every page says above all else that the cell is simulated.
	pages := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, title := range map[string]string{"": "replica 1 of cell", "scheduler/": "scheduler of "} {
		resp, err := pages.Get(s.server.Pages() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		at, above, _ := strings.Cut(string(body), `<p class="notice">simulated, as of `)
		if err != nil || resp.StatusCode != http.StatusOK || strings.Contains(at, "<main>") || !strings.Contains(above, title) || !strings.Contains(above, fmt.Sprintf("(index %d)", asOf)) {
			t.Errorf("the page /%s: %v, %v\n%s", path, resp.Status, err, body)
		}
	}
	dir := s.server.CellFile()
	s.stop()
	if _, err := os.Stat(strings.TrimSuffix(dir, "/cell.yaml")); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

// TestTime has time stand still: what is assigned does not start until time
// passes, and what lasts ten minutes is over ten minutes later, at once.
func TestTime(t *testing.T) {
	r := record(t, 9, 300)
	s := serve(t, pictureOf(t, r), func(c *fauxmaster.Config) {
		c.Speed, c.BatchLasts = fauxmaster.Speed{}, 10*time.Minute
	})
	s.submit("sum", borgpb.JobKind_JOB_KIND_BATCH, 1, 100)
	s.await(borgpb.EventKind_EVENT_KIND_SCHEDULE, "visitor/sum/0")
	still := s.server.WallNow()
	if st := s.state("sum", 0); st.AttemptState == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
		t.Errorf("it runs although time stands still: %v", st)
	}
	s.pass(time.Minute)
	started := s.await(borgpb.EventKind_EVENT_KIND_START, "visitor/sum/0")
	if got := s.server.WallNow().Sub(still); got != time.Minute {
		t.Errorf("%v have passed, want 1m", got)
	}
	s.pass(20 * time.Minute)
	ended := s.await(borgpb.EventKind_EVENT_KIND_FINISH, "visitor/sum/0")
	if lasted := time.Duration(ended.WallNs - started.WallNs); lasted < 9*time.Minute || lasted > 12*time.Minute {
		t.Errorf("it lasted %v by the clock of the cell, want 10m", lasted)
	}
	if got := s.server.WallNow().Sub(still); got != 21*time.Minute {
		t.Errorf("%v have passed, want 21m", got)
	}
}

// TestParseSpeed holds what a speed may be.
func TestParseSpeed(t *testing.T) {
	for text, want := range map[string]fauxmaster.Speed{
		"stop": {}, "0": {}, "max": {Max: true}, "1": {Factor: 1}, "0.5": {Factor: 0.5}, "3600": {Factor: 3600},
	} {
		if got, err := fauxmaster.ParseSpeed(text); err != nil || got != want {
			t.Errorf("ParseSpeed(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "fast", "-1", "1e9", "NaN", "Inf"} {
		if got, err := fauxmaster.ParseSpeed(text); err == nil {
			t.Errorf("ParseSpeed(%q) = %v, want an error", text, got)
		}
	}
}

// TestExecIsRefusedInTheAudit: an exec into a simulated task is refused; its record says so, and
// has the time of the session.
func TestExecIsRefusedInTheAudit(t *testing.T) {
	p := pictureOf(t, record(t, 8, 600))
	fromNs := p.Header.WallTimeNs
	s := serve(t, p, nil)
	s.submit("web", borgpb.JobKind_JOB_KIND_SERVICE, 1, 100)
	s.await(borgpb.EventKind_EVENT_KIND_START, "visitor/web/0")
	err := s.Exec(t.Context(), &borgrpc.ExecRequest{User: "visitor", Name: "web", Program: &borgrpc.ExecProgram{Args: []string{"ls"}}},
		func(func(*borgrpc.ExecInput) error) {}, func(*borgrpc.ExecResponse) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "simulated") {
		t.Errorf("exec: %v", err)
	}
	var records []*borgpb.AuditRecord
	err = s.Audit(t.Context(), &borgrpc.AuditRequest{Verb: "exec"}, func(resp *borgrpc.AuditResponse) error {
		for _, r := range resp.Records {
			if r.Hole == nil {
				records = append(records, r)
			}
		}
		return nil
	})
	if err != nil || len(records) != 1 || records[0].Refusal == nil || records[0].WallNs < fromNs || records[0].WallNs > s.server.WallNow().UnixNano() {
		t.Errorf("%v, %v; want one exec, refused, between %d and now", records, err, fromNs)
	}
}
