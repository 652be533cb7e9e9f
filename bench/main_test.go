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

func TestFailOverIsReadFromItsTest(t *testing.T) {
	gaps, err := failOverGaps([]byte("--- starting\nfailover_us 412345\nnoise failover_us 1\nfailover_us 98765\nPASS\n"))
	if err != nil || !slices.Equal(gaps, []int64{412345, 98765}) {
		t.Errorf("failOverGaps = %v, %v", gaps, err)
	}
	if _, err := failOverGaps([]byte("failover_us soon\n")); err == nil {
		t.Error("a time that is none is taken")
	}
	b := failOverBuild{name: "tls", gapsUs: []int64{300000, 100000, 200000}}
	got := b.figures()
	if len(got) != 2 || got[0].Name != "master.failover.tls.p50_ms" || got[0].Value != 200 || got[1].Value != 300 || got[0].Unit != "ms" {
		t.Errorf("figures = %+v", got)
	}
}

func TestRatiosAreOfPairs(t *testing.T) {
	got := ratios([]map[string][2]float64{
		{"cell.ops_per_s": {200, 100}, "gone.s": {0, 3}},
		{"cell.ops_per_s": {90, 100}, "cell.bytes": {8, 16}},
		{"cell.ops_per_s": {110, 100}},
	})
	if len(got) != 2 || got[0].name != "cell.bytes" || !slices.Equal(got[0].pairs, []float64{0.5}) ||
		!slices.Equal(got[1].pairs, []float64{2, 0.9, 1.1}) {
		t.Fatalf("ratios = %+v", got)
	}
	if m := got[1].median(); m != 1.1 {
		t.Errorf("the median of %v is %v, want 1.1", got[1].pairs, m)
	}
}
