// Package export writes what is in a cell, and what happened to it, as tables that
// other programs read: CSV, Parquet, and the schema of Google's trace of 2019.
//
// # What it guarantees
//
// Every object that the cell knows is in its table once, and every event of the
// archive that has a place in Google's schema is in one of the event tables, in
// order. Amounts are whole numbers in the units that column names end with; only
// Google's schema has shares of the largest machine instead.
//
// # What it does not tell
//
// What a spec has beyond resources and rules of placement: arguments, environment,
// secrets. Names are in clear text.
package export

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// Format of the files.
type Format string

// Formats. JSON has a line for each row, as Google's exports have.
const (
	CSV     Format = "csv"
	Parquet Format = "parquet"
	JSON    Format = "json"
)

// table is a file being written.
type table[T any] interface {
	add(row T) error
	// close ends the file; without it the file is not whole.
	close() error
}

// create begins a table in dir.
func create[T any](f Format, dir, name string) (table[T], error) {
	path := filepath.Join(dir, name+"."+string(f))
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("create a table: %w", err)
	}
	out := &output{file: file, buffer: bufio.NewWriterSize(file, 1<<18)}
	switch f {
	case Parquet:
		return &parquetTable[T]{out, parquet.NewGenericWriter[T](out.buffer, parquet.Compression(&parquet.Zstd)), 0}, nil
	case JSON:
		return &jsonTable[T]{out, json.NewEncoder(out.buffer)}, nil
	}
	t := &csvTable[T]{out, csv.NewWriter(out.buffer)}
	return t, t.csv.Write(columnsOf("", reflect.TypeFor[T](), nil))
}

// output is a file with a buffer.
type output struct {
	file   *os.File
	buffer *bufio.Writer
}

func (o *output) close() error { return errors.Join(o.buffer.Flush(), o.file.Close()) }

type parquetTable[T any] struct {
	*output
	parquet *parquet.GenericWriter[T]
	rows    int
}

// maxGroupRows bounds what is in memory before it is written.
const maxGroupRows = 100_000

func (t *parquetTable[T]) add(row T) error {
	if _, err := t.parquet.Write([]T{row}); err != nil {
		return fmt.Errorf("write a row: %w", err)
	}
	if t.rows++; t.rows%maxGroupRows == 0 {
		return t.parquet.Flush()
	}
	return nil
}

func (t *parquetTable[T]) close() error { return errors.Join(t.parquet.Close(), t.output.close()) }

type jsonTable[T any] struct {
	*output
	json *json.Encoder
}

func (t *jsonTable[T]) add(row T) error { return t.json.Encode(row) }

type csvTable[T any] struct {
	*output
	csv *csv.Writer
}

func (t *csvTable[T]) add(row T) error {
	return t.csv.Write(cellsOf(reflect.ValueOf(row), nil))
}

func (t *csvTable[T]) close() error {
	t.csv.Flush()
	return errors.Join(t.csv.Error(), t.output.close())
}

// columnsOf lists the columns of a struct by their parquet names; those of a struct
// in it come with its name and a dot before them.
func columnsOf(prefix string, t reflect.Type, to []string) []string {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("parquet"), ",")
		if f.Type.Kind() == reflect.Struct {
			to = columnsOf(prefix+name+".", f.Type, to)
			continue
		}
		to = append(to, prefix+name)
	}
	return to
}

// cellsOf are the values of a row in the order of columnsOf. Lists and maps are
// JSON; empty ones are empty.
func cellsOf(v reflect.Value, to []string) []string {
	for _, f := range v.Fields() {
		switch f.Kind() {
		case reflect.Struct:
			to = cellsOf(f, to)
		case reflect.Slice, reflect.Map:
			text := ""
			if f.Len() > 0 {
				data, err := json.Marshal(f.Interface())
				if err != nil {
					panic(fmt.Sprintf("export: encode %s: %v", f.Type(), err))
				}
				text = string(data)
			}
			to = append(to, text)
		default:
			to = append(to, fmt.Sprint(f.Interface()))
		}
	}
	return to
}
