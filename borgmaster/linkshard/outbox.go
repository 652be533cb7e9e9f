package linkshard

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// Task reports that wait for the elected master at most. More are not lost:
	// the next poll of their machine finds them again.
	maxWaitingReports = 50_000
	// Of these, so many go into one message, which becomes one op in the log.
	maxReportsPerMessage = 2_000
	// And no more once they have so many bytes: the last one may pass it, and
	// the op must stay below 1 MiB.
	maxReportBytes = 512 << 10
	// Contacts in one message, and unknown copies.
	maxContactsPerMessage = 5_000
	maxUnknownPerMessage  = 5_000
)

// outbox holds what the elected master is to be told. It is owned by the
// shard's one goroutine.
type outbox struct {
	reports  map[string][]*borgpb.TaskReport
	waiting  int
	contacts map[string]*borgrpc.Contact
	// What is unknown on each machine of the share, and where that is news.
	unknown     map[string][]*borgpb.TaskReport
	unknownNews map[string]bool
	// What a restored cell should hear. It is found again by polling.
	heard map[string]*borgpb.HeardMachine
	// What is to be told of the volumes of machines. It is found again by polling.
	volumes map[string]*borgpb.MachineReport
}

func newOutbox() *outbox {
	return &outbox{
		reports: map[string][]*borgpb.TaskReport{}, contacts: map[string]*borgrpc.Contact{},
		unknown: map[string][]*borgpb.TaskReport{}, unknownNews: map[string]bool{},
		heard:   map[string]*borgpb.HeardMachine{},
		volumes: map[string]*borgpb.MachineReport{},
	}
}

func (o *outbox) empty() bool {
	return o.waiting == 0 && len(o.contacts) == 0 && len(o.unknownNews) == 0 && len(o.heard) == 0 && len(o.volumes) == 0
}

// addReports puts a machine's differences in, in place of older ones: each poll
// finds all that the cell does not have yet, save what was sent a moment ago.
func (o *outbox) addReports(machine string, tasks []*borgpb.TaskReport) {
	if len(tasks) == 0 || o.waiting+len(tasks) > maxWaitingReports {
		return
	}
	kept := slices.DeleteFunc(o.reports[machine], func(old *borgpb.TaskReport) bool {
		return slices.ContainsFunc(tasks, func(t *borgpb.TaskReport) bool { return copyOf(t) == copyOf(old) })
	})
	o.waiting += len(kept) + len(tasks) - len(o.reports[machine])
	o.reports[machine] = append(kept, tasks...)
}

// setUnknown notes what a machine runs that the cell knows nothing of.
func (o *outbox) setUnknown(machine string, tasks []*borgpb.TaskReport) {
	same := slices.EqualFunc(o.unknown[machine], tasks, func(a, b *borgpb.TaskReport) bool { return proto.Equal(a, b) })
	if same {
		return
	}
	o.unknownNews[machine] = true
	if len(tasks) == 0 {
		delete(o.unknown, machine)
		return
	}
	o.unknown[machine] = tasks
}

// retell makes all that is unknown news again, for another master.
func (o *outbox) retell() {
	for machine := range o.unknown {
		o.unknownNews[machine] = true
	}
}

// take moves as much as one message may hold into req.
func (o *outbox) take(req *borgrpc.ReportRequest) {
	n, bytes := 0, 0
	for _, machine := range slices.Sorted(maps.Keys(o.reports)) {
		tasks := o.reports[machine]
		if n > 0 && n+len(tasks) > maxReportsPerMessage || bytes >= maxReportBytes {
			break
		}
		if req.Reports == nil {
			req.Reports = &borgpb.Reports{}
		}
		part := tasks[:0]
		for len(part) < min(len(tasks), maxReportsPerMessage) && bytes < maxReportBytes {
			bytes += proto.Size(tasks[len(part)])
			part = tasks[:len(part)+1]
		}
		req.Reports.Machines = append(req.Reports.Machines, &borgpb.MachineReport{Machine: machine, Tasks: part})
		n += len(part)
		if o.reports[machine] = tasks[len(part):]; len(o.reports[machine]) == 0 {
			delete(o.reports, machine)
		}
	}
	o.waiting -= n
	for _, machine := range slices.Sorted(maps.Keys(o.volumes)) {
		if bytes >= maxReportBytes {
			break
		}
		if req.Reports == nil {
			req.Reports = &borgpb.Reports{}
		}
		bytes += proto.Size(o.volumes[machine])
		req.Reports.Machines = append(req.Reports.Machines, o.volumes[machine])
		delete(o.volumes, machine)
	}
	for _, machine := range slices.Sorted(maps.Keys(o.contacts)) {
		if len(req.Contacts) == maxContactsPerMessage {
			break
		}
		req.Contacts = append(req.Contacts, o.contacts[machine])
		delete(o.contacts, machine)
	}
	n = 0
	for _, machine := range slices.Sorted(maps.Keys(o.unknownNews)) {
		if n += 1 + len(o.unknown[machine]); n > maxUnknownPerMessage {
			break
		}
		req.Unknown = append(req.Unknown, &borgpb.MachineReport{Machine: machine, Tasks: o.unknown[machine]})
		delete(o.unknownNews, machine)
	}
	o.takeHeard(req)
}

// takeHeard moves what restored cells should hear into req.
func (o *outbox) takeHeard(req *borgrpc.ReportRequest) {
	n, bytes := 0, 0
	for _, machine := range slices.Sorted(maps.Keys(o.heard)) {
		h := o.heard[machine]
		if n += 1 + len(h.Missing) + len(h.Found) + len(h.Left); n > maxReportsPerMessage && req.Heard != nil || bytes >= maxReportBytes {
			break
		}
		if req.Heard == nil {
			req.Heard = &borgpb.HearMachines{}
		}
		bytes += proto.Size(h)
		req.Heard.Machines = append(req.Heard.Machines, h)
		delete(o.heard, machine)
	}
}

// putBack takes in again what could not be delivered and is not found again
// by polling. Newer contacts win.
func (o *outbox) putBack(req *borgrpc.ReportRequest) {
	for _, c := range req.Contacts {
		if o.contacts[c.Machine] == nil {
			o.contacts[c.Machine] = c
		}
	}
	for _, u := range req.Unknown {
		o.unknownNews[u.Machine] = true
	}
}

// dropMisses forgets polls that were missed: by the time that they are told they say
// nothing of their machines.
func (o *outbox) dropMisses() {
	for machine, c := range o.contacts {
		if !c.Reached {
			delete(o.contacts, machine)
		}
	}
}

// drop forgets a machine that is no longer in the cell.
func (o *outbox) drop(machine string) {
	o.waiting -= len(o.reports[machine])
	delete(o.reports, machine)
	delete(o.contacts, machine)
	delete(o.unknown, machine)
	delete(o.unknownNews, machine)
	delete(o.heard, machine)
	delete(o.volumes, machine)
}
