package tell

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"borg/cli"
)

// Style is how a cell of a table looks on a terminal with colours. It never
// says anything that the words do not.
type Style uint8

const (
	Plain Style = iota
	Good
	Waiting
	Bad
	Dim
)

var escapes = [...]string{"", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m"}

// Cell is one field of a table.
type Cell struct {
	Text  string
	Style Style
}

// Table aligns columns. Its last column is not filled up with spaces.
type Table struct {
	rows [][]Cell
}

// Head adds a row of names.
func (t *Table) Head(names ...string) {
	row := make([]Cell, len(names))
	for i, n := range names {
		row[i] = Cell{n, Dim}
	}
	t.rows = append(t.rows, row)
}

// Add adds a row of values that are printed as they are, or of cells.
func (t *Table) Add(values ...any) {
	row := make([]Cell, len(values))
	for i, v := range values {
		switch v := v.(type) {
		case Cell:
			row[i] = v
		default:
			row[i] = Cell{Text: fmt.Sprint(v)}
		}
		// A line break would tear the table, other signs the terminal.
		row[i].Text = cli.Visible(strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(row[i].Text))
		if row[i].Text == "" {
			row[i].Text = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// foldWidth is how many characters of a text stand on one line of a row that is folded.
const foldWidth = 80

// addFolded is Add of a row of which one column may hold sentences: they go on below.
func (t *Table) addFolded(column int, values ...any) {
	text, ok := values[column].(string)
	var lines []string
	for ok && utf8.RuneCountInString(text) > foldWidth {
		head := string([]rune(text)[:foldWidth])
		at := strings.LastIndexByte(head, ' ')
		if at <= 0 {
			break
		}
		lines, text = append(lines, text[:at]), text[at+1:]
	}
	if !ok || lines == nil {
		t.Add(values...)
		return
	}
	for i, line := range append(lines, text) {
		row := values
		if i > 0 {
			row = make([]any, len(values))
			for j := range row {
				row[j] = " "
			}
		}
		row[column] = line
		t.Add(row...)
	}
}

// Shorten changes the texts of one column.
func (t *Table) Shorten(column int, change func(string) string) {
	for _, row := range t.rows {
		if column < len(row) {
			row[column].Text = change(row[column].Text)
		}
	}
}

// Write prints the table, each row behind indent.
func (t *Table) Write(w io.Writer, color bool, indent string) error {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	for _, row := range t.rows {
		var b strings.Builder
		b.WriteString(indent)
		for i, c := range row {
			b.WriteString(c.paint(color))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.Text)+2))
			}
		}
		if _, err := io.WriteString(w, strings.TrimRight(b.String(), " ")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// paint is a cell's text in its colour.
func (c Cell) paint(color bool) string {
	if !color || c.Style == Plain {
		return c.Text
	}
	return escapes[c.Style] + c.Text + "\x1b[0m"
}
