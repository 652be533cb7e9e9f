// Package reclaim is the pure core of what the elected master does about
// reservations (paper §5.5): it hears what copies use, estimates what each will
// use, and says which reservations are worth an entry in the log. Its shell is
// borgmaster's reclaim loop; the simulator drives it as it is.
//
// The cell is the measure of what is logged, again with every look, so a
// proposal that is lost is made again. Whoever is elected next goes on from what
// the cell holds: reservations do not return to the limits.
//
// A copy of which nothing is heard keeps what it reserves, and the time does not
// count as one in which it used little.
package reclaim
