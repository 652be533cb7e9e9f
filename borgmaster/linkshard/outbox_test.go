package linkshard

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func reports(n int, state borgpb.AttemptState) []*borgpb.TaskReport {
	var all []*borgpb.TaskReport
	for i := range n {
		all = append(all, &borgpb.TaskReport{JobUid: "1-2-0", Index: uint32(i), Attempt: 1, State: int32(state)})
	}
	return all
}

func TestOutboxIsBounded(t *testing.T) {
	o := newOutbox()
	for m := range 40 {
		o.addReports(fmt.Sprint("m", m), reports(1500, running))
	}
	if o.waiting != 33*1500 {
		t.Errorf("%d reports wait, want %d: as many machines' as fit into %d", o.waiting, 33*1500, maxWaitingReports)
	}
	taken := 0
	for !o.empty() {
		req := &borgrpc.ReportRequest{}
		o.take(req)
		n := 0
		for _, m := range req.Reports.GetMachines() {
			n += len(m.Tasks)
		}
		if n == 0 || n > maxReportsPerMessage {
			t.Fatalf("a message holds %d reports, want 1 to %d", n, maxReportsPerMessage)
		}
		taken += n
	}
	if taken != 33*1500 || o.waiting != 0 {
		t.Errorf("%d reports were taken and %d are left, want all", taken, o.waiting)
	}
}

func TestOutboxKeepsTheNewestWord(t *testing.T) {
	o := newOutbox()
	o.addReports("m1", reports(2, starting))
	o.addReports("m1", reports(1, running))
	req := &borgrpc.ReportRequest{}
	o.take(req)
	tasks := req.Reports.Machines[0].Tasks
	if len(tasks) != 2 || tasks[1].State != int32(running) || tasks[1].Index != 0 {
		t.Errorf("told are %v, want task 1 starting and task 0 running", tasks)
	}
	// A machine with more than fits into a message comes in parts.
	o.addReports("m2", reports(maxReportsPerMessage+5, running))
	req = &borgrpc.ReportRequest{}
	o.take(req)
	if n := len(req.Reports.Machines[0].Tasks); n != maxReportsPerMessage || o.waiting != 5 {
		t.Errorf("%d reports taken and %d left, want %d and 5", n, o.waiting, maxReportsPerMessage)
	}
}

func TestUndeliveredContactsComeBack(t *testing.T) {
	o := newOutbox()
	o.contacts["m1"] = &borgrpc.Contact{Machine: "m1", Missed: 4}
	o.contacts["m2"] = &borgrpc.Contact{Machine: "m2", Missed: 1}
	o.setUnknown("m1", reports(1, running))
	lost := &borgrpc.ReportRequest{}
	o.take(lost)
	o.contacts["m1"] = &borgrpc.Contact{Machine: "m1", Reached: true}
	o.putBack(lost)
	req := &borgrpc.ReportRequest{}
	o.take(req)
	if len(req.Contacts) != 2 || !req.Contacts[0].Reached || req.Contacts[1].Missed != 1 {
		t.Errorf("contacts are %v, want the newer one of m1 and that of m2 again", req.Contacts)
	}
	if len(req.Unknown) != 1 || len(req.Unknown[0].Tasks) != 1 {
		t.Errorf("unknown copies are %v, want those of m1 again", req.Unknown)
	}
	o.setUnknown("m1", reports(1, running))
	if !o.empty() {
		t.Error("what is unknown as before is news")
	}
	o.retell()
	o.setUnknown("m1", nil)
	req = &borgrpc.ReportRequest{}
	o.take(req)
	if len(req.Unknown) != 1 || len(req.Unknown[0].Tasks) != 0 {
		t.Errorf("unknown copies are %v, want an empty list for m1", req.Unknown)
	}
}
