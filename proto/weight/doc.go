// Package weight computes from an encoded message what it takes in memory once it is
// decoded, without decoding it. The bytes of a message say little: one of two bytes on the
// wire, with nothing in it, takes more than a hundred in memory.
//
// The budgets of the cell's state are charged by it, so every build must compute the same:
// what a field or an element costs is a constant and not a size of Go's types. The tests
// compare the constants with what a process allocates.
package weight
