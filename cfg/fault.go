package cfg

import (
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"

	"borg/spelling"
)

// Position is a place in a file. Lines and columns count from 1, columns in
// characters; zero: not known.
type Position struct {
	File string
	Line int
	Col  int
}

func (p Position) String() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.Col == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
}

// Fault is one thing that is wrong with a job file.
type Fault struct {
	Pos Position
	// Number of characters that the caret underlines; zero: 1.
	Width int
	// The source line; empty: not known.
	Source string
	// What is wrong and why. Lower case, no full stop.
	What string
	// What to type instead; may be empty.
	Hint string
	// Places that led here, innermost first: the calls around Pos.
	Calls []Position
	// What is wrong without the object that has it: of the objects that one place makes,
	// the first stands for all. Empty: What.
	said string
}

func (f *Fault) Error() string {
	var b strings.Builder
	if f.Pos.File != "" {
		fmt.Fprintf(&b, "%s: ", f.Pos)
	}
	b.WriteString(f.What)
	if f.Source != "" && f.Pos.Col > 0 {
		gutter := fmt.Sprintf("%5d | ", f.Pos.Line)
		pad := strings.Repeat(" ", len(gutter)-2) + "| "
		source, before := clip(f.Source, f.Pos.Col-1)
		width := max(1, min(f.Width, utf8.RuneCountInString(source)-utf8.RuneCountInString(before)))
		fmt.Fprintf(&b, "\n%s%s\n%s%s^%s", gutter, source, pad, blank(before), strings.Repeat("~", width-1))
	}
	for _, c := range f.Calls {
		fmt.Fprintf(&b, "\n  called at %s", c)
	}
	if f.Hint != "" {
		b.WriteString("\n  " + strings.ReplaceAll(f.Hint, "\n", "\n  "))
	}
	return b.String()
}

// clip cuts a line that is too long to show around the character at col, and
// returns it with the part before that character.
func clip(line string, col int) (shown, before string) {
	const most = 120
	runes := []rune(line)
	col = min(col, len(runes))
	start := 0
	if len(runes) > most {
		start = max(0, min(col-most/2, len(runes)-most))
		runes = runes[start:min(len(runes), start+most)]
	}
	return string(runes), string(runes[:col-start])
}

// blank replaces everything but tabs by spaces, so that a caret below lines up.
func blank(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, s)
}

// Faults is everything that was found wrong, in the order of the file.
type Faults []*Fault

func (fs Faults) Error() string {
	var parts []string
	for i, f := range fs {
		if i == maxFaults {
			parts = append(parts, fmt.Sprintf("and %d more", len(fs)-i))
			break
		}
		parts = append(parts, f.Error())
	}
	return strings.Join(parts, "\n")
}

// note records a fault with which the reading of the files goes on; the error is not
// nil when there are too many to go on.
func (s *sources) note(f *Fault) error {
	if s.noted == nil {
		s.noted = make(map[faultKey]bool)
	}
	key := faultKey{f.Pos, f.What}
	if s.noted[key] {
		return nil
	}
	if len(s.found) >= maxNoted {
		return f
	}
	s.noted[key] = true
	s.found = append(s.found, f)
	return nil
}

// faultKey is what makes two faults the same.
type faultKey struct {
	pos  Position
	what string
}

// sortFaults puts them in the order of lines within each file, without
// duplicates; files keep the order in which they were met.
func sortFaults(fs Faults) Faults {
	order := make(map[string]int)
	for _, f := range fs {
		if _, ok := order[f.Pos.File]; !ok {
			order[f.Pos.File] = len(order)
		}
	}
	sort.SliceStable(fs, func(i, j int) bool {
		a, b := fs[i].Pos, fs[j].Pos
		if a.File != b.File {
			return order[a.File] < order[b.File]
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Col < b.Col
	})
	var out Faults
	seen := make(map[faultKey]bool)
	for _, f := range fs {
		key := faultKey{f.Pos, f.said}
		if f.said == "" {
			key.what = f.What
		}
		if !seen[key] {
			seen[key] = true
			out = append(out, f)
		}
	}
	return out
}

// nearest returns the one of known that name was probably meant to be, or "".
func nearest(name string, known []string) string {
	best, bestDistance := "", max(1, len(name)/3)+1
	for _, k := range known {
		if d := spelling.Distance(strings.ToLower(name), k); d < bestDistance && d < len(k) {
			best, bestDistance = k, d
		}
	}
	return best
}

// nearestSorted is nearest over names that come in no order.
func nearestSorted(name string, names []string) string {
	sorted := append([]string(nil), names...)
	sort.Strings(sorted)
	return nearest(name, sorted)
}
