package cell

import (
	"fmt"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

func TestGlobs(t *testing.T) {
	for _, q := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "a", true}, {"a", "b", false}, {"a", "", false},
		{"*", "", true}, {"*", "anything", true}, {"ads-*", "ads-", true}, {"ads-*", "ads", false}, {"ads-*", "ads-x-y", true},
		{"*-x", "a-x", true}, {"*-x", "a-x-", false}, {"*a*b*", "xxaxxb", true}, {"*a*b*", "xxbxxa", false},
		{"?", "a", true}, {"?", "ö", true}, {"?", "", false}, {"?", "ab", false}, {"a?c", "abc", true}, {"*ö?", "xöy", true}, {"**", "x", true},
		{"a*a", "a", false}, {"a*a", "aa", true}, {"a*b?c", "axxbyc", true}, {"a*b?c", "abbc", true},
	} {
		if got := globs(q.pattern, q.text); got != q.want {
			t.Errorf("globs(%q, %q) = %v, want %v", q.pattern, q.text, got, q.want)
		}
	}
}

// FuzzGlobs holds globs against the definition: what * and ? stand for, tried out.
func FuzzGlobs(f *testing.F) {
	f.Add("a*b?c", "axxbyc")
	f.Add("*a*", "bab")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > 8 || len(text) > 12 {
			return
		}
		for _, s := range []string{pattern, text} {
			if strings.ToValidUTF8(s, "") != s {
				return
			}
		}
		if got, want := globs(pattern, text), globsSlowly([]rune(pattern), []rune(text)); got != want {
			t.Errorf("globs(%q, %q) = %v, want %v", pattern, text, got, want)
		}
	})
}

func globsSlowly(pattern, text []rune) bool {
	switch {
	case len(pattern) == 0:
		return len(text) == 0
	case pattern[0] == '*':
		for i := range len(text) + 1 {
			if globsSlowly(pattern[1:], text[i:]) {
				return true
			}
		}
		return false
	case len(text) == 0 || pattern[0] != '?' && pattern[0] != text[0]:
		return false
	}
	return globsSlowly(pattern[1:], text[1:])
}

// TestLabelPolicyRefused wants each odd policy refused, with the reason.
func TestLabelPolicyRefused(t *testing.T) {
	const job = borgpb.Labelled_LABELLED_JOB
	one := func(rule *borgpb.LabelRule) *borgpb.LabelPolicy {
		return &borgpb.LabelPolicy{Rules: []*borgpb.LabelRule{rule}}
	}
	many := &borgpb.LabelPolicy{}
	for i := range maxLabelRules + 1 {
		many.Rules = append(many.Rules, &borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: fmt.Sprint("k", i), Required: true})
	}
	crowd := &borgpb.LabelPolicy{}
	for i := range maxLabels + 1 {
		crowd.Rules = append(crowd.Rules, &borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: fmt.Sprint("k", i), DefaultValue: new("x")})
	}
	for _, q := range []struct {
		policy *borgpb.LabelPolicy
		field  string
	}{
		{one(&borgpb.LabelRule{Key: "a", Required: true}), "kinds"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{0}, Key: "a", Required: true}), "kinds"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{job, job}, Key: "a", Required: true}), "kinds"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Required: true}), "key"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: strings.Repeat("k", 64), Required: true}), "key"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: "a*", Required: true}), "key"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: "a", Forbidden: true, Required: true}), "forbidden"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: "a"}), "rules"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: "a", Values: make([]string, maxLabelRuleValues+1)}), "values"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: "a", Values: []string{strings.Repeat("v", 256)}}), "values"},
		{one(&borgpb.LabelRule{Kinds: []borgpb.Labelled{job}, Key: "a", Values: []string{"x"}, DefaultValue: new("y")}), "default"},
		{&borgpb.LabelPolicy{Rules: []*borgpb.LabelRule{
			{Kinds: []borgpb.Labelled{job}, Key: "a", DefaultValue: new("y")}, {Kinds: []borgpb.Labelled{job}, Key: "*", Forbidden: true},
		}}, "default"},
		{&borgpb.LabelPolicy{Rules: []*borgpb.LabelRule{
			{Kinds: []borgpb.Labelled{job}, Key: "a", DefaultValue: new("y")}, {Kinds: []borgpb.Labelled{job}, Key: "a", DefaultValue: new("x")},
		}}, "default"},
		{many, "rules"}, {crowd, "default"},
	} {
		if r := CheckLabelPolicy(q.policy); r == nil || r.Field != q.field {
			t.Errorf("%v: got %v, want a fault in %s", q.policy, r, q.field)
		}
	}
}
