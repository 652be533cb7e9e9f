package borgmaster

import (
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestVolumeUse: the last word of a machine counts, for a while, and for the volumes that
// the cell has there.
func TestVolumeUse(t *testing.T) {
	var u volumeUse
	now := time.Unix(1_000_000, 0)
	name := &borgpb.VolumeName{User: "alice", Job: "db", Index: 3, Volume: "data"}
	hear := func(machine string, uses ...*borgrpc.VolumeUse) {
		u.hear(now, []*borgrpc.MachineUsage{{Machine: machine, Volumes: uses}})
	}
	check := func(when string, want int64) {
		t.Helper()
		v := &borgpb.VolumeStatus{User: "alice", Job: "db", Index: 3, Volume: "data", Machine: "m1"}
		if u.fill(now, []*borgpb.VolumeStatus{v}); v.UsedBytes != want {
			t.Errorf("%s it keeps %d, want %d", when, v.UsedBytes, want)
		}
	}
	check("before anything was heard", 0)
	hear("m2", &borgrpc.VolumeUse{Name: name, DiskBytes: 1})
	check("as another machine says", 0)
	hear("m1", &borgrpc.VolumeUse{Name: name, DiskBytes: 2})
	hear("m1")
	check("after a report without volumes", 2)
	hear("m1", &borgrpc.VolumeUse{Name: name, DiskBytes: 5})
	check("after another word", 5)
	now = now.Add(volumesFresh + 1)
	check("when that was long ago", 0)
	if hear("m2", &borgrpc.VolumeUse{Name: name, DiskBytes: 1}); len(u.machines) != 1 {
		t.Errorf("what %d machines said is kept, want one", len(u.machines))
	}
}
