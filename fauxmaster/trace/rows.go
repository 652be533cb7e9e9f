package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is what is wrong with a file of a trace, and where.
type Error struct {
	File string
	Line int
	// Column counts from 1; zero: the line as a whole.
	Column int
	// Name of the column.
	Name string
	Text string
}

func (e *Error) Error() string {
	if e.Column == 0 {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text)
	}
	return fmt.Sprintf("%s:%d: column %d (%s): %s", e.File, e.Line, e.Column, e.Name, e.Text)
}

// maxLineBytes bounds a line; those of real traces have below 300 bytes.
const maxLineBytes = 64 << 10

// rows reads lines of values separated by commas, without quotes, as all these
// traces have them. The first error stays, and ends the rows; but of a row that
// cannot be used skip may be told, which then tells whether to go on.
type rows struct {
	file string
	scan *bufio.Scanner
	line int
	// columns are the names, for errors and to find them by.
	columns []string
	fields  []string
	err     error
	// lost: the file cannot be read further, whatever is skipped.
	lost bool
	skip func(*Error) bool
	// cut reads a row where lines with commas are not the form; nil: they are.
	// Its columns are found by name alone.
	cut func() bool
}

// newRows reads a file without a head; its columns are as given.
func newRows(file string, r io.Reader, columns ...string) *rows {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, maxLineBytes)
	return &rows{file: file, scan: scan, columns: columns}
}

// newHeadedRows reads a file whose first line names the columns.
func newHeadedRows(file string, r io.Reader) *rows {
	h := newRows(file, r)
	if h.scanLine() {
		h.columns = slices.Clone(h.fields)
		for i, name := range h.columns {
			if slices.Contains(h.columns[:i], name) {
				h.fail(i, "there are two columns of that name")
			}
		}
	} else if h.err == nil {
		h.line = 1
		h.failLine("the file is empty; its first line should name the columns")
	}
	return h
}

// column finds a column by any of its names.
func (r *rows) column(names ...string) int {
	for _, name := range names {
		if i := slices.Index(r.columns, name); i >= 0 {
			return i
		}
	}
	r.failLine("there is no column %s; the columns are %s", names[0], strings.Join(r.columns, ", "))
	return 0
}

// optional is column for one that may be missing; -1.
func (r *rows) optional(names ...string) int {
	return slices.IndexFunc(r.columns, func(c string) bool { return slices.Contains(names, c) })
}

// next reads the next line; false: there is none, or err says why. Who may skip
// rows uses one only while err is nil.
func (r *rows) next() bool {
	for r.usable() {
		read := r.scanLine
		if r.cut != nil {
			read = r.cut
		}
		if !read() {
			if r.err == nil {
				return false
			}
			continue
		}
		if len(r.fields) == len(r.columns) {
			return true
		}
		r.failLine("%d values, want %d: %s", len(r.fields), len(r.columns), strings.Join(r.columns, ", "))
	}
	return false
}

// usable tells whether to go on: nothing is wrong, or only with a row that is
// skipped.
func (r *rows) usable() bool {
	if r.err == nil {
		return true
	}
	at, ok := r.err.(*Error)
	if !ok || r.lost || r.skip == nil || !r.skip(at) {
		return false
	}
	r.err = nil
	return true
}

// scanLine reads a line and cuts it.
func (r *rows) scanLine() bool {
	text, ok := r.scanText(maxLineBytes, "CSV")
	if !ok {
		return false
	}
	r.fields = r.fields[:0]
	for more := true; more; {
		var field string
		field, text, more = strings.Cut(text, ",")
		if strings.HasPrefix(field, `"`) {
			r.fail(len(r.fields), "%s is in quotes, which this trace has nowhere", brief(field))
			return false
		}
		r.fields = append(r.fields, field)
	}
	return true
}

// scanText reads a line, which has at most so many bytes.
func (r *rows) scanText(most int, form string) (text string, ok bool) {
	if !r.scan.Scan() {
		r.lost = true
		switch err := r.scan.Err(); {
		case err == nil:
		case errors.Is(err, bufio.ErrTooLong):
			r.line++
			r.failLine("a line of more than %d bytes: is this a %s file, decompressed?", most, form)
		default:
			r.line++
			r.failLine("the file cannot be read further: %v", err)
		}
		return "", false
	}
	r.line++
	text = r.scan.Text()
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		r.failLine("this is no text: is the file compressed under a wrong name?")
		return "", false
	}
	return text, true
}

func (r *rows) failLine(format string, args ...any) {
	if r.err == nil {
		r.err = &Error{File: r.file, Line: r.line, Text: fmt.Sprintf(format, args...)}
	}
}

// fail is failLine about a column, counted from 0.
func (r *rows) fail(column int, format string, args ...any) {
	if r.err != nil {
		return
	}
	name := "?"
	if column < len(r.columns) {
		name = r.columns[column]
	}
	if r.cut != nil {
		r.failLine(name+": "+format, args...)
		return
	}
	r.err = &Error{File: r.file, Line: r.line, Column: column + 1, Name: name, Text: fmt.Sprintf(format, args...)}
}

// brief quotes a value without its length.
func brief(v string) string {
	if len(v) > 40 {
		v = strings.ToValidUTF8(v[:40], "") + "..."
	}
	return strconv.Quote(v)
}

// text is a value as it stands.
func (r *rows) text(column int) string { return r.fields[column] }

// integer is a value from lo to hi.
func (r *rows) integer(column int, lo, hi int64) int64 {
	v, ok := r.maybeInteger(column, lo, hi)
	if !ok {
		r.fail(column, "it is empty; want a whole number from %d to %d", lo, hi)
	}
	return v
}

// maybeInteger is integer for a value that may be empty.
func (r *rows) maybeInteger(column int, lo, hi int64) (v int64, ok bool) {
	text := r.fields[column]
	if text == "" {
		return 0, false
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < lo || v > hi {
		r.fail(column, "%s is no whole number from %d to %d", brief(text), lo, hi)
		return 0, true
	}
	return v, true
}

// maybeShare is a share of the largest machine, not negative and at most most;
// it may be empty.
func (r *rows) maybeShare(column int, most float64) (v float64, ok bool) {
	text := r.fields[column]
	if text == "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v > most {
		r.fail(column, "%s is no number from 0 to %g", brief(text), most)
		return 0, true
	}
	return v, true
}
