package journal

import (
	"slices"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// maxDrafts bounds what is held of the windows of other replicas; what is beyond is lost
// with the replica that adds it up.
const maxDrafts = 500_000

// Drafts is what there is so far of windows that other replicas add up. It is kept in
// memory until the finished rows are kept somewhere; of a replica that falls silent
// it becomes rows. It reads no clock, and is not safe for concurrent use.
type Drafts struct {
	most     int
	silentNs int64
	owners   map[uint64]*draftOwner
	held     int
	// Of those that were sent beyond the bound.
	lost int64
}

// draftOwner is a replica that adds up.
type draftOwner struct {
	// What it says now belongs to what it said since it began this.
	session uint64
	heardNs int64
	rows    map[usageID]*draft
	// Those of the session, by its numbers.
	numbers map[uint64]*draft
	// What began before is finished.
	finishedNs int64
	// Some are left over from earlier sessions.
	left bool
}

type draft struct {
	row    *borgpb.UsageRow
	number uint64
	// When the session was last heard that it is left over from; 0: it is of the present one.
	leftNs int64
}

// NewDrafts holds most drafts. A replica that says nothing for silentNs is thought
// to have lost its own.
func NewDrafts(most int, silentNs int64) *Drafts {
	return &Drafts{most: most, silentNs: silentNs, owners: map[uint64]*draftOwner{}}
}

// Hear takes in what another replica says, by a clock that does not go back, and whether it
// is known what that is a part of: if not, it must begin anew. The drafts must be whole.
func (d *Drafts) Hear(nowNs int64, req *borgrpc.KeepUsageRequest) (known bool) {
	if req.GetSession() == 0 {
		return true
	}
	o := d.owners[req.GetReplica()]
	switch {
	case req.GetBegins() && o == nil:
		o = &draftOwner{rows: map[usageID]*draft{}, numbers: map[uint64]*draft{}}
		d.owners[req.GetReplica()] = o
	case req.GetBegins() && req.GetSession() != o.session:
		for _, at := range o.rows {
			if at.leftNs == 0 {
				at.leftNs, o.left = o.heardNs, true
			}
		}
	case o == nil || req.GetSession() != o.session:
		return false
	}
	if o.session != req.GetSession() {
		o.session, o.numbers, o.finishedNs = req.GetSession(), map[uint64]*draft{}, 0
	}
	o.heardNs = nowNs
	d.finish(o, req.GetFinishedBeforeNs())
	said := req.GetDrafts()
	for i, row := range said.GetRows() {
		d.put(o, said.RowNumbers[i], row)
	}
	for i := range said.GetNumbers() {
		o.goOn(said, i)
	}
	return true
}

// finish drops the drafts of the session that began before a moment; 0 says nothing.
func (d *Drafts) finish(o *draftOwner, beforeNs int64) {
	if beforeNs == 0 || beforeNs == o.finishedNs {
		return
	}
	o.finishedNs = beforeNs
	for id, at := range o.rows {
		if id.fromNs < beforeNs && at.leftNs == 0 {
			delete(o.rows, id)
			delete(o.numbers, at.number)
			d.held--
		}
	}
}

// DraftsIn is how many there are.
func DraftsIn(d *borgrpc.UsageDrafts) int { return len(d.GetRows()) + len(d.GetNumbers()) }

// WholeDrafts says whether all columns are as long as they must be.
func WholeDrafts(d *borgrpc.UsageDrafts) bool {
	n := len(d.GetNumbers())
	return len(d.GetRowNumbers()) == len(d.GetRows()) && len(d.GetLastedNs()) == n && len(d.GetSamples()) == n &&
		len(d.GetCpuMilliMean()) == n && len(d.GetCpuMilliPeak()) == n && len(d.GetMemBytesMean()) == n && len(d.GetMemBytesPeak()) == n
}

func (d *Drafts) put(o *draftOwner, number uint64, row *borgpb.UsageRow) {
	id := idOf(row)
	at := o.rows[id]
	switch {
	case at == nil && d.held >= d.most:
		d.lost++
		return
	case at == nil:
		at = new(draft)
		o.rows[id] = at
		d.held++
	}
	*at = draft{row: row, number: number}
	o.numbers[number] = at
}

// goOn takes in how far one has come; of one that there was no room for, nothing.
func (o *draftOwner) goOn(d *borgrpc.UsageDrafts, i int) {
	at := o.numbers[d.Numbers[i]]
	if at == nil {
		return
	}
	row := at.row
	row.ToNs, row.Samples = row.FromNs+d.LastedNs[i], d.Samples[i]
	row.CpuMilliMean, row.CpuMilliPeak = d.CpuMilliMean[i], d.CpuMilliPeak[i]
	row.MemBytesMean, row.MemBytesPeak = d.MemBytesMean[i], d.MemBytesPeak[i]
}

// Silent takes out what belongs to replicas that say nothing any more, or began anew
// without it; with all of it everything.
func (d *Drafts) Silent(nowNs int64, all bool) (rows []*borgpb.UsageRow) {
	for replica, o := range d.owners {
		gone := all || nowNs-o.heardNs >= d.silentNs
		if !gone && !o.left {
			continue
		}
		o.left = false
		for id, at := range o.rows {
			switch {
			case gone, at.leftNs > 0 && nowNs-at.leftNs >= d.silentNs:
				rows = append(rows, at.row)
				delete(o.rows, id)
				d.held--
			case at.leftNs > 0:
				o.left = true
			}
		}
		if gone {
			delete(d.owners, replica)
		}
	}
	slices.SortFunc(rows, CompareUsage)
	return rows
}
