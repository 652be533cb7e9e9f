// Package plant finds places in Go source where a small bug can stand, and
// writes many such bugs into one build.
//
// Find lists the mutants of a type-checked package: one per place and operator,
// always in the same order for the same source. Write returns the source of a
// file with any number of them in it. Each asks mutationIs(n) at run time, so a
// single build holds all of them and a process chooses one by its number; Hook
// is the file that declares mutationIs. Without a number the program behaves as
// the original.
//
// Mutants only insert text on the lines that are there, so positions in
// failures are those of the original file. The package runs nothing and writes
// no files.
//
// Three kinds of places are left out, because a test cannot be expected to see
// them: log calls, panics (they guard what cannot happen), and planted bugs of
// package mutant.
package plant
