// Package sim runs a whole cell on one thread from one seed: five replicas on
// disks that can lose what was not synced, the elected master's duties, the
// link shards, a scheduler beside the elected replica, borglets over pretend
// kernels, and clients. Every decision in it is made by the cores that run in
// production; what is the simulator's own is time, the network, the disks, the
// processes of the machines, and the faults.
//
// A run has two phases: first anything goes, then everything is healed and must
// settle. What must always hold is checked after every entry of the log and
// every start and end of a process.
//
// The same seed gives the same run, event for event, whatever the build's
// timing: the hash in the result is over all of it. Raft draws its election
// jitter from crypto/rand.Reader, which Run replaces while it works, so that
// only one run may be under way in a process.
package sim
