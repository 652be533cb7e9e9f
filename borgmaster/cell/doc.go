// Package cell is the pure middle of the master: the state machines of jobs,
// tasks, alloc sets, allocs and machines, and nothing else. Everything the
// cell decides, it decides here.
//
// # Contract
//
// A Cell is changed by Apply alone (and by Restore, before there is a log). Apply is total and deterministic: the same
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
// Two clocks (cell time and wall time) arrive with each entry; time never comes
// from anywhere else.
//
// # Where to read
//
// states.go is the paper's diagram: every change of state of a job, task, alloc
// set or alloc is one of its edges. apply.go takes an entry apart and says which
// check belongs to which op. Then by noun:
//
//	submit.go    a job becomes pending, is resized, is killed
//	assign.go    an assignment is refused, or becomes a new attempt (task.go)
//	move.go      a plan of the rescheduler is refused, or moves what runs
//	retry.go     how long a task waits whose attempts failed
//	network.go   whose network a task has, and its address
//	place.go     the test of feasibility; victim.go: whom it may preempt
//	report.go    what a borglet says of a copy; exit.go: how its process ended
//	machines.go  machines come, change and go; lost.go: they are lost and return;
//	             drain.go: they are emptied
//	quota.go     what users were granted; admit.go: and whether that suffices;
//	             taskbounds.go: what a task of a user may ask for
//	stopcharge.go  what copies that stop are charged; stoproom.go: how far updates go
//	             meanwhile
//	budget.go    how far the cell may disturb the tasks of a job of its own accord
//	allocset.go  alloc sets and their allocs; allocindex.go: whose alloc is whose
//	update.go    a rolling update; surge.go: its extra tasks; standin.go: who of them
//	             stays when it is given up; spread.go: over which failure domains it
//	             goes; gate.go: what a metric must be first
//	room.go      what holds a place, and what is promised to whom
//	grave.go     how long the dead are remembered; request.go: and requests
//	clock.go     the two clocks
//	restore.go   a new epoch begins with a checkpoint; adopt.go: what its machines
//	             run is taken as it is
//	limits.go    all limits; validate.go: all ranges; format.go: what is known
//	order.go     many objects in the order of their keys; due.go: what time brings about
//	record.go    what is written down, load.go reads it; book.go: the digest
//	check.go     every invariant
//
// # Rows and copies
//
// A Task is a row of its job: what should be, by index. A Copy is one attempt of
// it on one machine: what is. A row has at most one current copy. Others of its
// copies are told to stop, or sit on a machine that is down, or have ended and
// are remembered. A live copy holds its resources and ports until its borglet
// says that it has ended, whatever has become of its task, even if its job was
// replaced (then it is an orphan, known to its machine alone).
//
// A copy without an order to stop is current, or it is on a machine that is down
// and its task waits: then it becomes current again when the machine returns.
// Once there is an order (killed, replaced, cut off, evicted) it never does.
//
// # Victims
//
// A placement may count on the room of copies that it names as victims. They are
// told to stop, and it starts after the last of them has ended. Until then both
// hold their room, but they never run together, so only the larger of both sums
// counts (room.discount). A victim is promised to one placement only. Who
// preempts a copy that is still waiting for victims of its own inherits them.
//
// # Adding an op
//
// op.proto; sinceFormat in format.go; a check in the file of its noun that
// returns the commit; the switch in apply.go; what must hold of it in check.go; a
// transcript in testdata; the generator in generate_test.go.
package cell
