package main

import (
	"slices"
	"strings"
	"testing"

	"borg/bench/figures"
)

func TestParseTakesDottedFigures(t *testing.T) {
	out := `goos: linux
BenchmarkApply-2   	     100	  12345 ns/op	       298.5 cell.bytes_per_task	  250000 cell.apply.ops_per_s
PASS
`
	found, err := parse(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	want := []figures.Figure{figures.New("cell.bytes_per_task", 298.5), figures.New("cell.apply.ops_per_s", 250000)}
	if !slices.Equal(found, want) || found[0].Unit != "B" || found[1].Unit != "1/s" {
		t.Errorf("parse = %+v, want %+v", found, want)
	}
}
