package scheduler

import (
	"fmt"
	"strings"

	"borg/borgmaster/cell"
)

// A machine is counted under the first test that it failed. What else it is short of is told
// beside that: a user who asks for less of one resource only would wait for the next.

// alsoShort tells what else the machines are short of that failed the test of one resource
// first.
func (e *explanation) alsoShort(fit cell.Fit, first string, req *request) (words string) {
	for _, d := range dimensions(&req.res) {
		if n, most := e.short(fit, &d); n > 0 && d.name != first {
			words += fmt.Sprintf("; %s short of %s too: needs %s, at most %s is free", ofThem(n, e.counts[fit], "it is", "are"), d.name, d.text(d.asked), d.text(most))
		}
	}
	return words
}

// ofThem is "2 of them are", "all of them are", or one, if there is only one.
func ofThem(n, of int, one, verb string) string {
	switch {
	case of == 1:
		return one
	case n == of:
		return "all of them " + verb
	case n == 1 && verb == "are":
		verb = "is"
	}
	return fmt.Sprintf("%d of them %s", n, verb)
}

// short counts the machines with that outcome that have too little of a resource, and returns
// the most that one of them has free.
func (e *explanation) short(fit cell.Fit, d *dimension) (n int, mostFree int64) {
	if fit < cell.FitPorts || fit > cell.FitDevices {
		return 0, 0
	}
	for i, f := range e.fits {
		if f != fit {
			continue
		}
		if free := e.freeOf(e.want, e.spots[i], d); free < d.asked {
			n, mostFree = n+1, max(mostFree, free)
		}
	}
	return n, mostFree
}

// besides is " (2 of them memory too)": what else machines are short of that failed the test
// of one resource first.
func (e *explanation) besides(first cell.Fit) string {
	var parts []string
	req := e.want.request()
	for _, d := range dimensions(&req.res) {
		if d.fit == first {
			continue
		}
		if n, _ := e.short(first, &d); n > 0 {
			words := d.name + " too"
			if of := e.counts[first]; of > 1 {
				words = fmt.Sprintf("%d of them ", n) + words
			}
			parts = append(parts, words)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}
