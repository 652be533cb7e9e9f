package shown

import (
	"slices"
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	for line, want := range map[string]string{
		"":                                    "",
		"# nothing":                           "",
		"a b  c":                              "a|b|c",
		"a b > token # why":                   "a|b",
		"a <in b>out c":                       "a|b|c",
		`a --reason 'two words' "x y" z#1`:    "a|--reason|two words|x y|z#1",
		"a -o json | tr -d ' '":               "a|-o|json",
		"a; b":                                "a",
		`a ''`:                                "a|",
		"a 'in (front,api)'    # tasks of it": "a|in (front,api)",
	} {
		if got := strings.Join(Split(line), "|"); got != want {
			t.Errorf("Split(%q) = %q, want %q", line, got, want)
		}
	}
}

func TestCommands(t *testing.T) {
	p := &Page{name: "p.md", lines: strings.Split("Say `borgcfg why x/0 --flag` or `other`.\n"+
		"```\nbin/borgcfg a b   # an admin, anywhere\nborgmaster c\nborgcfg d         # in a task\n```\n"+
		"<!-- as: admin -->\n```\n$ borgcfg e\nborgcfg says this\n```\n```\nborgcfg f\n```", "\n")}
	var got []string
	for _, c := range p.Commands("borgcfg") {
		got = append(got, c.Where+" "+string(c.As)+" "+strings.Join(c.Words, " "))
	}
	if want := []string{"p.md:3 admin borgcfg a b", "p.md:5 task borgcfg d", "p.md:9 admin borgcfg e", "p.md:13 user borgcfg f"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if all := p.Inline("borgcfg"); len(all) != 1 || strings.Join(all[0].Words, " ") != "borgcfg why x/0 --flag" {
		t.Errorf("inline: %v", all)
	}
}
