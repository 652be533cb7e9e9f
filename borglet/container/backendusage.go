//go:build linux && cgo

package container

import (
	"borg/borglet"
)

// stats returns what copies use.
func (b *containerBackend) stats(runs map[borglet.ID]proc) map[borglet.ID]borglet.Stats {
	stats, err := b.meters.sample(runs)
	if err != nil {
		b.cfg.Log.Warn("usage cannot be measured", "machine", b.cfg.Name, "err", err)
	}
	return stats
}

// allocStats returns what allocs use.
func (b *containerBackend) allocStats(allocs []string) map[string]borglet.Stats {
	stats, err := b.meters.sampleAllocs(cgroupParent(b.cfg.Name), allocs)
	if err != nil {
		b.cfg.Log.Warn("the usage of allocs cannot be measured", "machine", b.cfg.Name, "err", err)
	}
	return stats
}

// kills returns the copies in which the kernel has killed processes for want of memory.
func (b *containerBackend) kills(runs map[borglet.ID]proc) map[borglet.ID]borglet.Kills {
	list, err := hierarchies()
	if err != nil {
		return nil
	}
	found := make(map[borglet.ID]oomKills)
	told := make(map[borglet.ID]borglet.Kills)
	for id, run := range runs {
		group, err := pathsOf(list, run.Pid)
		if err != nil {
			continue // it has just exited
		}
		n := group.oomKills()
		if n == 0 {
			continue
		}
		k := b.killed[id]
		if k.count == 0 || k.count > n {
			k = group.kills()
		}
		k.count = n
		found[id], told[id] = k, borglet.Kills{Count: n, Process: k.process, Bytes: k.bytes}
	}
	b.killed = found
	return told
}

// cgroups returns the cgroup of each copy.
func (b *containerBackend) cgroups(runs map[borglet.ID]proc) map[borglet.ID]paths {
	list, err := hierarchies()
	if err != nil {
		return nil
	}
	found := make(map[borglet.ID]paths, len(runs))
	for id, run := range runs {
		if group, err := pathsOf(list, run.Pid); err == nil { // otherwise it has just ended
			found[id] = group
		}
	}
	return found
}

// members returns the processes of each copy.
func (b *containerBackend) members(runs map[borglet.ID]proc) (map[borglet.ID][]int, error) {
	list, err := hierarchies()
	if err != nil {
		return nil, err
	}
	found := make(map[borglet.ID][]int, len(runs))
	for id, run := range runs {
		if group, err := pathsOf(list, run.Pid); err == nil { // otherwise it has just ended
			found[id] = group.pids()
		}
	}
	return found, nil
}
