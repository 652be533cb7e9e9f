package door_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"borg/borglet"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// show serves pages at addr until the test ends.
func (rc *realCell) show(addr string, config door.Config, pages http.Handler) *door.HTTPListener {
	rc.t.Helper()
	l, err := door.ListenHTTP(addr)
	if err != nil {
		rc.t.Fatal(err)
	}
	rc.run(func(ctx context.Context) error { return l.ServeHTTP(ctx, config, pages) }, nil)
	return l
}

// browser shows a certificate, if there is one, and believes whoever answers.
func browser(t *testing.T, c *identity.Credential) *http.Client {
	config := &tls.Config{InsecureSkipVerify: true}
	if c != nil {
		config.Certificates = []tls.Certificate{*c.TLS()}
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get is a page's status, head and body.
func get(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	return ask1(t, c, http.MethodGet, url, nil)
}

func ask1(t *testing.T, c *http.Client, method, url string, change func(*http.Request)) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(req)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err.Error()
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusTooManyRequests {
		// Tests poll faster than readers may; the answer came late enough to ask again.
		return ask1(t, c, method, url, change)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// TestPagesAreForWhoMayRead asks for pages over TLS as everybody.
func TestPagesAreForWhoMayRead(t *testing.T) {
	m := newMatrix(t)
	// Every address of the machine, so not one of this machine alone.
	l := m.show("0.0.0.0:0", m.m.Door(), m.m.Pages())
	if !strings.HasPrefix(l.URL(), "https://") {
		t.Fatalf("on every address the pages are at %s, want TLS", l.URL())
	}
	_, port, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(l.URL(), "https://"), "/"), "]:")
	if port == "" {
		_, port, _ = strings.Cut(strings.TrimSuffix(strings.TrimPrefix(l.URL(), "https://"), "/"), ":")
	}
	base := "https://" + net.JoinHostPort("127.0.0.1", port)
	const yes, no, stranger, handshake = http.StatusOK, http.StatusForbidden, http.StatusUnauthorized, 0
	certify := func(a *identity.Authority, n identity.Name, at time.Time) *identity.Credential {
		return m.certifyAt(a, n, at)
	}
	now := time.Now()
	for _, tt := range []struct {
		who             string
		shows           *identity.Credential
		status, metrics int
	}{
		{"a user", certify(ca, name(identity.User, "bob"), now), yes, yes},
		{"a master", certify(ca, name(identity.Master, "2"), now), yes, yes},
		{"a task", certify(ca, name(identity.Task, "alice/web/0"), now), no, yes},
		{"a borglet", certify(ca, name(identity.Borglet, "m1"), now), no, no},
		{"a scheduler", certify(ca, name(identity.Scheduler, "1"), now), no, no},
		{"a token", certify(ca, name(identity.Join, "user/bob"), now), no, no},
		{"a replica that was removed", certify(ca, name(identity.Master, "3"), now), stranger, stranger},
		{"a revoked user", certify(ca, alice, m.revokedAt), stranger, stranger},
		{"a user of another authority", certify(m.otherCA, name(identity.User, "bob"), now), handshake, handshake},
		{"a user of another cell", certify(m.otherCell, name(identity.User, "bob"), now), handshake, handshake},
		{"an expired user", certify(ca, name(identity.User, "bob"), now.Add(-90*24*time.Hour)), handshake, handshake},
		{"nobody", nil, handshake, handshake},
	} {
		c := browser(t, tt.shows)
		for path, want := range map[string]int{"/": tt.status, "/?format=json": tt.status, "/scheduler/": tt.status, "/metrics": tt.metrics, "/scheduler/metrics": tt.metrics, "/healthz": tt.metrics} {
			resp, body := get(t, c, base+path)
			got := 0
			if resp != nil {
				got = resp.StatusCode
			}
			if got != want {
				t.Errorf("%s asks for %s: %d, want %d\n%.300s", tt.who, path, got, want, body)
			}
		}
	}
	if resp, body := get(t, browser(t, nil), "http://"+net.JoinHostPort("127.0.0.1", port)+"/"); resp != nil && resp.StatusCode == yes {
		t.Errorf("without TLS: %s", body)
	}
}

// TestPagesTellTheTruth holds pages and metrics of all three programs to what their
// services answer.
func TestPagesTellTheTruth(t *testing.T) {
	rc := newRealCell(t)
	m1 := rc.addMachine("m1")
	rc.runs("alice", "web", "m1")
	rc.must("bob", rc.submit("bob", "waits", "nowhere"))
	url := strings.TrimSuffix(rc.show("127.0.0.1:0", rc.m.Door(), rc.m.Pages()).URL(), "/")
	machine := strings.TrimSuffix(rc.show("127.0.0.1:0", door.Config{Identity: source(t, identity.Borglet, "m1")}, m1.agent.Pages()).URL(), "/")
	c := browser(t, nil)

	rc.until("the master's page has counted the cell as it is", func() bool {
		answer, err := rc.master(identity.User, "root").GetCell(t.Context(), &borgrpc.GetCellRequest{})
		if err != nil {
			t.Fatal(err)
		}
		page, figures := readJSON(t, c, url+"/?format=json"), readFigures(t, c, url+"/metrics")
		numbers := page["numbers"].(map[string]any)
		for name, want := range map[string]uint64{
			"elected_replica": answer.Elected, "tasks_running": uint64(answer.TasksRunning), "tasks_pending": uint64(answer.TasksPending),
			"machines_up": uint64(answer.MachinesUp), "machines_down": uint64(answer.MachinesDown),
		} {
			if numbers[name] != float64(want) {
				return false
			}
		}
		if answer.TasksRunning != 1 || answer.TasksPending != 1 {
			t.Fatalf("GetCell says %v", answer)
		}
		return figures[`borg_borgmaster_tasks{band="production",state="running"}`] == 1 && figures[`borg_borgmaster_tasks{band="production",state="pending"}`] == 1 &&
			figures[`borg_borgmaster_machines{state="up"}`] == 1 && figures["borg_borgmaster_elected_replica"] == 1 &&
			figures["borg_borgmaster_commit_seconds_count"] > 0 && figures["borg_borgmaster_apply_seconds_count"] >= figures["borg_borgmaster_commit_seconds_count"] &&
			figures[`borg_borgmaster_polls_total{result="reached"}`] > 1 && figures["borg_borgmaster_shard_machines"] == 1
	})
	page := readJSON(t, c, url+"/?format=json")
	if v := page["verdict"].(map[string]any); v["mood"] != "warn" || !strings.Contains(v["text"].(string), "1 task of production") {
		t.Errorf("with a task of production that waits, the verdict is %v", v)
	}
	waits := page["sections"].(map[string]any)["what_waits"].([]any)
	if len(waits) != 1 || waits[0].(map[string]any)["job"] != "bob/waits" {
		t.Errorf("what waits: %v", waits)
	}
	rc.until("the scheduler has said what waits", func() bool {
		f := readFigures(t, c, url+"/scheduler/metrics")
		return f["borg_scheduler_placed_total"] == 1 && f["borg_scheduler_waiting_tasks"] == 1 && f["borg_scheduler_following"] == 1
	})
	if _, body := get(t, c, url+"/scheduler/"); !strings.Contains(body, "1 task of 1 job") {
		t.Errorf("the scheduler's page:\n%s", body)
	}

	f := readFigures(t, c, machine+"/metrics")
	if f[`borg_borglet_tasks{state="running"}`] != 1 || f["borg_borglet_tasks_started_total"] != 1 || f[`borg_borglet_polls_total{result="obeyed"}`] == 0 || f["borg_borglet_obeyed_index"] == 0 {
		t.Errorf("figures of the borglet: %v", f)
	}
	if page := readJSON(t, c, machine+"/?format=json"); page["sections"].(map[string]any)["tasks"].([]any)[0].(map[string]any)["task"] != "alice/web/0" ||
		page["sections"].(map[string]any)["masters"].(map[string]any)["last_poll_by"] != "master 1" {
		t.Errorf("the borglet's page: %v", page)
	}

	rc.must("alice", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "web"}}})
	rc.must("bob", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "bob", Name: "waits"}}})
	rc.until("all is well on the pages too", func() bool {
		findings, _ := readJSON(t, c, url+"/?format=json")["verdict"].(map[string]any)["findings"].([]any)
		// The disk is that of the machine of the test, and may be as good as full.
		findings = slices.DeleteFunc(findings, func(f any) bool { return strings.HasPrefix(f.(map[string]any)["text"].(string), "The disk has ") })
		return len(findings) == 0 && readFigures(t, c, machine+"/metrics")[`borg_borglet_tasks_ended_total{how="killed"}`]+readFigures(t, c, machine+"/metrics")[`borg_borglet_tasks_ended_total{how="ok"}`] == 1
	})
}

// TestTextOfOthersIsEscaped has a task that cannot start for a reason in HTML.
func TestTextOfOthersIsEscaped(t *testing.T) {
	const evil = `<script>alert("1")</script>`
	rc := newRealCell(t)
	rc.refuse = func(*borglet.Launch) error { return errors.New(evil) }
	// So that the text stands while the page is looked at.
	rc.backoff = borglet.DefaultBackoff()
	m1 := rc.addMachine("m1")
	rc.must("alice", rc.submit("alice", "web", "m1"))
	url := rc.show("127.0.0.1:0", door.Config{Identity: source(t, identity.Borglet, "m1")}, m1.agent.Pages()).URL()
	var body string
	rc.until("the page tells why the task does not start", func() bool {
		_, body = get(t, browser(t, nil), url)
		return strings.Contains(body, "alert(")
	})
	if strings.Contains(body, "<script") || !strings.Contains(body, "&lt;script&gt;alert(") {
		t.Errorf("the page has the text as it is:\n%s", body)
	}
}

// TestPagesOnlyRead makes requests that are not to be answered.
func TestPagesOnlyRead(t *testing.T) {
	rc := newRealCell(t)
	url := rc.show("127.0.0.1:0", rc.m.Door(), rc.m.Pages()).URL()
	c := browser(t, nil)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, http.MethodConnect, "BREW"} {
		for _, path := range []string{"", "metrics", "scheduler/"} {
			resp, body := ask1(t, c, method, url+path, nil)
			if resp == nil || resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s /%s: %v %s", method, path, resp, body)
			}
		}
	}
	for host, want := range map[string]int{
		"evil.example": http.StatusForbidden, "evil.example:80": http.StatusForbidden, "127.0.0.1.evil.example:1": http.StatusForbidden,
		"localhost:1": http.StatusOK, "127.0.0.1:99": http.StatusOK, "[::1]:1": http.StatusOK,
	} {
		if resp, body := ask1(t, c, http.MethodGet, url, func(r *http.Request) { r.Host = host }); resp == nil || resp.StatusCode != want {
			t.Errorf("for host %s: %v, want %d: %.100s", host, resp, want, body)
		}
	}
	for _, path := range []string{"", "metrics", "style.css", "scheduler/", "nothing", "..%2f..%2fetc/passwd"} {
		resp, body := get(t, c, url+path)
		if resp == nil {
			t.Fatal(body)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
		} {
			if !strings.Contains(resp.Header.Get(name), want) {
				t.Errorf("/%s has the header %s: %q", path, name, resp.Header.Get(name))
			}
		}
		if want := map[bool]int{true: http.StatusNotFound, false: http.StatusOK}[strings.Contains(path, "nothing") || strings.Contains(path, "..")]; resp.StatusCode != want {
			t.Errorf("/%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	if resp, body := ask1(t, c, http.MethodGet, url, func(r *http.Request) { r.Header.Set("Accept", "application/json") }); !json.Valid([]byte(body)) {
		t.Errorf("who accepts JSON gets %v %.100s", resp, body)
	}
	if resp, _ := get(t, c, url+"?refresh=1"); resp.Header.Get("Refresh") != "2" {
		t.Errorf("?refresh=1 is not bounded: %q", resp.Header.Get("Refresh"))
	}
	if resp, body := get(t, c, url+`?refresh="><script>`); strings.Contains(body, "<script") || resp.Header.Get("Refresh") != "" {
		t.Errorf("?refresh takes what is no figure: %q %.400s", resp.Header.Get("Refresh"), body)
	}
}

// TestSlowBrowsersAreClosed: one that says its request letter by letter is not
// waited for.
func TestSlowBrowsersAreClosed(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := door.ListenHTTP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := l.ServeHTTP(ctx, door.Config{Identity: source(t, identity.Borglet, "m1")}, http.NotFoundHandler()); err != nil {
			t.Error(err)
		}
	})
	defer serving.Wait()
	defer cancel()
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(l.URL(), "http://"), "/"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n")
	serving.Go(func() {
		// Until it is closed.
		for letter := byte('a'); ; letter = 'a' + (letter-'a'+1)%26 {
			if _, err := conn.Write([]byte{letter}); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	if answer, err := io.ReadAll(conn); err == nil && strings.Contains(string(answer), "200 OK") {
		t.Errorf("half a request was answered: %s", answer)
	}
	conn.Close()
}

func readJSON(t *testing.T, c *http.Client, url string) map[string]any {
	t.Helper()
	resp, body := get(t, c, url)
	var page map[string]any
	if err := json.Unmarshal([]byte(body), &page); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v %v\n%s", url, resp, err, body)
	}
	return page
}

var figureLine = regexp.MustCompile(`^(borg_[^ ]+) ([^ ]+)$`)

// readFigures are the samples at an address, by name and labels.
func readFigures(t *testing.T, c *http.Client, url string) map[string]float64 {
	t.Helper()
	resp, body := get(t, c, url)
	if resp == nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v %s", url, resp, body)
	}
	figures := map[string]float64{}
	for line := range strings.Lines(body) {
		if m := figureLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			v, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				t.Fatalf("%s: %s", url, line)
			}
			figures[m[1]] = v
		}
	}
	return figures
}
