// Package workload runs what arrives at a cell, and ends there, at virtual time: a
// day of a real cell in minutes.
//
// A Workload is a cell at one moment, the ops that come from outside after that
// (submissions, kills, machines that come and go) and, for each task, how long it runs
// when it is left alone. It is read from an archive: of a live cell, or made by an
// importer; or it is made up from a seed. Run lets it happen to the production cell and
// the production scheduler. Machines obey at once.
//
// # What it guarantees
//
// What comes out is a function of the workload and the configuration: no clock decides
// anything, and no map order does. Time that passes outside is only measured.
//
// # What it takes for granted
//
// A task runs as long as it did where it was recorded, wherever it is placed. One that is
// evicted begins anew, and its time with it. A kill of a whole job comes at the time at
// which it came; a task that failed, or was killed and submitted again at once, is tried
// again after as long as it ran then. How long a run would have taken that was cut off
// by an eviction is not known: the task takes what it took when it was tried again. What
// was running at the end of the recording runs to the end of the simulation.
package workload
