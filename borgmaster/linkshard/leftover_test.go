package linkshard

import (
	"testing"

	"borg/proto/borgpb"
)

// What a machine still has that was removed while it was silent is described, told to the
// cell, and stopped by the orders of the next poll; what only its answer of before names is
// not.
func TestLeftoversAreTold(t *testing.T) {
	l := newLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: 12}}})
	l.report(l.says(0, 1, running), l.says(1, 1, running))
	spec := specOf(l.machine())
	l.do(&borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: "m1", Force: true}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: "m1", Spec: spec}}})
	known := &Known{}
	has := []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running)}
	if _, cmp := l.describing(1e9, known, has...); cmp.Heard != nil || !cmp.Busy || len(cmp.Unknown) != 2 {
		t.Fatalf("before they were described the cell hears %v of %v", cmp.Heard, cmp.Unknown)
	}
	_, cmp := l.describing(2e9, known, has...)
	if cmp.Heard == nil || len(cmp.Heard.Left) != 2 || cmp.Heard.Left[0].Ports[0] != 20000 {
		t.Fatalf("the cell hears %v", cmp.Heard)
	}
	l.hear(cmp.Heard)
	req, cmp := l.describing(3e9, known, has...)
	if len(req.Stops) != 2 || cmp.Heard != nil || len(cmp.Unknown) != 0 {
		t.Errorf("%d are stopped, want 2; the cell hears %v of %v", len(req.Stops), cmp.Heard, cmp.Unknown)
	}
}
