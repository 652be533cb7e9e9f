package scheduler

import "borg/proto/borgpb"

// spare is memory that earlier passes used for what they decided, so that in
// the long run a placement allocates nothing.
type spare struct {
	assignments []*borgpb.Assignment
	promises    []*promise
	parcels     []*parcel
}

// parcel is the lists of one pass: its batches are parts of them.
type parcel struct {
	out      []*borgpb.Assignment
	promises []*promise
	// assigns are its batches as ops; those from made on were not used yet.
	assigns []*borgpb.Assign
	made    int
	// open counts the batches that the copy does not show the answer to.
	open int
}

// promised is what one batch promises.
type promised struct {
	promises []*promise
	parcel   *parcel
	// atNs is the cell time at which they were made.
	atNs int64
}

// spareBlock is how many are made at once.
const spareBlock = 256

// assignment returns an empty one.
func (sp *spare) assignment() *borgpb.Assignment {
	if len(sp.assignments) == 0 {
		block := make([]borgpb.Assignment, spareBlock)
		for i := range block {
			sp.assignments = append(sp.assignments, &block[i])
		}
	}
	last := len(sp.assignments) - 1
	a := sp.assignments[last]
	sp.assignments = sp.assignments[:last]
	ports := a.Ports[:0]
	a.Reset()
	a.Ports = ports
	return a
}

// promise returns one to be overwritten.
func (sp *spare) promise() *promise {
	if len(sp.promises) == 0 {
		block := make([]promise, spareBlock)
		for i := range block {
			sp.promises = append(sp.promises, &block[i])
		}
	}
	last := len(sp.promises) - 1
	pr := sp.promises[last]
	sp.promises = sp.promises[:last]
	return pr
}

// parcel returns an empty one.
func (sp *spare) parcel() *parcel {
	if len(sp.parcels) == 0 {
		return new(parcel)
	}
	last := len(sp.parcels) - 1
	pc := sp.parcels[last]
	sp.parcels = sp.parcels[:last]
	return pc
}

// assign returns an op of the parcel for one more batch.
func (pc *parcel) assign() *borgpb.Assign {
	if pc.made == len(pc.assigns) {
		pc.assigns = append(pc.assigns, new(borgpb.Assign))
	}
	o := pc.assigns[pc.made]
	o.Reset()
	pc.made++
	pc.open++
	return o
}

// take takes back what nobody reads any more.
func (sp *spare) take(out []*borgpb.Assignment, promises []*promise) {
	sp.assignments = append(sp.assignments, out...)
	sp.promises = append(sp.promises, promises...)
	for _, pr := range promises {
		// Lines and sites may be gone; nothing is to hold them.
		*pr = promise{}
	}
}

// recover notes that one more batch of the parcel is done with.
func (sp *spare) recover(pc *parcel) {
	if pc == nil {
		return
	}
	if pc.open--; pc.open > 0 {
		return
	}
	sp.take(pc.out, pc.promises)
	pc.out, pc.promises, pc.made = pc.out[:0], pc.promises[:0], 0
	sp.parcels = append(sp.parcels, pc)
}
