package borgmaster

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// volumesFresh is for how long a word on what the volumes of a machine keep is told. They
// are measured twice a minute, and where there are many files more seldom.
const volumesFresh = 10 * time.Minute

// volumeUse is what volumes keep, as link shards have told this replica while it was the
// elected master.
type volumeUse struct {
	mu sync.Mutex
	// By machine. Guarded by mu, as is the rest.
	machines map[string]volumesHeard
	swept    time.Time
}

type volumesHeard struct {
	at    time.Time
	bytes map[string]int64
}

// hear takes in a report: the last word on a machine counts.
func (u *volumeUse) hear(now time.Time, usage []*borgrpc.MachineUsage) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range usage {
		if len(m.GetVolumes()) == 0 {
			continue
		}
		heard := volumesHeard{now, make(map[string]int64, len(m.Volumes))}
		for _, v := range m.Volumes {
			heard.bytes[volumeWords(v.GetName())] = v.GetDiskBytes()
		}
		if u.machines == nil {
			u.machines = map[string]volumesHeard{}
		}
		u.machines[m.GetMachine()] = heard
	}
	if now.Sub(u.swept) > volumesFresh {
		u.swept = now
		maps.DeleteFunc(u.machines, func(_ string, h volumesHeard) bool { return now.Sub(h.at) > volumesFresh })
	}
}

// fill says of volumes what they keep, as far as it was heard lately.
func (u *volumeUse) fill(now time.Time, volumes []*borgpb.VolumeStatus) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, v := range volumes {
		if h, heard := u.machines[v.Machine]; heard && now.Sub(h.at) <= volumesFresh {
			v.UsedBytes = h.bytes[volumeWords(&borgpb.VolumeName{User: v.User, Job: v.Job, Index: v.Index, Volume: v.Volume})]
		}
	}
}

func volumeWords(n *borgpb.VolumeName) string {
	return fmt.Sprintf("%s/%s/%d/%s", n.GetUser(), n.GetJob(), n.GetIndex(), n.GetVolume())
}
