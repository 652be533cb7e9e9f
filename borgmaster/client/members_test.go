package client

import (
	"slices"
	"testing"
	"time"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestMastersThatJoinedAreFound: of the masters that a client was given one leaves, and the
// rest goes later; it finds those that joined meanwhile.
func TestMastersThatJoinedAreFound(t *testing.T) {
	stays, joined, left := startMaster(t), startMaster(t), deadAddr(t)
	stays.members = []*borgpb.Member{{Id: 1, Addr: stays.addr}, {Id: 4, Addr: joined.addr}}
	joined.members = stays.members
	c := newClient(t, Config{Masters: []string{left, stays.addr}, Timeout: 10 * time.Second, Identity: source(t, identity.User, "alice")})
	if c.Silent() {
		t.Error("somebody is silent before anything was asked")
	}
	c.current = 0
	if _, err := c.GetJob(t.Context(), &borgrpc.GetJobRequest{User: "alice", Name: "web"}); err != nil {
		t.Fatal(err)
	}
	if !c.Silent() {
		t.Error("nobody is silent")
	}
	are, gone := c.Moved(t.Context())
	if !slices.Equal(are, []string{stays.addr, joined.addr}) || !slices.Equal(gone, []string{left}) {
		t.Errorf("the masters are at %v and gone is %v", are, gone)
	}
	// A client that has not asked anything yet finds it, too.
	fresh := newClient(t, Config{Masters: []string{stays.addr}, Timeout: 10 * time.Second, Identity: source(t, identity.User, "alice")})
	var asked []string
	for _, v := range fresh.Examine(t.Context()) {
		asked = append(asked, v.Addr)
	}
	if !slices.Equal(asked, []string{stays.addr, joined.addr}) {
		t.Errorf("what is wrong was asked at %v, want both masters", asked)
	}
	if _, err := c.GetCell(t.Context()); err != nil {
		t.Fatal(err)
	}
	stays.stop()
	if _, err := c.GetJob(t.Context(), &borgrpc.GetJobRequest{User: "alice", Name: "web"}); err != nil {
		t.Errorf("when none of those that were given is there: %v", err)
	}
}
