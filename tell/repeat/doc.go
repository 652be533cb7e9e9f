// Package repeat limits how often a log repeats lines of the same kind. A client can make a
// server log as often as it calls; one line a minute, with the number of those left out, says
// as much.
package repeat
