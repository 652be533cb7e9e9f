package journal

import (
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Told takes in what a poll of a machine told of usage.
func (j *Journal) Told(machine string, told []*borgrpc.Usage, allocs []*borgrpc.AllocUsage) {
	j.usageMu.Lock()
	defer j.usageMu.Unlock()
	j.windows.Add(j.cfg.Now().UnixNano(), machine, told, allocs)
}

// Left hears that others poll a machine now.
func (j *Journal) Left(machine string) {
	j.usageMu.Lock()
	defer j.usageMu.Unlock()
	j.windows.Left(machine)
}

// Ended returns the rows of the windows that have ended, or with all of it of the one
// that has not, too; what is still open began at beforeNs or later. They are not kept yet,
// and those of allocs have no uid and attempt: borglets know allocs by name.
func (j *Journal) Ended(all bool) (rows []*borgpb.UsageRow, beforeNs int64) {
	j.usageMu.Lock()
	defer j.usageMu.Unlock()
	return j.windows.Take(j.cfg.Now().UnixNano(), all)
}

// Open, Drafts and Redraft are those of the windows that have not ended.
func (j *Journal) Open() int {
	j.usageMu.Lock()
	defer j.usageMu.Unlock()
	return j.windows.Open()
}

// Drafts is said at Open.
func (j *Journal) Drafts(most int) *borgrpc.UsageDrafts {
	j.usageMu.Lock()
	defer j.usageMu.Unlock()
	return j.windows.Drafts(most)
}

// Redraft is said at Open.
func (j *Journal) Redraft() {
	j.usageMu.Lock()
	defer j.usageMu.Unlock()
	j.windows.Redraft()
}

// Hold keeps the drafts of another replica in memory, at a moment of a clock that does not
// go back. It says whether it is known what they are a part of.
func (j *Journal) Hold(nowNs int64, req *borgrpc.KeepUsageRequest) (known bool) {
	j.draftsMu.Lock()
	defer j.draftsMu.Unlock()
	return j.drafts.Hear(nowNs, req)
}

// Rescued returns the drafts of replicas that have fallen silent, or with all of it of all
// replicas, as Ended does rows. They are held no longer.
func (j *Journal) Rescued(nowNs int64, all bool) []*borgpb.UsageRow {
	j.draftsMu.Lock()
	defer j.draftsMu.Unlock()
	rows := j.drafts.Silent(nowNs, all)
	j.rescued.Add(int64(len(rows)))
	return rows
}
