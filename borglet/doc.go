// Package borglet is the agent of one machine (paper §3.3): it starts the
// copies of tasks that the master wants, restarts them when they end, stops
// them when it is told to, and answers each poll with all that it knows.
//
// # Contract
//
// Core is the whole of what it decides, as pure steps: Step(now, event) ->
// effects. It reads no clock, starts no goroutine and does nothing itself. The
// Agent is the shell around it: it stores, starts, signals, samples and
// serves, and brings back what happened as events.
//
// What holds at every moment:
//
//   - A copy is stopped only by a Stop of a master that is not fenced. Its
//     absence from a poll, a lost master, a dead borglet and a dead shim stop
//     nothing. A run of it is killed here for want of memory, and never one of
//     production within its limit, or for the harm it does to others (AtFault).
//   - What will be done is on disk before it is done: the highest fence before
//     it is obeyed, the intent of a run before it starts. A borglet that is
//     killed anywhere finds everything again from its directories.
//   - A copy that has ended is never started again. It is reported until the
//     master says that its end is in the log (forget); then its directory goes.
//   - The answer to a poll is the full state in a fixed order, with a hash over
//     it; usage travels beside it.
//
// How a process is started and watched is behind Runtime; the real ones are in
// borglet/container. This package does not know what a container is.
package borglet
