// Package entrance bounds the connections whose other ends have not yet said who they
// are, and shares the processor time of their handshakes.
//
// Anybody who reaches a port can open such connections, so nothing here trusts them.
// A Hall holds a number of guests for each address and in all. A full hall drops a guest
// that is there already, never the newcomer: an honest handshake ends within
// milliseconds, so the oldest guest of an address is most likely one that stalls.
// A newcomer is lost only when a whole hall of others arrives during its handshake. A random
// choice would spare some guests of very long round trips, and lose honest ones at any rate
// of arrivals.
//
// A guest computes only while it has a turn. Addresses take turns, and within an address the
// newest guest goes first: under a flood the oldest has waited too long to be honest. Addresses
// that make this process compute too much without success are crowded, and share a bounded
// part of the time.
package entrance
