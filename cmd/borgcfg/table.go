package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"borg/cli"
)

// style is how a cell of a table looks on a terminal with colours. It never
// says anything that the words do not.
type style uint8

const (
	plainStyle style = iota
	good
	waiting
	bad
	dim
)

var escapes = [...]string{"", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m"}

// cell is one field of a table.
type cell struct {
	text  string
	style style
}

// table aligns columns. Its last column is not filled up with spaces.
type table struct {
	rows [][]cell
}

func (t *table) head(names ...string) {
	row := make([]cell, len(names))
	for i, n := range names {
		row[i] = cell{n, dim}
	}
	t.rows = append(t.rows, row)
}

// add adds a row of values that are printed as they are, or of cells.
func (t *table) add(values ...any) {
	row := make([]cell, len(values))
	for i, v := range values {
		switch v := v.(type) {
		case cell:
			row[i] = v
		default:
			row[i] = cell{text: fmt.Sprint(v)}
		}
		// A line break would tear the table, other signs the terminal.
		row[i].text = cli.Visible(strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(row[i].text))
		if row[i].text == "" {
			row[i].text = "-"
		}
	}
	t.rows = append(t.rows, row)
}

func (t *table) write(o output, indent string) error {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range t.rows {
		var b strings.Builder
		b.WriteString(indent)
		for i, c := range row {
			b.WriteString(o.paint(c))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		if _, err := io.WriteString(o.w, strings.TrimRight(b.String(), " ")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// paint is a cell's text in its colour.
func (o output) paint(c cell) string {
	if !o.color || c.style == plainStyle {
		return c.text
	}
	return escapes[c.style] + c.text + "\x1b[0m"
}
