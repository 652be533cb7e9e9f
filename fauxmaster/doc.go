// Package fauxmaster opens the past of a cell (paper §3.1): a checkpoint file, or
// an archive of checkpoints with the log between them.
//
// Open and Load make a checkpoint prove itself and give the cell in it. Serve
// runs the production master over that cell: its log is in memory, its machines
// only pretend, and its time is whoever's who drives it. Nothing is written
// back, and no other cell is ever dialed.
package fauxmaster
