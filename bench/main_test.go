package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseTakesDottedFigures(t *testing.T) {
	out := `goos: linux
BenchmarkApply-2   	     100	  12345 ns/op	       298.5 cell.bytes_per_task	  250000 cell.apply.ops_per_s
PASS
`
	figures, err := parse(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	want := []Figure{{Name: "cell.bytes_per_task", Value: 298.5, Unit: "B"}, {Name: "cell.apply.ops_per_s", Value: 250000, Unit: "1/s"}}
	if len(figures) != 2 || figures[0] != want[0] || figures[1] != want[1] {
		t.Errorf("parse = %+v, want %+v", figures, want)
	}
}

func TestMergeKeepsOtherFigures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.json")
	for _, f := range []Figure{{Name: "b", Value: 1}, {Name: "a", Value: 2}, {Name: "b", Value: 3}} {
		if err := merge(path, []Figure{f}); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []Figure
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0] != (Figure{Name: "a", Value: 2}) || got[1] != (Figure{Name: "b", Value: 3}) {
		t.Errorf("merged figures = %+v, want a=2 b=3", got)
	}
}
