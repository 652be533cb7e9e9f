package selector

import (
	"fmt"
	"strings"
	"testing"
)

func TestSelector(t *testing.T) {
	labels := map[string]string{"tier": "front", "canary": ""}
	tests := []struct {
		selector string
		want     bool
	}{
		{"", true}, {"tier=front", true}, {"tier==front", true}, {"tier=back", false},
		{"tier!=back", true}, {"tier!=front", false}, {"zone!=x", true},
		{"tier in (back, front)", true}, {"tier in (back)", false}, {"tier notin (back)", true}, {"zone notin (a)", true}, {"zone in (a)", false},
		{"canary", true}, {"!canary", false}, {"zone", false}, {"!zone", true},
		{"tier=front,canary", true}, {"tier=front , !canary", false}, {"tier in (a,front),canary", true},
	}
	for _, tt := range tests {
		s, err := Parse(tt.selector)
		if err != nil || s.Matches(labels) != tt.want {
			t.Errorf("%q matches %v = %v, %v, want %v", tt.selector, labels, s.Matches(labels), err, tt.want)
		}
	}
	for _, bad := range []string{"=x", "a in b", "a in (b", "in (b)", "a b", ",", "a notin", "!", "a>1", "a<1"} {
		if s, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", bad, s)
		}
	}
}

func TestPairs(t *testing.T) {
	for text, want := range map[string]string{
		"": "[]", "a=b": "[{a b}]", "a!=b": "[]", "a": "[]", "!a": "[]", "a notin (b)": "[]",
		"a in (b,c)": "[{a b} {a c}]", "a in (b,c),d=e": "[{d e}]", "d=e,a in (b,c),f": "[{d e}]",
	} {
		s, err := Parse(text)
		if got := fmt.Sprint(s.Pairs()); err != nil || got != want {
			t.Errorf("pairs of %q = %s, %v, want %s", text, got, err, want)
		}
	}
}

// list returns n different values with commas in between.
func list(n int) string {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprint("v", i)
	}
	return strings.Join(values, ",")
}

func TestParseIsBounded(t *testing.T) {
	for _, tt := range []struct{ text, says string }{
		{"a in (" + list(MaxValues) + ")", ""},
		{"a in (" + list(MaxValues+1) + ")", "has 129 values; at most 128"},
		{"a in (" + list(MaxValues-1) + "),b=c,d!=e", "has 129 values; at most 128"},
		{"a in (" + list(MaxValues/2) + "),b notin (" + list(MaxValues/2) + ")", ""},
		{strings.Repeat("a,", MaxTerms-1) + "a", ""},
		{strings.Repeat("a,", MaxTerms) + "a", "has 33 requirements; at most 32"},
		{"a=" + strings.Repeat("x", MaxBytes-2), ""},
		{"a=" + strings.Repeat("x", MaxBytes-1), "has 4097 bytes; at most 4096"},
		{"zz notin (" + list(7000) + ")", "bytes; at most 4096"},
	} {
		_, err := Parse(tt.text)
		if (err == nil) != (tt.says == "") || err != nil && (!strings.Contains(err.Error(), tt.says) || len(err.Error()) > 200) {
			t.Errorf("Parse of %d bytes: %v, want %q", len(tt.text), err, tt.says)
		}
	}
}

// TestMatchesOfMany holds terms whose values are in a set against those that are compared
// one by one.
func TestMatchesOfMany(t *testing.T) {
	for n := 1; n <= 4*scanned; n++ {
		for i := range n + 2 {
			labels := map[string]string{"a": fmt.Sprint("v", i)}
			for _, word := range []string{"in", "notin"} {
				s, err := Parse("a " + word + " (" + list(n) + ")")
				if want := (i < n) == (word == "in"); err != nil || s.Matches(labels) != want {
					t.Errorf("a %s of %d values: matches %v: %t, %v, want %t", word, n, labels, s.Matches(labels), err, want)
				}
			}
		}
	}
}
