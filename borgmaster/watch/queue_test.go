package watch

import "testing"

// TestQueueKeepsItsOwn: a run of one change that waits in a queue does not keep the piece in
// which the feed made it, with the changes of others.
func TestQueueKeepsItsOwn(t *testing.T) {
	piece := make([]change, firstsInPiece)
	for i := range piece {
		piece[i] = change{index: uint32(i)}
	}
	var d delivery
	d.take(new(Watch), &run{changes: piece[3:4:4]})
	got := d.runs[0].changes
	if len(got) != 1 || got[0].index != 3 || &got[0] == &piece[3] {
		t.Errorf("queued %v (in the piece: %v), want a copy of the change", got, &got[0] == &piece[3])
	}
}
