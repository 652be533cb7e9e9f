package tell

import (
	"fmt"

	"borg/cli"
	"borg/proto/borgpb"
)

// Usage is one line of what a copy, or all in an alloc, used, beginning with when.
func Usage(u *borgpb.UsageRow) string {
	job := u.Job
	if job == "" {
		job = u.JobUid
	}
	if u.OfAlloc {
		job = "alloc " + job
	}
	return cli.Visible(fmt.Sprintf("%s  %.0fs  usage %s/%d attempt %d on %s: cpu %dm, at most %dm; mem %.1f MiB, at most %.1f MiB (%d polls, replica %d)",
		moment(u.FromNs), float64(u.ToNs-u.FromNs)/1e9, job, u.Index, u.Attempt, u.Machine, u.CpuMilliMean, u.CpuMilliPeak,
		float64(u.MemBytesMean)/(1<<20), float64(u.MemBytesPeak)/(1<<20), u.Samples, u.Replica))
}
