// Package scheduler finds places: a pure search over a copy of the cell.
//
// # Contract
//
// A Scheduler never writes into the copy. What it has decided and what the log
// has not yet answered is its overlay, keyed by task; the search sees the copy
// with the overlay laid over it, and an entry is dropped when the log has
// applied or refused it. What went stale in between is refused by the cell,
// which tests every assignment again when it comes out of the log, and is tried
// again in a later pass (optimistic concurrency).
//
// Feasibility therefore exists twice: in the cell (Fit), and here in flat arrays
// (grid). They are to say the same of every place; tests hold them to it. Explain
// asks the cell.
//
// A pass is a function of the copy, the overlay, the configuration and its
// seed. It reads no clock, logs nothing, uses no floating point and lets no map
// order reach a decision; it is cut by count and never by time. Threads that it
// starts end before it does, and what they find is put together in one order,
// however many they are. The same copy gives the same batch on any machine, and a Scheduler that
// was just made gives the one that its predecessor would have given: what is
// remembered between passes saves time and changes no choice.
//
//	s, err := scheduler.New(scheduler.Config{Seed: seed})
//	results, events := copy.Apply(index, term, entry)
//	s.Observe(copy, events)            // after every Apply
//	batch := s.Pass(copy)              // assignments to propose
//	s.Settle(copy, batch.ID, result)   // what the log answered
//	why := s.Explain(copy, jobKey, 3)  // why a task waits, or where it runs
//
// The process around it, which follows a master and sends the batches, is
// scheduler/process.
package scheduler
