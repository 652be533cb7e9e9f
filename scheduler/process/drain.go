package process

import (
	"fmt"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
	"borg/scheduler"
)

// DrainResponse is what the search says of machines that are to be emptied, as it
// goes over the wire: of those that are named, or of at most count that it finds among
// them. The search ends early when stop, which may be nil, says so.
func DrainResponse(search *scheduler.Scheduler, c *cell.Cell, machines []string, count uint32, stop func() bool) *borgrpc.SafeToDrainResponse {
	r := &borgrpc.SafeToDrainResponse{Index: c.Index()}
	var verdicts []scheduler.DrainVerdict
	var all bool
	if count == 0 {
		if verdicts, all = search.JudgeDrain(c, machines, stop); !all {
			r.Note = fmt.Sprintf("the search ended after the first %d machines that were named; ask for the others apart", len(verdicts))
		}
	} else {
		if verdicts, all = search.Drainable(c, machines, int(count), stop); !all {
			r.Note = fmt.Sprintf("the search ended after %d machines that can go; there may be more", len(verdicts))
		}
	}
	for i := range verdicts {
		v := &verdicts[i]
		out := &borgrpc.DrainVerdict{Machine: v.Machine, Safe: v.Safe, Tasks: uint32(v.Tasks), Allocs: uint32(v.Allocs), Homeless: v.Homeless}
		for k := range v.Holds {
			out.Blockers = append(out.Blockers, v.Holds[k].Proto(c))
		}
		r.Verdicts = append(r.Verdicts, out)
	}
	return r
}
