// Package plan answers questions about a cell that is written down: how many more
// tasks fit, what would happen if, how few machines would do, which policy needs
// fewer. It also makes such cells from what traces and other systems say.
//
// # What it guarantees
//
// Nothing is worked out by rules of its own. A question is asked of a Model: the
// production cell and the production scheduler, with borglets that obey at once
// and tasks that never end. The ops that the question is about go through
// cell.Apply, and the scheduler makes passes until it rests. So the answer is what
// would happen in that cell if the same ops were done to it and nothing else
// happened meanwhile. The cell that was asked about is not changed.
//
// The answer is a function of the cell, the question and the scheduler's
// configuration: no clock is read and no random choice is made.
//
// # What it does not know
//
// Time stands still, nearly: no task ends, nobody submits, no machine breaks that
// is not part of the question. What waits for time (an evicting taint that
// forgives for a while, a task kept away from where it crashed) waits for as long as
// the question takes.
package plan
