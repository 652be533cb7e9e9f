package selector

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestDisjoint holds Disjoint against all labels that could tell two selectors apart:
// two selectors are disjoint exactly when none of these satisfies both.
func TestDisjoint(t *testing.T) {
	// "new" is a value that no term names.
	keys, values := []string{"a", "b"}, []string{"1", "2", "3", "new"}
	var labels []map[string]string
	for i := range len(values) + 1 {
		for k := range len(values) + 1 {
			m := map[string]string{}
			for n, v := range map[int]int{0: i, 1: k} {
				if v < len(values) {
					m[keys[n]] = values[v]
				}
			}
			labels = append(labels, m)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	draw := func() string {
		var terms []string
		for range r.IntN(4) {
			key, v, w := keys[r.IntN(2)], values[r.IntN(3)], values[r.IntN(3)]
			terms = append(terms, []string{key + "=" + v, key + "!=" + v, key + " in (" + v + "," + w + ")", key + " notin (" + v + "," + w + ")", key, "!" + key}[r.IntN(6)])
		}
		return strings.Join(terms, ",")
	}
	disjoint := 0
	for range 20_000 {
		x, y := draw(), draw()
		a, errA := Parse(x)
		b, errB := Parse(y)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		var both map[string]string
		for _, m := range labels {
			if a.Matches(m) && b.Matches(m) {
				both = m
			}
		}
		if got, want := Disjoint(a, b), both == nil; got != want {
			t.Fatalf("Disjoint(%q, %q) = %v, want %v: %v satisfies both", x, y, got, want, both)
		}
		if Disjoint(a, b) != Disjoint(b, a) {
			t.Fatalf("Disjoint(%q, %q) depends on the order", x, y)
		}
		if both == nil {
			disjoint++
		}
	}
	if disjoint < 2_000 {
		t.Errorf("of 20,000 pairs %d are disjoint: the test draws too few", disjoint)
	}
}
