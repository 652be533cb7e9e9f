// Package repeat bounds how often a log tells the same kind of thing. Whoever calls a
// program can make it log as often as they call; one line in a while with a count says as
// much.
package repeat
