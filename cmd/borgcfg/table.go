package main

import (
	"strings"

	"borg/tell"
)

// style is how a cell of a table looks on a terminal with colours.
type style = tell.Style

const (
	plainStyle = tell.Plain
	good       = tell.Good
	waiting    = tell.Waiting
	bad        = tell.Bad
	dim        = tell.Dim
)

// cell is one field of a table.
type cell struct {
	text  string
	style style
}

// table is a table on this program's standard output.
type table struct {
	tell.Table
	// Columns that hold sentences: people's and the cell's reasons.
	long map[int]bool
}

// reasonWidth is how many characters of a reason a table shows that is not -o wide.
const reasonWidth = 80

func (t *table) head(names ...string) {
	for i, n := range names {
		if n == "REASON" {
			if t.long == nil {
				t.long = make(map[int]bool)
			}
			t.long[i] = true
		}
	}
	t.Head(names...)
}

// add adds a row of values that are printed as they are, or of cells.
func (t *table) add(values ...any) {
	for i, v := range values {
		if c, ok := v.(cell); ok {
			values[i] = tell.Cell{Text: c.text, Style: c.style}
		}
	}
	t.Add(values...)
}

// write prints the table. Long reasons are cut where a word ends, unless all is asked
// for: one of them would break each line of a terminal.
func (t *table) write(o output, indent string) error {
	if !o.wide() {
		for i := range t.long {
			t.Shorten(i, func(text string) string { return brief(text, reasonWidth) })
		}
	}
	return t.Write(o.w, o.color, indent)
}

// brief is the beginning of a text, up to the end of a word.
func brief(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	cut := string(runes[:most-2])
	if end := strings.LastIndexByte(cut, ' '); end > most/2 {
		cut = cut[:end]
	}
	return strings.TrimRight(cut, " ,;:") + " …"
}
