// Package admission decides who may ask a replica for something now, who waits a
// moment, and who is asked to come back later, and when. It is pure: the time is given
// in, and the simulator runs it too.
//
// Reads and writes of a user are bounded by a token bucket each. On the elected master
// writes also need a place in the log. There is a window of places, which follows what
// the log does (window.go), and a bounded queue in front of it that is fair to users:
// whoever asks for little goes first, the others take turns. What would wait too long
// is refused, with the time after which there will be room.
//
// Raft, the reports of borglets, what the elected master does by itself, and the
// scheduler are not asked here: they have lanes of their own in the log.
package admission
