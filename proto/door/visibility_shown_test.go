package door_test

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// TestVisibilityOfPages looks for what is quinn's on the pages of all programs.
func TestVisibilityOfPages(t *testing.T) {
	q := newQuietCell(t)
	q.rule(true)
	over := q.show("0.0.0.0:0", q.m.Door(), q.m.Pages())
	plain := q.show("127.0.0.1:0", q.m.Door(), q.m.Pages())
	machine := q.machines["m1"]
	ofMachine := q.show("0.0.0.0:0", door.Config{Identity: source(t, identity.Borglet, "m1")}, machine.agent.Pages())
	local := func(url string) string {
		_, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(url, "https://"), "/"))
		if err != nil {
			t.Fatal(err)
		}
		return "https://" + net.JoinHostPort("127.0.0.1", port)
	}
	certify := func(n identity.Name) *http.Client {
		n.Cell = ca.Cell()
		c, err := ca.Certify(n, time.Now(), identity.LifeOf(n.Role))
		if err != nil {
			t.Fatal(err)
		}
		return browser(t, c)
	}
	q.until("the machine has heard of the policy", func() bool {
		_, body := get(t, certify(name(identity.User, "bob")), local(ofMachine.URL())+"/")
		return strings.Contains(body, "of others")
	})
	paths := []string{"/", "/?format=json", "/scheduler/", "/scheduler/?format=json", "/metrics", "/scheduler/metrics"}
	admin := certify(name(identity.User, "root"))
	q.until("an admin reads the names of what waits", func() bool {
		_, body := get(t, admin, local(over.URL())+"/")
		return strings.Contains(body, "hushwaits")
	})
	for _, tt := range []struct {
		who  string
		c    *http.Client
		base string
	}{
		{"bob", certify(name(identity.User, "bob")), local(over.URL())},
		{"a process of this machine", http.DefaultClient, strings.TrimSuffix(plain.URL(), "/")},
		{"bob, of a machine", certify(name(identity.User, "bob")), local(ofMachine.URL())},
	} {
		for _, path := range paths {
			resp, body := get(t, tt.c, tt.base+path)
			if resp == nil {
				t.Fatalf("%s asks for %s: %s", tt.who, path, body)
			}
			for _, mark := range []string{secretMark, quietUser, sharedMark} {
				if at := strings.Index(body, mark); at >= 0 {
					t.Errorf("%s reads on %s: %q", tt.who, path, body[max(0, at-100):min(len(body), at+100)])
				}
			}
		}
	}
	if _, body := get(t, certify(name(identity.Master, "1")), local(ofMachine.URL())+"/"); !strings.Contains(body, "hushjob") {
		t.Errorf("a master does not read the tasks of a machine: %.300s", body)
	}
}

// TestWatchersWhenTheyAreShutOut: what is subscribed to ends or goes on without what may not
// be seen any more, when the policy or the label changes.
func TestWatchersWhenTheyAreShutOut(t *testing.T) {
	q := newQuietCell(t)
	q.rule(false)
	conn := q.conn(identity.User, "bob")
	watched, err := borgrpc.NewWatchServiceClient(conn).Watch(t.Context(), &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_JOB})
	if err != nil {
		t.Fatal(err)
	}
	events, err := borgrpc.NewMasterServiceClient(conn).Events(t.Context(), &borgrpc.EventsRequest{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	for {
		resp, err := watched.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if resp.State && !resp.More {
			break
		}
	}
	q.rule(true)
	for err == nil {
		_, err = watched.Recv()
	}
	if status.Code(err) != codes.OutOfRange {
		t.Errorf("the watch goes on, or ends with %v, when the policy has changed; want OUT_OF_RANGE", err)
	}
	// Of these the first is hidden, and the second is the sign that the first would have come.
	q.must(quietUser, q.sized(quietUser, "hushlater", "nowhere", 200, 10, nil))
	q.must("bob", q.submit("bob", "sign", "nowhere"))
	for past := false; ; {
		resp, err := events.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Events {
			past = past || e.Kind == borgpb.EventKind_EVENT_KIND_VISIBILITY && strings.Contains(e.Reason, "private")
			if past && strings.Contains(prototext.Format(e), secretMark) {
				t.Fatalf("the events go on with %v", e)
			}
		}
		if slices.ContainsFunc(resp.Events, func(e *borgpb.Event) bool { return e.Object == "bob/sign" }) {
			break
		}
	}
	// From before the change nothing is resumed.
	again, err := borgrpc.NewWatchServiceClient(conn).Watch(t.Context(), &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_JOB, FromIndex: 5})
	if err == nil {
		_, err = again.Recv()
	}
	if status.Code(err) != codes.OutOfRange {
		t.Errorf("a watch is resumed from before the policy: %v", err)
	}
	q.unshare(t)
}

// unshare takes a job from a group whose member watches it.
func (q *quietCell) unshare(t *testing.T) {
	watched, err := borgrpc.NewWatchServiceClient(q.conn(identity.User, "carl")).Watch(t.Context(), &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_JOB})
	if err != nil {
		t.Fatal(err)
	}
	label := func(labels *borgpb.SetLabels) {
		labels.Kind, labels.User, labels.Name = borgpb.Labelled_LABELLED_JOB, quietUser, sharedMark
		q.must(quietUser, &borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: labels}})
	}
	state := true
	for gone := false; !gone; {
		resp, err := watched.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if state && !resp.More {
			state = false
			label(&borgpb.SetLabels{RemoveLabels: []string{cell.ShareLabel}, SetLabels: map[string]string{"after": "hushafter"}})
		}
		for _, c := range resp.Changes {
			if strings.Contains(prototext.Format(c), secretMark) {
				t.Errorf("carl is told %v", c)
			}
			gone = gone || c.Gone
		}
	}
}
