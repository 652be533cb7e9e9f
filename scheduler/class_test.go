package scheduler

import (
	"slices"
	"testing"
)

// The log of changes gives back what came after a moment, each site once and in
// the order of the walk, until there was too much of it.
func TestChangesSince(t *testing.T) {
	var ch changes
	ch.add(4, 8)
	seen := ch.now()
	for _, i := range []int32{3, 1, 3, 0} {
		ch.add(i, 8)
	}
	order := func(start int32) []int32 {
		got, ok := ch.since(seen)
		if !ok {
			t.Fatalf("since(%d): it could be any, want those after it", seen)
		}
		return slices.Collect(from(got, start))
	}
	if got, want := order(0), []int32{0, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("since, from 0 = %v, want %v", got, want)
	}
	if got, want := order(2), []int32{3, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("since, from 2 = %v, want %v", got, want)
	}
	if got, ok := ch.since(ch.now()); !ok || len(got) != 0 {
		t.Errorf("since now = %v, %v, want nothing", got, ok)
	}
	before := ch.now()
	for range 8 {
		ch.add(2, 8)
	}
	if _, ok := ch.since(before); ok {
		t.Error("since a moment before the log overflowed: want any")
	}
	if ch.now() <= before {
		t.Errorf("now went from %d to %d", before, ch.now())
	}
}

func TestConfigBounds(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero configuration: %v", err)
	}
	if err := (Config{Enough: -1, BatchBytes: 1 << 30}).Validate(); err == nil {
		t.Error("a negative count and a batch above a log entry are accepted")
	}
	if (Config{}).Hash() != (Config{Enough: 50}).Hash() {
		t.Error("a default that is spelled out hashes otherwise")
	}
	if (Config{}).Hash() == (Config{Seed: 1}).Hash() || (Config{}).Hash() == (Config{Name: "batch"}).Hash() {
		t.Error("different configurations hash alike")
	}
}
