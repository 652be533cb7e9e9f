// Package tell puts what a cell says into words for people: tables, events, the
// records of the audit, and why a task is where it is. All programs that print
// such things print them through it, so that they read alike.
//
// It makes text of messages and asks nobody anything.
package tell
