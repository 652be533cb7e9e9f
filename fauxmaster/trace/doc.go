// Package trace reads what other cells have recorded, and makes cells of ours
// from it: Google's trace of 2011 (a whole Borg cell at any moment of it), tables in the
// schema of the one of 2019, the openb trace of 2023 (a cell of machines with GPUs), clusters of Kubernetes and of
// Nomad as their tools write them down, tables of one's own, and the use that tasks
// made of what they asked for in a sample of Google's trace of 2019.
//
// Files are read as a stream, line by line. Whatever is wrong with one is an
// Error that says file, line, column and what was wanted; what is read without one
// is what a cell takes.
package trace
