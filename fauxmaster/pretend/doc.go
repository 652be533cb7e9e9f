// Package pretend is machines without processes: the borglet's own core and
// fence over a kernel that only counts. What a borglet decides is what it
// decides in production; what a process does is a matter of time.
//
// A machine belongs to one goroutine and starts none. Time, chance and whoever
// looks on are handed in, so that the simulator can make it all happen again and
// the Fauxmaster can make it happen at any speed.
package pretend
