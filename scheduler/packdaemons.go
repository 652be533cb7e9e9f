package scheduler

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// A daemon job has a task on each machine that it matches, so in a packing it is no workload
// to find places for. What it asks for is taken off every machine, before anything else is
// placed: daemons come and go with the machines.

// isDaemon reports whether the tasks of a job go with the machines.
func isDaemon(j *cell.Job) bool { return j.Kind() == borgpb.JobKind_JOB_KIND_DAEMON }

// daemons are the daemon jobs of the workload that live.
func (k Packing) daemons() (all []*cell.Job) {
	for j := range k.Workload.Jobs() {
		if isDaemon(j) && j.State() != borgpb.State_STATE_DEAD {
			all = append(all, j)
		}
	}
	return all
}

// seatDaemons takes what daemons ask for off the machines of an empty grid that is about to be
// made of the sites.
func (k Packing) seatDaemons(daemons []*cell.Job, on *sites) {
	for _, t := range on.walk {
		for _, j := range daemons {
			if !j.Matches(t.machine) {
				continue
			}
			limits, reserved := k.daemonOn(j, t.machine)
			t.promises++
			t.promised.Limits, t.promised.Reserved = t.promised.Limits.Add(limits), t.promised.Reserved.Add(reserved)
			if len(limits.Devices) > 0 {
				q := t.machine.DeviceRoom()
				q.Empty, q.Promised = true, t.promised.Devices
				t.promised.Devices = append(t.promised.Devices, q.Choose(limits.Devices)...)
			}
			if j.Priority() >= prodPriority {
				t.promisedProdCPU += limits.CPUMilli
			}
		}
	}
}

// daemonOn is what a daemon job asks for on a machine, and what it reserves there: what its
// task on the machine of that name does, or its limit.
func (k Packing) daemonOn(j *cell.Job, m *cell.Machine) (limits, reserved cell.Resources) {
	limits = j.SeatNeed().Resources
	if k.Resize != nil {
		limits = k.Resize(j.Priority(), limits)
	}
	if own := k.Workload.Machine(m.Name()); own != nil {
		if index, seated := j.SeatOn(own); seated {
			return limits, k.Reserved(j, index)
		}
	}
	return limits, limits
}
