package sim

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// DiskFault is one failure of one disk, at a write that is counted: with nothing
// else that fails, a run for each of them sees every state in which a disk can.
type DiskFault struct {
	// What the replica is to the cell that writes, and what becomes of its disk.
	Role, Kind string
	// Which write of that role it is, from 1.
	Write int
}

// DiskRoles and DiskKinds are what there is.
var (
	DiskRoles = []string{"leader", "follower", "learner"}
	// Each lasts for diskFaultNs, but torn: the machine loses its power in the write.
	DiskKinds = []string{"error", "full", "stall", "torn"}
)

// SweepAim is the aim of runs with a DiskFault.
const SweepAim = "disk-sweep"

const (
	diskFaultNs = 3 * second
	tornBackNs  = 500 * millisecond
	// The run is over so long after the fault.
	afterDiskFaultNs = 6 * second
	// Within that another one is elected.
	stepsDownNs = second
)

// Item numbers all faults of a sweep: those of write 1 first.
func (d DiskFault) Item() uint64 {
	return uint64((d.Write-1)*len(DiskRoles)*len(DiskKinds) + slices.Index(DiskRoles, d.Role)*len(DiskKinds) + slices.Index(DiskKinds, d.Kind))
}

// DiskFaultOf is the fault of a number.
func DiskFaultOf(item uint64) DiskFault {
	kinds, roles := uint64(len(DiskKinds)), uint64(len(DiskRoles))
	return DiskFault{Kind: DiskKinds[item%kinds], Role: DiskRoles[item/kinds%roles], Write: int(item/kinds/roles) + 1}
}

func (d DiskFault) String() string {
	return fmt.Sprintf("the disk of the %s at its write %d: %s", d.Role, d.Write, d.Kind)
}

// Validate says what is wrong with it.
func (d DiskFault) Validate() error {
	if !slices.Contains(DiskRoles, d.Role) || !slices.Contains(DiskKinds, d.Kind) || d.Write < 1 {
		return fmt.Errorf("%v: want a role of %s, a kind of %s, and a write from 1", d, strings.Join(DiskRoles, ", "), strings.Join(DiskKinds, ", "))
	}
	return nil
}

// role is what a replica is to the cell; of the followers the one with the lowest
// number stands for all, and the others are nothing.
func (r *replicaNode) role() string {
	m := r.core.Members()
	switch {
	case r.core.State().Leading:
		return "leader"
	case !m.Voter(r.id):
		return "learner"
	}
	for _, id := range m.Voters {
		if x := r.w.nodes[id]; x != r && x.up && !x.core.State().Leading {
			if x.id < r.id {
				return ""
			}
		}
	}
	return "follower"
}

// counts counts a write, and lets the disk fail if it is the one. lives is false when
// the replica does not.
func (r *replicaNode) counts() (lives bool) {
	w := r.w
	if w.healed {
		return true
	}
	if w.result.Writes == nil {
		w.result.Writes = map[string]int{}
	}
	role := r.role()
	if role == "" {
		return true
	}
	w.result.Writes[role]++
	d := w.cfg.Disk
	if d == nil || d.Role != role || w.result.Writes[role] != d.Write {
		return true
	}
	w.say("%v, which is replica %d", *d, r.id)
	w.mark("disk failed at a counted write")
	w.result.Faults = append(w.result.Faults, fmt.Sprintf("%.6f s: %v", float64(w.now-second)/1e9, *d))
	w.after(afterDiskFaultNs, w.heal)
	rnd := stream(w.cfg.Seed, fmt.Sprint("disk fault ", d.Item()))
	r.stepsDown(*d, r.life, w.now+stepsDownNs)
	switch d.Kind {
	case "stall":
		r.hangsUntilNs = w.now + diskFaultNs
	case "torn":
		r.crash(keepTorn, true)
		w.after(tornBackNs, func() {
			if !r.up {
				r.start()
			}
		})
		return false
	case "full":
		r.settleDisk()
		r.disk.fail(failure{err: syscall.ENOSPC, bytes: rnd.Int64N(2048)})
	case "error":
		r.settleDisk()
		r.disk.fail(failure{err: syscall.EIO, bytes: rnd.Int64N(512), syncs: chance(rnd, 500)})
	}
	w.failover.look()
	w.after(diskFaultNs, r.mend)
	return true
}

// stepsDown is S26, for one life of a replica, at a time. A disk that hangs is noticed by
// the append that hangs, which in a quiet cell comes a while after the fault.
func (r *replicaNode) stepsDown(d DiskFault, life uint64, at int64) {
	w := r.w
	w.at(at, func() {
		switch {
		case r.life != life || !r.up || !r.core.State().Leading || r.able():
		case r.hung && w.now < r.appendSinceNs+stepsDownNs:
			r.stepsDown(d, life, r.appendSinceNs+stepsDownNs)
		default:
			w.fail("S26: %v, and %d ms later it is still elected", d, stepsDownNs/millisecond)
		}
	})
}
