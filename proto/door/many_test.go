package door_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// One listener may stand for many: each proves who it is at its own address, and at
// no other.
func TestManyBehindOneListener(t *testing.T) {
	at := map[string]*identity.Source{
		"127.64.0.1": source(t, identity.Borglet, "m1"),
		"127.64.0.2": source(t, identity.Borglet, "m2"),
	}
	addr := serve(t, "0.0.0.0:0", door.Config{
		Identity:   at["127.64.0.1"],
		IdentityAt: func(local net.Addr) *identity.Source { return at[local.(*net.TCPAddr).IP.String()] },
	})
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ host, want, why string }{
		{"127.64.0.1", "m1", ""},
		{"127.64.0.2", "m2", ""},
		{"127.64.0.2", "m1", "borglet m2 answers there"},
		{"127.64.0.1", "m2", "borglet m1 answers there"},
		{"127.64.0.3", "m1", "handshake failed"},
	} {
		conn := dial(t, net.JoinHostPort(c.host, port), source(t, identity.Master, "1"), name(identity.Borglet, c.want))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		_, err := borgrpc.NewBorgletServiceClient(conn).Describe(ctx, &borgrpc.DescribeRequest{})
		cancel()
		if c.why == "" && err != nil || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("%s, where %s is expected: %v, want %q", c.host, c.want, err, c.why)
		}
	}
}
