// Package audit keeps what people did to a cell, and what they were refused, in
// files of the replica.
//
// What reached the log is kept by every replica, made from the entries that it
// applies (Log). It is written before the asker hears of it, and never twice:
// the journal knows how far of the log it has seen. What it could not see (a
// checkpoint was installed instead of the log, the disk was full, the machine
// lost power) becomes a hole that it says aloud. What never reached the log is
// kept by the replica that refused it, and by no other (Local).
//
// Both are journals: each batch chained to the one before by its hash, bounded in
// bytes and days. A journal is no part of the cell: it is in no checkpoint, and losing
// it changes nothing else.
//
// The bytes are shared. Admins have a part of their own. Of the others, the callers who
// take the most drop their oldest records until all of them take equally much, so that
// a flood costs nobody else anything. What is dropped is counted for each caller and
// told. A refusal has no effect, so it is kept as a hash, and repeated ones as a
// count.
//
// It must not decide who may see what.
package audit
