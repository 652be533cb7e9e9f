// Package linkshard is one replica's part of talking to the borglets (paper
// §3.3). Each replica polls its share of the machines, tells the borglets what
// its own copy of the cell wants there, and sends the elected master only what
// differs between the answers and the cell. A poll that changes nothing costs
// the log nothing.
//
// It is stateless in the sense that matters: everything it keeps can be lost.
// Answers are compared with the cell itself, again and again, so whatever was
// not logged is found by the next poll.
//
// Share, Core, Build and Compare are pure; Shard is the shell around them: one
// goroutine that owns the Core, a bounded number of polls in flight, and one
// sender.
//
// It must not decide that a machine is down: it only counts polls missed while
// it was itself in contact with the elected master.
//
// A shard that falls behind gives way: it polls machines at rest less often
// (pace.go), after those where something is under way (queue.go), and tells the
// elected master by how much. Polls that need a handshake have a rate.
package linkshard
