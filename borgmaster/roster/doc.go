// Package roster decides what is next on the way from the replicas that a cell
// has to those that it is to have.
//
// A Goal is what was asked for, a Roster how things are, and Next the one thing
// to do now. Nothing is remembered between two steps: whoever does them may die
// after any, and somebody else who asks for the same goes on from there. A
// replica that is to come in is a learner until it has caught up, and one that is
// to go goes when all that come in vote; neither is done when what is left would
// not be a majority.
//
// It has no clock and asks nobody. The elected master tests each change once more
// against what it knows then.
package roster
