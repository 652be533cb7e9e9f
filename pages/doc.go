// Package pages is what a program shows of itself over HTTP: status pages that a
// person reads at three in the morning, the same as JSON, and metrics for programs
// that collect them. Programs say what is on a page as data; how it looks is decided
// here, once for all.
//
// Everything that is shown is text of others until it is escaped: names, reasons and
// messages go through html/template. Pages need no script, nothing from elsewhere,
// and change nothing.
//
// Whoever may look is decided by the door. This package must not listen.
package pages
