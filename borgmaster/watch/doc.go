// Package watch tells who watches a cell what changes in it: for each log index the
// objects that changed, as they were and as they are, to those who asked for them.
// It is pure: no clock, no goroutine, no I/O. A Hub belongs to one replica and is fed
// after each Apply; whoever owns it holds a lock around all of its methods and
// those of its Watches. The simulator has the same Hub.
//
// # Promise
//
// A Watch yields first, if it began without an index, all objects of its Query as
// they were at one index, and then:
//
//   - Filter: only changes of objects that match the Query before or after.
//   - Ordered: indices go up.
//   - Unique: a change of an object at an index comes once.
//   - Atomic: what changed at one index comes together, the last part marked.
//   - Bookmarkable: a Message without changes says up to which index there were none.
//   - Resumable: from an index that was told in full, at the Hub of any replica.
//   - Reliable: no change is left out. A Watch that cannot hold to that ends with an
//     error that says whether to resume or to begin anew.
//   - PrevKV: each change has the object as it was.
//   - IsCreate: and tells whether the object was made.
//
// What is shown of an object is what follows from itself (see Alone in package cell),
// so that one change of the cell is a change of few objects.
//
// # Bounds
//
// The changes of late are held in a ring, bounded in number, bytes and age. A Watch
// holds references to a bounded number of changes; who does not take them is cut off.
// Nobody waits for a Watch.
//
// A Watch holds no list of the state that it began with, only how far that was handed out.
// The next page is made when it is asked for: the objects as they are seen now, in the order of
// their names, but those that changed since as the queue says they were before.
package watch
