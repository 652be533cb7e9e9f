// Package borgpb is the whole model of a cell as messages: jobs, tasks,
// allocs, machines, quota, updates, the ops of the replicated log, what
// borglets report, and the head of a checkpoint. It has no services and no
// rules; the rules live in borgmaster/cell.
//
// The .proto files are the source; `make proto` regenerates the Go beside
// them. Numbers are never used again, zero means "not said".
package borgpb
