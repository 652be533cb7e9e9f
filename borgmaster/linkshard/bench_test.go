package linkshard

import (
	"testing"

	"borg/proto/borgrpc"
)

// BenchmarkPollAtRest is what a poll costs a replica, save for the wire, when
// nothing changed on a machine with 25 tasks (the paper's 90th percentile).
func BenchmarkPollAtRest(b *testing.B) {
	l := newLogOf(b, 25)
	known := &Known{}
	resp := &borgrpc.PollResponse{}
	for i := range uint32(25) {
		resp.Tasks = append(resp.Tasks, l.says(i, 1, running))
		resp.Versions = append(resp.Versions, 1)
	}
	l.report(resp.Tasks...)
	known.Take(resp)
	rest := &borgrpc.PollResponse{Unchanged: true, Highest: FenceOf(l.cell)}
	b.ReportAllocs()
	for b.Loop() {
		req := Build(l.cell, l.machine(), "test", 1, known)
		if cmp := Compare(0, l.cell, l.machine(), req, rest, known); len(cmp.Reports) != 0 || len(req.Desired) != 25 {
			b.Fatalf("at rest %v is told and %d tasks are wanted", cmp.Reports, len(req.Desired))
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "linkshard.polls_at_rest_per_s")
}

// BenchmarkLiveSet is what the change of a live set costs with 10,000 machines.
func BenchmarkLiveSet(b *testing.B) {
	core := NewCore(CoreConfig{Replica: 1})
	core.Step(0, MachinesAre{Names: names(10_000)})
	version := uint64(0)
	for b.Loop() {
		version++
		live := []uint64{1, 2, 3, 4, 5}
		core.Step(0, LiveSet{Term: 1, Version: version, Live: live[:4+version%2]})
	}
}
