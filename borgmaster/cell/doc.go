// Package cell is the pure middle of the master: the state machines of jobs,
// tasks, alloc sets, allocs and machines, and nothing else. Everything the
// cell decides, it decides here.
//
// # Contract
//
// A Cell is changed by Apply alone. Apply is total and deterministic: the same
// log gives the same state, the same results, the same events and the same
// digest on every machine and in every build of the same format. It reads no
// clock, makes no random choice, starts no goroutine, logs nothing, uses no
// floating point and lets no map order reach an output (repo_test.go checks
// the imports, the go statements and the floats).
//
// Each op is first checked, then committed. Check reads only and may refuse
// with a typed Refusal; a panic in it becomes the refusal INTERNAL, alike on
// every replica. Commit cannot fail; a panic in it is a bug that must stop the
// replica, so it goes up.
//
//	c := cell.New(cellID, epoch)
//	results, events := c.Apply(index, term, entryBytes)   // in log order, once each
//	c.Flush(put)                                          // changed records since the last Flush
//	c, err := cell.Load(records)                          // from what Flush wrote
//
// A Cell is not safe for concurrent use. Its owner lets readers in between
// Applies. What a reader gets (specs, slices) is shared and must not be
// changed.
//
// Two clocks (design: cell time and wall time) arrive with each entry; time
// never comes from anywhere else.
package cell
