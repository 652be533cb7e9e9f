package fauxmaster

import (
	"testing"
	"time"

	"borg/borgmaster/cell"
	"borg/borgmaster/memlog"
	"borg/proto/borgpb"
)

// TestRestIsNoMatterOfTime: a session rests when the scheduler and the link shard have done
// what there is, however long they take.
func TestRestIsNoMatterOfTime(t *testing.T) {
	g, err := memlog.NewGroup(memlog.Config{
		Load: func() (*cell.Cell, error) { return cell.New("c", 1), nil }, Addrs: []string{"127.0.0.1:1"},
		Clock: func() (int64, int64) { return 1, 1e18 },
	})
	if err != nil {
		t.Fatal(err)
	}
	g.Elect(1)
	idle := true
	l := &pastLog{Log: g.Replica(1), world: NewWorld(Speed{}), idle: func() bool { return idle }}
	if _, err := l.Propose(t.Context(), &borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}}); err != nil {
		t.Fatal(err)
	}
	at := l.State().Applied
	long := time.Now().Add(-restAnyhow / 2).UnixNano()
	for _, c := range []struct {
		settled uint64
		idle    bool
		want    bool
	}{{at - 1, true, false}, {at, false, false}, {at, true, true}} {
		l.settledAt.Store(c.settled)
		l.appliedNs.Store(long)
		idle = c.idle
		if got := l.resting(); got != c.want {
			t.Errorf("the scheduler is at %d of %d, the shard idle %v: resting %v, want %v", c.settled, at, c.idle, got, c.want)
		}
	}
	l.settledAt.Store(0)
	l.appliedNs.Store(time.Now().Add(-2 * restAnyhow).UnixNano())
	if !l.resting() {
		t.Error("a session without a scheduler never rests")
	}
}
