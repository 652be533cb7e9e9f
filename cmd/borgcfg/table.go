package main

import "borg/tell"

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
type table struct{ tell.Table }

func (t *table) head(names ...string) { t.Head(names...) }

// add adds a row of values that are printed as they are, or of cells.
func (t *table) add(values ...any) {
	for i, v := range values {
		if c, ok := v.(cell); ok {
			values[i] = tell.Cell{Text: c.text, Style: c.style}
		}
	}
	t.Add(values...)
}

func (t *table) write(o output, indent string) error { return t.Write(o.w, o.color, indent) }
