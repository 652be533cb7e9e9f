package borglet

import (
	"slices"
	"sync"

	"borg/pages"
	"borg/proto/borgrpc"
)

// maxVolumesTold is of how many volumes a poll tells what they keep, in the order of their
// names.
const maxVolumesTold = 4_096

// volumeUse is what the volumes of a machine keep, as last measured.
type volumeUse struct {
	mu sync.Mutex
	// bytes is never changed, only replaced. Guarded by mu.
	bytes map[VolumeID]int64
	// told: no poll waits for it. Guarded by mu.
	told bool
}

func (u *volumeUse) measured(bytes map[VolumeID]int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes, u.told = bytes, false
}

// last is what was measured last.
func (u *volumeUse) last() map[VolumeID]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes
}

// take is what was measured since it was taken before.
func (u *volumeUse) take() (list []*borgrpc.VolumeUse) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.told {
		return nil
	}
	u.told = true
	for id, bytes := range u.bytes {
		list = append(list, &borgrpc.VolumeUse{Name: id.wire(), DiskBytes: bytes})
	}
	slices.SortFunc(list, func(a, b *borgrpc.VolumeUse) int { return volumeIDOf(a.Name).Compare(volumeIDOf(b.Name)) })
	return list[:min(len(list), maxVolumesTold)]
}

// volumeSection shows what the volumes on this machine keep, and may.
func (a *Agent) volumeSection() pages.Section {
	here, used := a.store.volumes.limits(), a.volumeUse.last()
	s := pages.Section{Title: "Volumes", Head: []string{"volume", "keeps", "may keep"}, More: max(len(here)-maxTasksShown, 0)}
	for _, id := range a.store.volumes.all() {
		if len(s.Rows) == maxTasksShown {
			break
		}
		keeps := pages.Value{Text: "–", Unit: "bytes"}
		if bytes, measured := used[id]; measured {
			keeps = pages.Bytes(bytes)
		}
		s.Rows = append(s.Rows, []pages.Value{pages.Text(id.words()), keeps, pages.Bytes(here[id])})
	}
	return s
}
