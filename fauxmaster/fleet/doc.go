// Package fleet serves thousands of pretended machines behind one door: a cell
// that is larger than what is at hand, with the real masters and the real
// protocol. Each machine has an address, a certificate and a borglet's core of
// its own; what its tasks do is drawn from a seed (package pretend).
//
// All addresses are of this machine alone (127.64.0.1 and on), on one port, so
// that one listener serves them; whoever comes from elsewhere is not let in.
// Nothing is kept: machines whose process has ended come back with empty disks.
package fleet
