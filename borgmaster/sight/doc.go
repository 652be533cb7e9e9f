// Package sight decides what a reader may be shown of a cell whose policy of visibility is
// private. It is pure: a Lens is a reader and a cell at one index.
//
// Readers who see everything (admins, programs of the cell, everybody while the policy is
// open) have no Lens: nothing here is asked for them.
//
// # Two walls
//
// Those who answer leave out what the reader may not see, so that pages, counts and
// errors are as if it did not exist. Then each message goes through Lens.Clean on its way
// out, whatever it is and whoever made it: Clean puts "another user's work" where a text names
// foreign work, and fails if an object is in the message that should have been left out.
// So a new answer that forgets the first wall is withheld by the second.
//
// # What is shown of others
//
// Of machines: their resources and how many tasks and allocs they hold. Of the cell: totals
// and policies. docs/visibility.md says it to users.
package sight
