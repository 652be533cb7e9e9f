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
// Both are journals: append-only, each batch chained to the one before by its
// hash, bounded in bytes and days; the oldest go. A journal is no part of the
// cell: it is in no checkpoint, and losing it changes nothing else.
//
// It must not decide who may see what.
package audit
