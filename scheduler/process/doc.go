// Package process is the process around the search: it follows the elected
// master, keeps a copy of the cell, makes passes, sends what they decide, and
// answers Explain.
//
// One goroutine owns the copy and the scheduler: it takes what arrived, makes
// a pass, sends, and waits again; it does nothing while nothing changes. Others
// only carry: one receives from the master, a few wait each for the answer to
// one batch, gRPC's own bring in the questions. Everything that they hand to
// the owner goes through bounded channels.
//
// The copy is loaded whole at the start of each connection and fed with every
// committed entry from there. An entry missing in between, or a digest other
// than the master's, ends the connection, and the next one loads anew. A lost
// connection is made again with growing pauses; nothing tentative outlives it,
// since the cell refuses as stale what was decided twice.
package process
