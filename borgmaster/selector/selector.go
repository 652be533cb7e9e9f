// Package selector reads the selectors over labels that lists and watches take, and
// says what they pick. It knows no cell and no wire.
package selector

import (
	"fmt"
	"slices"
	"strings"
)

// Selector picks objects by their labels; all of its terms must hold. "a=b",
// "a!=b" (also when a is missing), "a in (b,c)", "a notin (b,c)", "a" (is
// there), "!a" (is not there), with commas in between.
type Selector []term

type term struct {
	key    string
	values []string
	// The values again, if there are more than scanned.
	set map[string]bool
	// The label must not be as said: missing, or of another value.
	not bool
	// Only whether the label is there counts.
	presence bool
}

// Bounds of one selector. A watch keeps its selector and tests each change against it, so
// these bound its memory and what each change costs.
const (
	// MaxBytes bounds the text.
	MaxBytes = 4 << 10
	// MaxTerms bounds the terms.
	MaxTerms = 32
	// MaxValues bounds the values of all terms together.
	MaxValues = 128
)

// scanned is how many values of a term are compared one by one; more are looked up in a set.
const scanned = 8

// Parse reads a selector; an empty one picks everything. It refuses one above the bounds.
func Parse(text string) (Selector, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("the selector has %d bytes; at most %d are allowed", len(text), MaxBytes)
	}
	parts := splitTerms(text)
	if len(parts) > MaxTerms {
		return nil, fmt.Errorf("the selector has %d requirements; at most %d are allowed", len(parts), MaxTerms)
	}
	s, values := make(Selector, 0, len(parts)), 0
	for _, part := range parts {
		one, err := parseTerm(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("selector %q: %w", text, err)
		}
		values += len(one.values)
		s = append(s, one)
	}
	if values > MaxValues {
		return nil, fmt.Errorf("the selector has %d values; at most %d are allowed in all its requirements together", values, MaxValues)
	}
	for i := range s {
		s[i].compile()
	}
	return s, nil
}

// compile makes the set of a term with many values.
func (t *term) compile() {
	if len(t.values) <= scanned {
		return
	}
	t.set = make(map[string]bool, len(t.values))
	for _, v := range t.values {
		t.set[v] = true
	}
}

// has reports whether a term names a value.
func (t *term) has(value string) bool {
	if t.set != nil {
		return t.set[value]
	}
	return slices.Contains(t.values, value)
}

// splitTerms cuts at the commas that are not between parentheses.
func splitTerms(text string) []string {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	var parts []string
	depth, start := 0, 0
	for i, r := range text {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, text[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, text[start:])
}

func parseTerm(text string) (term, error) {
	if key, list, ok := strings.Cut(text, "("); ok {
		list, closed := strings.CutSuffix(strings.TrimSpace(list), ")")
		words := strings.Fields(key)
		if !closed || len(words) != 2 || (words[1] != "in" && words[1] != "notin") {
			return term{}, fmt.Errorf("%q: want KEY in (VALUE,...) or KEY notin (VALUE,...)", text)
		}
		t := term{key: words[0], not: words[1] == "notin"}
		for v := range strings.SplitSeq(list, ",") {
			t.values = append(t.values, strings.TrimSpace(v))
		}
		return t, validKey(t.key, text)
	}
	if key, value, ok := strings.Cut(text, "="); ok {
		key, not := strings.CutSuffix(key, "!")
		value = strings.TrimPrefix(value, "=")
		t := term{key: strings.TrimSpace(key), values: []string{strings.TrimSpace(value)}, not: not}
		return t, validKey(t.key, text)
	}
	key, not := strings.CutPrefix(text, "!")
	t := term{key: strings.TrimSpace(key), not: not, presence: true}
	return t, validKey(t.key, text)
}

func validKey(key, text string) error {
	if key == "" || strings.ContainsAny(key, " !=()<>") {
		return fmt.Errorf("%q: want KEY=VALUE, KEY!=VALUE, KEY in (VALUE,...), KEY or !KEY", text)
	}
	return nil
}

// Matches tells whether labels satisfy all terms.
func (s Selector) Matches(labels map[string]string) bool {
	for i := range s {
		t := &s[i]
		value, ok := labels[t.key]
		is := ok && (t.presence || t.has(value))
		if is == t.not {
			return false
		}
	}
	return true
}

// Pair is a label with its value.
type Pair struct{ Key, Value string }

// Pairs are labels of which whatever is picked has one; none: the selector does not
// say so. An index finds by them who could be picked.
func (s Selector) Pairs() []Pair {
	var best []Pair
	for _, t := range s {
		if t.not || t.presence || best != nil && len(t.values) >= len(best) {
			continue
		}
		best = nil
		for _, v := range t.values {
			best = append(best, Pair{t.key, v})
		}
	}
	return best
}

// Disjoint tells that no labels satisfy both selectors. All terms must hold, so labels
// that satisfy both are found key by key, or there are none.
func Disjoint(a, b Selector) bool {
	both := slices.Concat(a, b)
	for _, t := range both {
		if !both.satisfiable(t.key) {
			return true
		}
	}
	return false
}

// satisfiable tells whether there can be a label of that key, or none, as the terms
// on it want.
func (s Selector) satisfiable(key string) bool {
	there, missing := false, false
	// Values that are left; all: any but those that are excluded.
	all, left := true, []string(nil)
	var excluded []string
	for _, t := range s {
		switch {
		case t.key != key:
		case t.presence && t.not:
			missing = true
		case t.presence:
			there = true
		case t.not:
			excluded = append(excluded, t.values...)
		case all:
			there, all, left = true, false, t.values
		default:
			left = slices.DeleteFunc(slices.Clone(left), func(v string) bool { return !t.has(v) })
		}
	}
	if missing || !there {
		return !(missing && there)
	}
	return all || slices.ContainsFunc(left, func(v string) bool { return !slices.Contains(excluded, v) })
}
