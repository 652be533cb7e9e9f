package trace

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
)

// Tables of Google's trace of 2019 come as JSON with an object in each line, as CSV
// with a head, and as Parquet. All three become rows of the same columns: what a row
// does not have is empty, a field of an object in it is a column NAME.FIELD, and a
// list is JSON.

// maxRecordBytes bounds a row. A job that waits for many others has long ones.
const maxRecordBytes = 1 << 20

// maxCSVRecordBytes bounds a row of CSV, with what is read ahead of it.
const maxCSVRecordBytes = maxRecordBytes + 64<<10

// source is a file of a table.
type source interface {
	io.Reader
	io.ReaderAt
	io.Seeker
}

// form is how a table is written down.
type form string

const (
	formJSON    form = "json"
	formCSV     form = "csv"
	formParquet form = "parquet"
)

// records reads rows of a table. Of its columns the first ones, must of them, have to
// be there.
func records(file string, f form, in io.Reader, must int, columns []string) *rows {
	switch f {
	case formCSV:
		return newCSVRecords(file, in, must, columns)
	case formParquet:
		return newParquetRecords(file, in, must, columns)
	}
	return newJSONRecords(file, in, columns)
}

// put sets a value of a row, given by its name; others than the columns are of no use.
func (r *rows) put(name, text string) {
	i := slices.Index(r.columns, name)
	if i < 0 {
		return
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		r.failLine("%s: this is no text", name)
		return
	}
	r.fields[i] = text
}

// clear makes all of a row empty.
func (r *rows) clear() {
	r.fields = slices.Grow(r.fields[:0], len(r.columns))[:len(r.columns)]
	clear(r.fields)
}

func newJSONRecords(file string, in io.Reader, columns []string) *rows {
	r := newRows(file, in, columns...)
	r.scan.Buffer(nil, maxRecordBytes)
	r.cut = func() bool {
		text := ""
		for text == "" {
			var ok bool
			if text, ok = r.scanText(maxRecordBytes, "JSON"); !ok {
				return false
			}
			text = strings.TrimSpace(text)
		}
		r.clear()
		if text[0] == '[' {
			r.lost = true
			r.failLine("a list begins here; want an object in each line, which jq -c '.[]' makes of it")
			return false
		}
		var row map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			r.failLine("%s is no JSON object: %v", brief(text), err)
			return false
		}
		for name, value := range row {
			r.putJSON(name, value)
		}
		return r.err == nil
	}
	return r
}

// putJSON sets a value, or those of an object.
func (r *rows) putJSON(name string, value json.RawMessage) {
	switch value[0] {
	case 'n':
	case '"':
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			r.failLine("%s: %v", name, err)
			return
		}
		r.put(name, text)
	case '{':
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(value, &fields); err != nil {
			r.failLine("%s: %v", name, err)
			return
		}
		for field, value := range fields {
			// One level: an amount, of which nothing is an object.
			if value[0] != '{' {
				r.putJSON(name+"."+field, value)
			}
		}
	default:
		r.put(name, string(value))
	}
}

func newCSVRecords(file string, in io.Reader, must int, columns []string) *rows {
	r := newRows(file, in, columns...)
	up := &upTo{r: in, what: "a row", room: maxCSVRecordBytes, most: maxCSVRecordBytes}
	c := csv.NewReader(up)
	c.ReuseRecord = true
	head, err := c.Read()
	r.line = 1
	if err != nil {
		r.lost = true
		r.failLine("its first line should name the columns: %v", err)
		return r
	}
	head = slices.Clone(head)
	for i, name := range head {
		// resource_request_cpus is what some tools make of resource_request.cpus.
		name = strings.TrimPrefix(name, "\ufeff")
		for _, of := range []string{"resource_request", "capacity"} {
			if field, ok := strings.CutPrefix(name, of+"_"); ok {
				name = of + "." + field
			}
		}
		head[i] = name
	}
	r.wantColumns(head, must)
	r.cut = func() bool {
		up.goOn(c.InputOffset())
		fields, err := c.Read()
		if errors.Is(err, io.EOF) {
			r.lost = true
			return false
		}
		var bad *csv.ParseError
		if errors.As(err, &bad) {
			r.line = bad.StartLine
			r.failLine("%v", bad.Err)
			return false
		}
		if err != nil {
			r.line, r.lost = r.line+1, true
			r.failLine("the file cannot be read further: %v", err)
			return false
		}
		r.line, _ = c.FieldPos(0)
		r.clear()
		for i, text := range fields {
			if strings.HasPrefix(text, "{") {
				r.putJSON(head[i], asJSON(text))
			} else {
				r.put(head[i], text)
			}
		}
		return r.err == nil
	}
	return r
}

// asJSON is JSON of what may be written in Python, as some copies have it; null if
// it is neither.
func asJSON(text string) json.RawMessage {
	for _, try := range []string{text, strings.ReplaceAll(strings.ReplaceAll(text, "'", `"`), "None", "null")} {
		if json.Valid([]byte(try)) {
			return json.RawMessage(strings.TrimSpace(try))
		}
	}
	return json.RawMessage("null")
}

// wantColumns wants the first columns among those that a file has.
func (r *rows) wantColumns(has []string, must int) {
	for _, name := range r.columns[:must] {
		if !slices.Contains(has, name) {
			r.lost = true
			r.failLine("there is no column %s; the columns are %s", name, strings.Join(has, ", "))
			return
		}
	}
}

// parquetRecords reads the rows of a Parquet file.
type parquetRecords struct {
	*rows
	groups []parquet.RowGroup
	open   parquet.Rows
	buffer []parquet.Row
	// ready are rows of the buffer that are still to come.
	ready []parquet.Row
	// names of the leaves: NAME, or NAME.FIELD.
	names []string
	lists map[string][]map[string]string
}

func newParquetRecords(file string, in io.Reader, must int, columns []string) *rows {
	r := newRows(file, in, columns...)
	p := &parquetRecords{rows: r, buffer: make([]parquet.Row, 64)}
	r.cut = func() bool { return p.guard(p.next) }
	p.guard(func() bool { p.begin(in, must); return true })
	return r
}

// guard makes an error of what the library has no error for: a file that is damaged
// may make it panic.
func (p *parquetRecords) guard(do func() bool) (ok bool) {
	defer func() {
		if damage := recover(); damage != nil {
			p.line, p.lost, ok = max(p.line, 1), true, false
			p.failLine("the file is damaged: %v", damage)
		}
	}()
	return do()
}

func (p *parquetRecords) begin(in io.Reader, must int) {
	p.line = 1
	file, ok := in.(source)
	if !ok {
		p.lost = true
		p.failLine("a Parquet file is read from its end: it cannot be compressed as a whole")
		return
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		err = checkFooter(file, size)
	}
	if err == nil {
		var f *parquet.File
		if f, err = parquet.OpenFile(file, size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true)); err == nil {
			p.groups = f.RowGroups()
			for _, path := range f.Schema().Columns() {
				p.names = append(p.names, leafName(path))
			}
			claims := pageClaims{file: file, size: size}
			err = claims.check(f)
			claims.unpacker.close()
		}
	}
	if err != nil {
		p.lost = true
		p.failLine("this is no Parquet file: %v", err)
		return
	}
	has := slices.Clone(p.names)
	p.wantColumns(has, must)
	p.line = 0
}

// leafName is the name of a column without the levels that lists are written with.
func leafName(path []string) string {
	var kept []string
	for _, name := range path {
		switch name {
		case "list", "element", "array", "item", "array_element", "bag":
		default:
			kept = append(kept, name)
		}
	}
	return strings.Join(kept, ".")
}

func (p *parquetRecords) next() bool {
	for len(p.ready) == 0 {
		if p.open == nil {
			if len(p.groups) == 0 {
				p.lost = true
				return false
			}
			p.open, p.groups = p.groups[0].Rows(), p.groups[1:]
		}
		n, err := p.open.ReadRows(p.buffer)
		p.ready = p.buffer[:n]
		if err == nil && n > 0 {
			continue
		}
		p.open.Close()
		p.open = nil
		if err != nil && !errors.Is(err, io.EOF) {
			p.line, p.lost = p.line+1, true
			p.failLine("the file cannot be read further: %v", err)
			return false
		}
	}
	row := p.ready[0]
	p.ready = p.ready[1:]
	p.line++
	p.clear()
	p.lists = make(map[string][]map[string]string)
	row.Range(func(column int, values []parquet.Value) bool {
		p.leaf(p.names[column], values)
		return true
	})
	for name, list := range p.lists {
		p.putList(name, list)
	}
	return p.err == nil
}

// leaf sets the value of a leaf, or gathers those of a list of objects.
func (p *parquetRecords) leaf(name string, values []parquet.Value) {
	of, field, nested := strings.Cut(name, ".")
	switch {
	case slices.Contains(p.columns, name) && !isList(name):
		if len(values) > 0 && !values[0].IsNull() {
			p.put(name, values[0].String())
		}
	case isList(of):
		if !nested {
			field = ""
		}
		for i, v := range values {
			if len(p.lists[of]) <= i {
				p.lists[of] = append(p.lists[of], make(map[string]string))
			}
			if !v.IsNull() {
				p.lists[of][i][field] = v.String()
			}
		}
	}
}

// putList writes a list as JSON: of texts, or of objects.
func (p *parquetRecords) putList(name string, list []map[string]string) {
	var all []any
	for _, fields := range list {
		switch text, plain := fields[""]; {
		case len(fields) == 0:
		case plain:
			all = append(all, text)
		default:
			all = append(all, fields)
		}
	}
	if len(all) == 0 {
		return
	}
	data, err := json.Marshal(all)
	if err != nil {
		panic(fmt.Sprintf("trace: encode a list of texts: %v", err))
	}
	p.put(name, string(data))
}

// isList tells the columns that have a list.
func isList(name string) bool { return name == "constraint" || name == "start_after_collection_ids" }

// loose is a number, or the text of one, or a name: whichever a file has.
type loose string

func (l *loose) UnmarshalJSON(data []byte) error {
	text := string(data)
	if text == "null" {
		return nil
	}
	if data[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	}
	*l = loose(text)
	return nil
}

// list reads a list that is JSON; empty is none.
func list[T any](r *rows, column int) (all []T) {
	text := r.fields[column]
	if text == "" {
		return nil
	}
	if err := json.Unmarshal(asJSON(text), &all); err != nil || asJSON(text)[0] != '[' {
		r.fail(column, "%s is no list in JSON", brief(text))
		return nil
	}
	return all
}

// whole is integer for numbers that a tool may have written with a point.
func (r *rows) whole(column int, lo, hi int64) int64 {
	v, ok := r.maybeWhole(column, lo, hi)
	if !ok {
		r.fail(column, "it is empty; want a whole number from %d to %d", lo, hi)
	}
	return v
}

func (r *rows) maybeWhole(column int, lo, hi int64) (v int64, ok bool) {
	r.fields[column] = strings.TrimSuffix(r.fields[column], ".0")
	return r.maybeInteger(column, lo, hi)
}

// oneOf is a number of those of names, or one of the names; -1: it is empty.
func (r *rows) oneOf(column int, names []string) int64 {
	if r.err != nil {
		return -1
	}
	text := r.fields[column]
	if i := slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(name, text) }); i >= 0 {
		return int64(i)
	}
	v, ok := r.maybeWhole(column, 0, int64(len(names))-1)
	switch {
	case !ok:
		return -1
	case r.err != nil:
		r.err = nil
		r.fail(column, "%s is none of 0 to %d, %s", brief(text), len(names)-1, strings.Join(names, ", "))
	}
	return v
}

func isInteger(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return err == nil
}
