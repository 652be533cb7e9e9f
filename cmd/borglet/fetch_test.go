package main

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// needs is a task that shows what a package holds.
func needs(digest string) *borgpb.TaskSpec {
	return &borgpb.TaskSpec{Args: []string{"/bin/cat", "/opt/tool/name"}, Packages: []*borgpb.Package{packageIn(digest, "/opt/tool")}}
}

// untilHas polls until the machine says that it has a package, and returns what it says.
func (m *machine) untilHas(digest string) *borgpb.MachinePackages {
	m.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if said := m.poll().GetSpec().GetPackages(); slices.Contains(said.GetDigests(), digest) {
			return said
		}
		time.Sleep(20 * time.Millisecond)
	}
	m.t.Fatalf("it does not say that it has %s", digest)
	return nil
}

// TestMachinesFetchFromEachOther: a machine that has nowhere else to bring a package from
// has it from one that says to have it, which gives it to machines alone.
func TestMachinesFetchFromEachOther(t *testing.T) {
	l := newLayout(t)
	digest := l.image(map[string]string{"name": "the tool\n"})
	has := newMachine(t, "container", "--package-source", l.dir)
	if said := has.poll().GetSpec().GetPackages(); said.GetPort() == 0 || len(said.GetDigests()) != 0 {
		t.Errorf("before it has any it says %v", said)
	}
	has.untilState(has.want(batch, needs(digest)), finished)
	addr := fmt.Sprintf("127.0.0.1:%d", has.untilHas(digest).GetPort())

	wants := newMachine(t, "container")
	id := wants.want(batch, needs(digest))
	wants.wanted = []*borgrpc.WantedPackage{{Digest: digest, Peers: []string{addr}}}
	wants.untilState(id, finished)
	if out := wants.logOf(id); out != "the tool\n" {
		t.Errorf("the task said %q", out)
	}
	wants.untilHas(digest)

	ca, err := testAuthority()
	if err != nil {
		t.Fatal(err)
	}
	// What a machine would ask for.
	url := "https://" + addr + "/v2/package/blobs/" + digest
	ask := func(c *http.Client) int {
		resp, err := c.Get(url)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for role, want := range map[identity.Role]int{
		identity.Borglet: 200, identity.Master: 403, identity.User: 403, identity.Scheduler: 403, identity.Task: 403,
	} {
		id := map[identity.Role]string{identity.Borglet: "m1", identity.Master: "1", identity.Scheduler: "1", identity.User: "alice", identity.Task: "alice/web/0"}[role]
		who, err := ca.Source(identity.Name{Cell: "test", Role: role, ID: id}, time.Now(), identity.Life)
		if err != nil {
			t.Fatal(err)
		}
		if got := ask(door.BlobClient(who)); got != want {
			t.Errorf("%s is answered with %d, want %d", role, got, want)
		}
	}
	other, err := identity.NewAuthority("test", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := other.Source(identity.Name{Cell: "test", Role: identity.Borglet, ID: "m1"}, time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	config := stranger.ClientTLS(identity.Name{})
	config.VerifyConnection, config.NextProtos = nil, nil
	if got := ask(&http.Client{Transport: &http.Transport{TLSClientConfig: config}}); got != 0 {
		t.Errorf("a machine of another cell is answered with %d", got)
	}
	if got := ask(&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}); got != 0 {
		t.Errorf("somebody without a certificate is answered with %d", got)
	}
}

// TestKilledWhileFetching: a borglet that is killed in mid-download goes on where it was.
func TestKilledWhileFetching(t *testing.T) {
	alongside(t)
	l := newLayout(t)
	noise := make([]byte, 2<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	digest := l.image(map[string]string{"name": "the tool\n", "noise": hex.EncodeToString(noise)})
	var mu sync.Mutex
	var ranges []string
	cut := true
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		_, hex, _ := strings.Cut(r.URL.Path, "/sha256:")
		content, err := os.ReadFile(filepath.Join(l.dir, "blobs/sha256", filepath.Base(hex)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		mu.Lock()
		halve := cut && len(content) > 1<<20
		if len(content) > 1<<20 {
			ranges = append(ranges, r.Header.Get("Range"))
		}
		mu.Unlock()
		if halve {
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			_, _ = w.Write(content[:len(content)/2])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(content)))
	}))
	t.Cleanup(registry.Close)
	m := newMachine(t, "container", "--package-source", registry.URL+"/a/tool")
	id := m.want(batch, needs(digest))
	part := int64(0)
	m.until(id, "half there", func(*borgpb.TaskReport) bool {
		list, _ := os.ReadDir(filepath.Join(m.dir, "packages", "partial"))
		for _, e := range list {
			if info, err := e.Info(); err == nil {
				part = max(part, info.Size())
			}
		}
		return part >= 2<<20
	})
	m.kill()
	mu.Lock()
	cut = false
	mu.Unlock()
	m.start()
	m.untilState(id, finished)
	mu.Lock()
	defer mu.Unlock()
	if len(ranges) != 2 || ranges[0] != "" || !strings.HasPrefix(ranges[1], "bytes=") {
		t.Fatalf("it asked for %q, want all and then the rest", ranges)
	}
	var from int64
	if _, err := fmt.Sscanf(ranges[1], "bytes=%d-", &from); err != nil || from < part {
		t.Errorf("it went on at %q, and had %d bytes", ranges[1], part)
	}
}
