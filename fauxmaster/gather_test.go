package fauxmaster

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"borg/proto/borgpb"
)

// TestReportsOfOneMomentAreOneEntry: reports that follow each other closely are told
// together, in order of the machines; none waits for ever, and none is lost.
func TestReportsOfOneMomentAreOneEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []*borgpb.Reports
		more := false
		g := &gathered{tell: func(r *borgpb.Reports) { told = append(told, r) }, more: func() bool { return more }}
		report := func(machine string, copies int) *borgpb.Reports {
			m := &borgpb.MachineReport{Machine: machine}
			for i := range copies {
				m.Tasks = append(m.Tasks, &borgpb.TaskReport{Index: uint32(i)})
			}
			return &borgpb.Reports{Machines: []*borgpb.MachineReport{m}}
		}
		for _, name := range []string{"m2", "m1", "m2"} {
			g.add(report(name, 1))
			time.Sleep(gatherFor / 2)
			if !g.wait() {
				t.Fatal("reports wait, and wait says that none does")
			}
		}
		time.Sleep(gatherFor)
		synctest.Wait()
		if len(told) != 1 || len(told[0].Machines) != 2 || told[0].Machines[0].Machine != "m1" || len(told[0].Machines[1].Tasks) != 2 || g.wait() {
			t.Fatalf("%v; want one entry of m1 and m2, with both reports of m2", told)
		}
		// Those that are known to come are waited for, and not for ever.
		told, more = nil, true
		g.add(report("m1", 1))
		time.Sleep(gatherMost)
		if synctest.Wait(); len(told) != 0 {
			t.Error("told before the rest of the moment")
		}
		time.Sleep(gatherAll)
		if synctest.Wait(); len(told) != 1 {
			t.Error("not told, since more never comes")
		}
		more = false
		// Reports that never cease are told all the same.
		told = nil
		for range 2 * int(gatherMost/gatherFor) {
			g.add(report("m1", 1))
			time.Sleep(gatherFor - time.Millisecond)
		}
		synctest.Wait()
		if len(told) == 0 {
			t.Error("reports that never cease are never told")
		}
		time.Sleep(gatherMost)
		// Many do not wait for more.
		told = nil
		for i := range 3 {
			g.add(report(fmt.Sprint("m", i), maxGathered))
			synctest.Wait()
			time.Sleep(time.Nanosecond)
			synctest.Wait()
		}
		if len(told) != 3 {
			t.Errorf("%d entries, want one for each message that is full", len(told))
		}
		g.add(report("m1", 1))
		g.close()
		told = nil
		time.Sleep(time.Second)
		if synctest.Wait(); len(told) != 0 {
			t.Error("told after it was closed")
		}
	})
}
