package main

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"borg/cli"
)

// aboutNoCell are the commands that ask no cell.
var aboutNoCell = []string{"eval", "login", "version"}

// typed adds to the commands in a text the global flags of this command line (cell, identity and
// user), so that they work as they stand. All output for people passes through it: progress,
// tables and errors, also those that masters wrote.
func (s *session) typed(text string) string {
	all, others := s.globals(true), s.globals(false)
	if all == "" {
		return text
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "borgcfg ")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		admins := forAdmins(b.String())
		b.WriteString("borgcfg ")
		switch {
		case !s.isCommand(rest):
		case admins:
			b.WriteString(others)
		default:
			b.WriteString(all)
		}
		text = rest
	}
}

// globals are the flags before the command that say which cell is meant and, if own, who
// asks, each followed by a blank.
func (s *session) globals(own bool) string {
	var b strings.Builder
	for _, name := range []string{"cell", "identity", "user"} {
		if s.flag.IsSet(name) && (own || name == "cell") {
			b.WriteString("--" + name + " " + cli.Quote(s.flag.String(name)) + " ")
		}
	}
	return b.String()
}

// isCommand reports whether a text begins with a command that asks a cell.
func (s *session) isCommand(text string) bool {
	name := text
	if end := strings.IndexFunc(text, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') }); end >= 0 {
		name = text[:end]
	}
	return s.flag.App != nil && s.flag.App.Command(name) != nil && !slices.Contains(aboutNoCell, name)
}

// markedForAdmins matches the words before a command that only an admin can use: "an admin makes
// one: " or "granted by NAMES: ". TestAdminCommandsAreMarked checks that all sources write them so.
// Only plain words may stand between "an admin" and the command, so that no name or path in a
// line is taken for the mark.
var markedForAdmins = regexp.MustCompile(`(^|[ ;(])([Aa]n admin [a-z ]+|granted by [a-z0-9-]+(, [a-z0-9-]+)*(, \.\.\.)?): $`)

// forAdmins reports whether the text before a command marks it as one for admins. They use a
// certificate of their own, so the command gets no --identity.
func forAdmins(text string) bool {
	return markedForAdmins.MatchString(text[strings.LastIndexByte(text, '\n')+1:])
}

// typedError is the error for people with commands that work as they stand.
func (s *session) typedError(err error) error {
	var e *cli.Error
	if !errors.As(err, &e) {
		return err
	}
	typed := *e
	typed.What, typed.Next, typed.Err = s.typed(e.What), s.typed(e.Next), err
	return &typed
}

// sameFiles are the files of a command, with the flags that say how they are read.
func (s *session) sameFiles() string {
	words := make([]string, len(s.args))
	for i, name := range s.args {
		words[i] = cli.Quote(name)
	}
	return s.sameFlags() + strings.Join(words, " ")
}

// sameFlags are the flags of a command that decide what its files say and what becomes of
// them, each followed by a blank. --again is not one of them: a command that is typed once
// more to watch must not run a finished job once more.
func (s *session) sameFlags() string {
	var b strings.Builder
	for _, set := range s.flag.StringSlice("set") {
		b.WriteString("--set " + cli.Quote(set) + " ")
	}
	if root := s.flag.String("root"); root != "" {
		b.WriteString("--root " + cli.Quote(root) + " ")
	}
	if s.flag.Bool("exactly") {
		b.WriteString("--exactly ")
	}
	if selector := s.flag.String("prune"); selector != "" {
		b.WriteString("--prune " + cli.Quote(selector) + " ")
	}
	return b.String()
}
