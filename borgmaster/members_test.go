package borgmaster_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"borg/borgmaster"
	"borg/identity"
	"borg/proto/borgrpc"
)

// twoPeers are the insides of a log that is elected: replica 2 has acknowledged entries,
// replica 3 nothing since.
type twoPeers struct{}

func (twoPeers) Peers() []borgmaster.Peer {
	return []borgmaster.Peer{
		{ID: 2, Heard: time.Minute, Following: true, Match: 7, Behind: 3},
		{ID: 3, Heard: 6 * time.Minute, Following: true, Behind: 10},
	}
}

func (p twoPeers) Vitals() borgmaster.Vitals        { return borgmaster.Vitals{Peers: p.Peers()} }
func (twoPeers) Collectors() []prometheus.Collector { return nil }

// TestListMembersNeverHeard: no figure is told of a replica of which the elected one has
// heard nothing.
func TestListMembersNeverHeard(t *testing.T) {
	tc := newCell(t, 3, func(_ int, c *borgmaster.Config) { c.Insides = twoPeers{} })
	resp, err := borgrpc.NewMemberServiceClient(tc.conn(1, identity.User, "root")).ListMembers(t.Context(), &borgrpc.ListMembersRequest{})
	if err != nil || len(resp.Members) != 3 {
		t.Fatalf("%v, %v; want three members", resp, err)
	}
	if m := resp.Members[1]; m.HeardNs != int64(time.Minute) || m.Behind != 3 {
		t.Errorf("%v, want heard a minute ago and 3 behind", m)
	}
	if m := resp.Members[2]; m.HeardNs >= 0 {
		t.Errorf("%v, want never heard", m)
	}
}
