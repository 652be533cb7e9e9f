package borgmaster

import (
	"fmt"
	"slices"
	"strings"
)

// selector picks objects by their labels; all of its terms must hold. "a=b",
// "a!=b" (also when a is missing), "a in (b,c)", "a notin (b,c)", "a" (is
// there), "!a" (is not there), with commas in between.
type selector []selectorTerm

type selectorTerm struct {
	key    string
	values []string
	// The label must not be as said: missing, or of another value.
	not bool
	// Only whether the label is there counts.
	presence bool
}

// parseSelector reads a selector; an empty one picks everything.
func parseSelector(text string) (selector, error) {
	var s selector
	for _, part := range splitTerms(text) {
		term, err := parseTerm(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("selector %q: %w", text, err)
		}
		s = append(s, term)
	}
	return s, nil
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

func parseTerm(text string) (selectorTerm, error) {
	if key, list, ok := strings.Cut(text, "("); ok {
		list, closed := strings.CutSuffix(strings.TrimSpace(list), ")")
		words := strings.Fields(key)
		if !closed || len(words) != 2 || (words[1] != "in" && words[1] != "notin") {
			return selectorTerm{}, fmt.Errorf("%q: want KEY in (VALUE,...) or KEY notin (VALUE,...)", text)
		}
		t := selectorTerm{key: words[0], not: words[1] == "notin"}
		for v := range strings.SplitSeq(list, ",") {
			t.values = append(t.values, strings.TrimSpace(v))
		}
		return t, validKey(t.key, text)
	}
	if key, value, ok := strings.Cut(text, "="); ok {
		key, not := strings.CutSuffix(key, "!")
		value = strings.TrimPrefix(value, "=")
		t := selectorTerm{key: strings.TrimSpace(key), values: []string{strings.TrimSpace(value)}, not: not}
		return t, validKey(t.key, text)
	}
	key, not := strings.CutPrefix(text, "!")
	t := selectorTerm{key: strings.TrimSpace(key), not: not, presence: true}
	return t, validKey(t.key, text)
}

func validKey(key, text string) error {
	if key == "" || strings.ContainsAny(key, " !=()") {
		return fmt.Errorf("%q: want KEY=VALUE, KEY!=VALUE, KEY in (VALUE,...), KEY or !KEY", text)
	}
	return nil
}

// matches tells whether labels satisfy all terms.
func (s selector) matches(labels map[string]string) bool {
	for _, t := range s {
		value, ok := labels[t.key]
		is := ok && (t.presence || slices.Contains(t.values, value))
		if is == t.not {
			return false
		}
	}
	return true
}
