package selector

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
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
	terms := rapid.Custom(func(r *rapid.T) string {
		key, v := rapid.SampledFrom(keys).Draw(r, "key"), rapid.SampledFrom(values[:3])
		x, y := v.Draw(r, "value"), v.Draw(r, "other")
		return rapid.SampledFrom([]string{key + "=" + x, key + "!=" + x, key + " in (" + x + "," + y + ")", key + " notin (" + x + "," + y + ")", key, "!" + key}).Draw(r, "term")
	})
	selectors := rapid.SliceOfN(terms, 0, 3)
	pairs, disjoint := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		for range 50 {
			x, y := strings.Join(selectors.Draw(r, "one"), ","), strings.Join(selectors.Draw(r, "another"), ",")
			a, errA := Parse(x)
			b, errB := Parse(y)
			if errA != nil || errB != nil {
				r.Fatal(errA, errB)
			}
			var both map[string]string
			for _, m := range labels {
				if a.Matches(m) && b.Matches(m) {
					both = m
				}
			}
			if got, want := Disjoint(a, b), both == nil; got != want {
				r.Fatalf("Disjoint(%q, %q) = %v, want %v: %v satisfies both", x, y, got, want, both)
			}
			if Disjoint(a, b) != Disjoint(b, a) {
				r.Fatalf("Disjoint(%q, %q) depends on the order", x, y)
			}
			if pairs++; both == nil {
				disjoint++
			}
		}
	})
	if disjoint < pairs/10 {
		t.Errorf("of %d pairs %d are disjoint: the test draws too few", pairs, disjoint)
	}
}
