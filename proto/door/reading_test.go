package door_test

import (
	"strings"
	"testing"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// TestReceived counts a call of each side by the role of the other one: the request where it
// is served, and the answer where it was made.
func TestReceived(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{})
	borglet := borgletAt(t, addr)
	fromMaster, fromBorglet := door.Received(identity.Master), door.Received(identity.Borglet)
	const bytes = 1 << 20
	if _, err := borglet.Describe(t.Context(), &borgrpc.DescribeRequest{}); err != nil {
		t.Fatal(err)
	}
	heads := door.Received(identity.Master) - fromMaster
	if got := door.Received(identity.Borglet) - fromBorglet; heads < 20 || got < 20 {
		t.Errorf("of a call %d bytes were read from a master, and %d of the answer from a borglet", heads, got)
	}
	fromMaster = door.Received(identity.Master)
	log, err := borglet.ReadLog(t.Context(), &borgrpc.ReadLogRequest{Copy: &borgrpc.CopyID{JobUid: strings.Repeat("m", bytes)}})
	if err == nil {
		_, err = log.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := door.Received(identity.Master) - fromMaster; got < bytes {
		t.Errorf("of a call with %d bytes, %d were read from a master", bytes, got)
	}
}
