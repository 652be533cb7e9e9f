package selector

import (
	"fmt"
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
