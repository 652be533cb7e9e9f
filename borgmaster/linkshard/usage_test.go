package linkshard

import (
	"fmt"
	"strings"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func uses(from, to int, cpuMilli, memBytes int64) (all []*borgrpc.Usage) {
	for i := from; i < to; i++ {
		all = append(all, &borgrpc.Usage{Copy: &borgrpc.CopyID{JobUid: "1-2-0", Index: uint32(i), Attempt: 1}, CpuMilliMean: cpuMilli, MemBytesPeak: memBytes})
	}
	return all
}

// TestUsageKeepsTheMost wants the first word sent at once, the next five seconds
// later with the most that was seen between them, and nothing when nothing is new.
func TestUsageKeepsTheMost(t *testing.T) {
	u := newUsageBox(5e9)
	sent := func(now int64) string {
		req := &borgrpc.ReportRequest{}
		u.take(now, req)
		var text strings.Builder
		for _, m := range req.Usage {
			for _, c := range m.Copies {
				text.WriteString(fmt.Sprintf("%s/%d cpu %d mem %d; ", m.Machine, c.Index, c.CpuMilli, c.MemBytes))
			}
		}
		return text.String()
	}
	u.add("m1", uses(0, 1, 100, 1000), nil)
	u.add("m2", nil, nil)
	for _, step := range []struct {
		now  int64
		tell []*borgrpc.Usage
		want string
	}{
		{1e9, nil, "m1/0 cpu 100 mem 1000; "},
		{2e9, uses(0, 2, 900, 1000), ""},
		{3e9, uses(0, 1, 50, 5000), ""},
		{4e9, nil, ""},
		{6e9, nil, "m1/0 cpu 900 mem 5000; m1/1 cpu 900 mem 1000; "},
		{60e9, nil, ""},
		{61e9, uses(1, 2, 1, 1), "m1/1 cpu 1 mem 1; "},
	} {
		u.add("m1", step.tell, nil)
		if got := sent(step.now); got != step.want {
			t.Errorf("at %d s %q is sent, want %q", step.now/1e9, got, step.want)
		}
	}
	u.add("m1", uses(0, 1, 7, 7), nil)
	u.begin()
	if got, want := sent(62e9), "m1/0 cpu 7 mem 7; "; got != want {
		t.Errorf("to another master %q is sent, want %q", got, want)
	}
}

// TestUsageThatIsAsBefore goes unsaid a few times in a row; what differs by more than a
// twentieth is told, and all of it when the copies are others, when it may be lost,
// and twice to another master.
func TestUsageThatIsAsBefore(t *testing.T) {
	u, now := newUsageBox(5e9), int64(0)
	sent := func() (text string, req *borgrpc.ReportRequest) {
		req = &borgrpc.ReportRequest{}
		now += 5e9
		u.take(now, req)
		for _, m := range req.Usage {
			for _, c := range m.Copies {
				text += fmt.Sprintf("%d: %d %d; ", c.Index, c.CpuMilli, c.MemBytes)
			}
			if m.Rest {
				text += "rest"
			}
		}
		return text, req
	}
	const all = "0: 320 6400; 1: 320 6400; "
	other := &borgrpc.Usage{Copy: &borgrpc.CopyID{JobUid: "1-2-0", Index: 1, Attempt: 2}, CpuMilliMean: 320, MemBytesPeak: 6400}
	for i, step := range []struct {
		tell []*borgrpc.Usage
		want string
	}{
		{uses(0, 2, 320, 6400), all},
		{uses(0, 2, 320, 6400), "rest"},
		{append(uses(0, 1, 336, 6400), uses(1, 2, 304, 6080)...), "rest"},
		{append(uses(0, 1, 336, 6400), uses(1, 2, 337, 6400)...), "1: 337 6400; rest"},
		{append(uses(0, 1, 320, 6079), uses(1, 2, 337, 6400)...), "0: 320 6079; rest"},
		// Told little by little, it is still no further off than that.
		{append(uses(0, 1, 320, 6079), uses(1, 2, 354, 6400)...), "1: 354 6400; rest"},
		{append(uses(0, 1, 320, 6079), uses(1, 2, 354, 6400)...), "0: 320 6079; 1: 354 6400; "},
		{append(uses(0, 1, 320, 6079), uses(1, 2, 354, 6400)...), "rest"},
		{append(uses(0, 1, 320, 6079), other), "0: 320 6079; 1: 320 6400; "},
		{append(uses(0, 1, 320, 6079), other), "rest"},
		{uses(0, 1, 320, 6079), "0: 320 6079; "},
	} {
		u.add("m1", step.tell, nil)
		if got, _ := sent(); got != step.want {
			t.Errorf("step %d: %q is sent, want %q", i, got, step.want)
		}
	}
	want := func(what string, texts ...string) {
		t.Helper()
		for i, want := range texts {
			u.add("m1", uses(0, 2, 320, 6400), nil)
			got, req := sent()
			if got != want {
				t.Errorf("%s: the %d. time %q is sent, want %q", what, i+1, got, want)
			}
			if what == "lost" {
				u.lost(req.Usage)
			}
		}
	}
	want("others again", all, "rest")
	want("lost", "rest", all, all)
	want("found", all, "rest")
	u.begin()
	want("another master", all, all, "rest")
}

// TestUsageOfAllocs goes the same way, in the order of names.
func TestUsageOfAllocs(t *testing.T) {
	u := newUsageBox(5e9)
	alloc := func(name string, cpuMilli, memBytes int64) *borgrpc.AllocUsage {
		return &borgrpc.AllocUsage{Alloc: name, Usage: &borgrpc.Usage{CpuMilliMean: cpuMilli, MemBytesPeak: memBytes}}
	}
	u.add("m1", uses(0, 1, 1, 1), []*borgrpc.AllocUsage{alloc("a/b/9", 10, 500), alloc("a/b/0", 1, 1)})
	u.add("m1", uses(0, 1, 1, 1), []*borgrpc.AllocUsage{alloc("a/b/9", 20, 400)})
	for _, want := range []string{"a/b/0 1 1; a/b/9 20 500; ", ""} {
		req, got := &borgrpc.ReportRequest{}, ""
		u.take(9e9, req)
		for _, m := range req.Usage {
			for _, a := range m.Allocs {
				got += fmt.Sprintf("%s %d %d; ", a.Alloc, a.CpuMilli, a.MemBytes)
			}
		}
		if got != want {
			t.Errorf("sent is %q, want %q", got, want)
		}
	}
}

// TestUsageOfVolumes goes along, also from a machine where nothing runs: the last word
// counts.
func TestUsageOfVolumes(t *testing.T) {
	u := newUsageBox(5e9)
	use := func(bytes int64) []*borgrpc.VolumeUse {
		return []*borgrpc.VolumeUse{{Name: &borgpb.VolumeName{User: "a", Job: "b", Volume: "data"}, DiskBytes: bytes}}
	}
	u.addVolumes("m1", use(30))
	u.addVolumes("m1", use(20))
	u.addVolumes("m1", nil)
	u.add("m2", uses(0, 1, 1, 1), nil)
	for _, want := range []string{"m1 [20] m2 [] ", ""} {
		req, got := &borgrpc.ReportRequest{}, ""
		u.take(9e9, req)
		for _, m := range req.Usage {
			var bytes []int64
			for _, v := range m.Volumes {
				bytes = append(bytes, v.DiskBytes)
			}
			got += fmt.Sprintf("%s %v ", m.Machine, bytes)
		}
		if got != want {
			t.Errorf("sent is %q, want %q", got, want)
		}
	}
}

// TestUsageIsBounded has more to say than goes into a message: what has waited
// longest goes first, so that everybody has his turn.
func TestUsageIsBounded(t *testing.T) {
	u := newUsageBox(5e9)
	for m := range 12 {
		u.add(fmt.Sprintf("m%02d", m), uses(0, 1000, 1, 1), nil)
	}
	last := map[string]int64{}
	for now := range int64(50) {
		req := &borgrpc.ReportRequest{}
		u.take(now*5e9, req)
		n := 0
		for _, m := range req.Usage {
			n += len(m.Copies)
			if waited := now - last[m.Machine]; waited > 4 {
				t.Errorf("%s is sent after %d messages, want every fourth at the latest", m.Machine, waited)
			}
			last[m.Machine] = now
			u.add(m.Machine, uses(0, 1000, 100<<(now%8), 1), nil)
		}
		if n != maxUsagePerMessage {
			t.Fatalf("a message holds %d, want %d", n, maxUsagePerMessage)
		}
	}
	if len(last) != 12 {
		t.Errorf("%d machines were sent, want 12", len(last))
	}
	// A borglet cannot have more kept than a borglet may hold copies.
	u.add("m99", uses(0, maxUsagePerMachine+10, 1, 1), nil)
	if n := len(u.machines["m99"].copies); n != maxUsagePerMachine {
		t.Errorf("%d copies of a machine are kept, want %d", n, maxUsagePerMachine)
	}
}
