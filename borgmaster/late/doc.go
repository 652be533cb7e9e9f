// Package late measures how late a process is: by how much its own timers, or
// the messages of another process, come after they were due. On a machine that
// is short of processor everything is late, and what is late is not dead.
//
// What can wait gives way: a Budget has periodic work come less often when it takes
// longer.
//
// It is pure: callers pass the time, monotonic and in nanoseconds.
package late
