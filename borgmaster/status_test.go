package borgmaster_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/borgmaster"
	"borg/identity"
	"borg/proto/borgrpc"
)

// page is what a replica shows at a path.
func (tc *testCell) page(replica int, path string) (code int, body string) {
	tc.t.Helper()
	w := httptest.NewRecorder()
	tc.masters[replica-1].Pages().ServeHTTP(w, httptest.NewRequestWithContext(tc.t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// shown is a status page as programs read it.
type shown struct {
	Title, Notice string
	Verdict       struct {
		Mood, Text string
		Findings   []struct{ Mood, Text, Next string }
	}
	Numbers  map[string]any
	Sections map[string]json.RawMessage
}

func (tc *testCell) shown(replica int) shown {
	tc.t.Helper()
	_, body := tc.page(replica, "/?format=json")
	var s shown
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		tc.t.Fatalf("the page of replica %d: %v\n%s", replica, err, body)
	}
	return s
}

// found says whether a page finds something, and how bad it is.
func (s shown) found(mood, part string) bool {
	for _, f := range s.Verdict.Findings {
		if f.Mood == mood && strings.Contains(f.Text, part) {
			return true
		}
	}
	return false
}

// section is one of facts.
func (s shown) section(t *testing.T, name string) (facts map[string]any) {
	t.Helper()
	if err := json.Unmarshal(s.Sections[name], &facts); err != nil {
		t.Fatalf("section %s: %v: %s", name, err, s.Sections[name])
	}
	return facts
}

// TestStatusOfEachReplica looks at the pages of an elected replica, of followers, and
// of all when nobody is elected.
func TestStatusOfEachReplica(t *testing.T) {
	tc := newCell(t, 3, func(_ int, c *borgmaster.Config) {
		c.SchedulerPages = []string{filepath.Join(t.TempDir(), "nobody.sock")}
	})
	tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 2))
	until(t, "the followers have heard of the election", func() bool {
		return tc.shown(2).section(t, "this_replica")["elected_replica"] == 1.0 && tc.shown(3).section(t, "link_shard")["replicas_that_share"] != nil
	})
	elected := tc.shown(1)
	if f := elected.section(t, "this_replica"); f["role"] != "elected" || f["takes_changes"] != true || f["elected_replica"] != 1.0 {
		t.Errorf("the elected replica says %v", f)
	}
	if elected.Verdict.Mood != "bad" || !elected.found("bad", "No scheduler follows") || !elected.found("warn", "2 tasks of production") {
		t.Errorf("without a scheduler its verdict is %+v", elected.Verdict)
	}
	follower := tc.shown(2)
	if f := follower.section(t, "this_replica"); f["role"] != "follower" || f["takes_changes"] != false {
		t.Errorf("a follower says %v", f)
	}
	if follower.Title != "replica 2 of cell test" || follower.Numbers["tasks_pending"] != 2.0 || follower.Numbers["elected_replica"] != 1.0 {
		t.Errorf("the page of a follower: %+v", follower)
	}
	var members []map[string]any
	if err := json.Unmarshal(follower.Sections["replicas"], &members); err != nil || len(members) != 3 || members[0]["role"] != "elected" || members[1]["role"] != "follower" {
		t.Errorf("the replicas: %v, %v", members, err)
	}
	if code, body := tc.page(2, "/scheduler/"); code != http.StatusServiceUnavailable || !strings.Contains(body, "replica 1 is elected: ask there") {
		t.Errorf("the scheduler beside a follower: %d %s", code, body)
	}
	if code, body := tc.page(2, "/metrics"); code != http.StatusOK || !strings.Contains(body, "borg_borgmaster_elected_replica 1\n") || !strings.Contains(body, "borg_borgmaster_ready 0\n") {
		t.Errorf("the metrics of a follower: %d %.500s", code, body)
	}

	tc.group.Elect(0)
	until(t, "all have heard that nobody is elected", func() bool {
		for i := range 3 {
			s := tc.shown(i + 1)
			if s.Verdict.Mood != "bad" || !s.found("bad", "Nobody is elected") || s.Numbers["elected_replica"] != 0.0 {
				return false
			}
		}
		return true
	})
}

// TestStatusOfMachinesNotReached names a machine that does not answer, and why.
func TestStatusOfMachinesNotReached(t *testing.T) {
	tc := newCell(t, 1, nil)
	b := startBorglet(t, "m1")
	tc.addMachine(b)
	until(t, "the machine was polled", func() bool {
		share := tc.shown(1).section(t, "link_shard")
		interval, _ := share["time_between_polls"].(map[string]any)
		return share["share_machines"] == 1.0 && interval["count"] != nil
	})
	b.stop()
	until(t, "the page tells that it is not reached", func() bool {
		s := tc.shown(1)
		var missed []struct {
			Machine string
			Why     string
			Times   int `json:"polls_missed_in_a_row"`
		}
		if s.Sections["machines_not_reached"] == nil {
			return false
		}
		if err := json.Unmarshal(s.Sections["machines_not_reached"], &missed); err != nil {
			t.Fatal(err)
		}
		return len(missed) == 1 && missed[0].Machine == "m1" && missed[0].Times > 0 && missed[0].Why != "" && s.found("warn", "1 of the 1 machines")
	})
	b.serve(b.addr)
	until(t, "it is reached again", func() bool { return tc.shown(1).Sections["machines_not_reached"] == nil })
}

// TestStatusOfSimulatedCell has its notice above everything.
func TestStatusOfSimulatedCell(t *testing.T) {
	tc := newCell(t, 1, func(_ int, c *borgmaster.Config) {
		c.Simulated = func() *borgrpc.Simulated {
			return &borgrpc.Simulated{AsOfIndex: 12, AsOfWallNs: time.Date(2026, 11, 2, 3, 4, 5, 0, time.UTC).UnixNano(), Speed: "10 times as fast"}
		}
	})
	const notice = "simulated, as of 2026-11-02T03:04:05Z (index 12); time goes: 10 times as fast"
	if s := tc.shown(1); s.Notice != notice {
		t.Errorf("the notice is %q", s.Notice)
	}
	_, body := tc.page(1, "/")
	at, first := strings.Index(body, `<p class="notice">`+notice), strings.Index(body, "<main>")
	if at < 0 || at > first {
		t.Errorf("the notice does not stand above the page:\n%s", body)
	}
	if _, body := tc.page(1, "/metrics"); !strings.Contains(body, "borg_borgmaster_simulated 1\n") {
		t.Error("the metrics do not say that the cell is simulated")
	}
}

// TestStatusOfCalls counts calls by method and code.
func TestStatusOfCalls(t *testing.T) {
	tc := newCell(t, 1, nil)
	if _, err := tc.client(1, "alice").GetJob(t.Context(), &borgrpc.GetJobRequest{User: "alice", Name: "nothing"}); err == nil {
		t.Fatal("there is a job that nobody submitted")
	}
	if _, err := borgrpc.NewReplicaServiceClient(tc.conn(1, identity.Master, "1")).Probe(t.Context(), &borgrpc.ProbeRequest{Machine: "m1", Addr: "127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 1))
	_, body := tc.page(1, "/metrics")
	for _, want := range []string{
		`borg_borgmaster_rpc_seconds_count{code="NotFound",method="GetJob"} 1`,
		`borg_borgmaster_rpc_seconds_count{code="OK",method="Probe"} 1`,
		`borg_borgmaster_rpc_seconds_count{code="OK",method="Mutate"} 1`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
