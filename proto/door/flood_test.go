package door_test

import (
	"runtime"
	"slices"
	"testing"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// TestStalledCallsOfAnyMethod: each caller who is no master begins, of each call that it
// may make, as many as four connections take, with messages as large as the call allows,
// and sends all but their last bytes. Of none of these calls does a master hold more than
// docs/limits.md says for one user.
func TestStalledCallsOfAnyMethod(t *testing.T) {
	rc := newRealCell(t)
	table := door.Access()
	callers := []identity.Name{name(identity.User, "alice"), name(identity.Borglet, "m1"), name(identity.Task, "alice/web/0"), name(identity.Join, "user/alice")}
	const conns, each = 4, 64
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	tried := 0
	for _, method := range calls() {
		call := path(method)
		for _, who := range callers {
			if !slices.Contains(table[call], who.Role) {
				continue
			}
			tried++
			size := int(door.RequestBytes(call, who.Role))
			before := heap()
			stop := door.StallCalls(t, rc.addr, source(t, who.Role, who.ID), call, size, conns, each)
			// What arrives needs buffers of its size, and what they are read from as much again.
			if grew, most := heap()-before, int64(2*door.ReceivingOfUser+16<<20); grew > most {
				t.Errorf("%s of %s: %d stalled messages of %d bytes take %d MiB, want at most %d", call, who, conns*each, size, grew>>20, most>>20)
			}
			stop()
		}
	}
	if tried < 40 {
		t.Errorf("only %d calls were tried", tried)
	}
	if _, err := rc.master(identity.User, "bob").GetCell(t.Context(), &borgrpc.GetCellRequest{}); err != nil {
		t.Errorf("after all of it bob's call fails: %v", err)
	}
}
