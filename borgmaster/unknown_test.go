package borgmaster

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestUnknownTasksEndAPage: a page of machines has as many bytes as it may with the tasks
// that the cell does not know, goes on where it ended, and shows each machine once.
func TestUnknownTasksEndAPage(t *testing.T) {
	const most = 20_000
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		unknown := map[string][]*borgpb.TaskReport{}
		var all []*borgpb.Machine
		for i := range 50 {
			name := fmt.Sprint("m", i)
			all = append(all, &borgpb.Machine{Meta: &borgpb.Meta{Name: name}, Status: &borgpb.MachineStatus{}})
			for range r.IntN(64) {
				unknown[name] = append(unknown[name], &borgpb.TaskReport{Text: strings.Repeat("x", r.IntN(600))})
			}
		}
		for at, pages := 0, 0; at < len(all); pages++ {
			resp := &borgrpc.ListMachinesResponse{Machines: append([]*borgpb.Machine(nil), all[at:]...), NextAfter: "end"}
			addUnknown(resp, most, func(machine string) []*borgpb.TaskReport { return unknown[machine] })
			n := len(resp.Machines)
			if n == 0 {
				t.Fatalf("seed %d: page %d has no machine", seed, pages)
			}
			if size := proto.Size(resp); n > 1 && size > most+100*n || size > most+1_000 {
				t.Errorf("seed %d: a page of %d machines has %d bytes", seed, n, size)
			}
			for i, machine := range resp.Machines {
				if name := fmt.Sprint("m", at+i); machine.Meta.Name != name || n > 1 && len(machine.Status.UnknownTasks) != len(unknown[name]) {
					t.Errorf("seed %d: %s has %d unknown tasks, want %s with %d", seed, machine.Meta.Name, len(machine.Status.UnknownTasks), name, len(unknown[name]))
				}
			}
			at += n
			want := fmt.Sprint("m", at-1)
			if at == len(all) {
				want = "end"
			}
			if resp.NextAfter != want {
				t.Errorf("seed %d: the page goes on after %q, want %q", seed, resp.NextAfter, want)
			}
		}
	}
}
