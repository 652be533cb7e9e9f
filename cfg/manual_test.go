package cfg

import (
	"os"
	"strings"
	"testing"
)

// The manual has a section for each constructor, and in it each argument.
func TestManualIsComplete(t *testing.T) {
	text, err := os.ReadFile("../docs/job-files.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := make(map[string]string)
	for _, part := range strings.Split(string(text), "\n## ")[1:] {
		title, body, _ := strings.Cut(part, "\n")
		sections[title] = body
	}
	for _, c := range constructors() {
		body, ok := sections[c.name+"()"]
		if !ok {
			t.Errorf("docs/job-files.md has no section %s()", c.name)
			continue
		}
		names := known(c.message)
		if c.object {
			names = append(names, objectNames...)
		}
		for _, name := range names {
			if !strings.Contains(body, "`"+name+"`") {
				t.Errorf("docs/job-files.md, section %s(): no word of %q", c.name, name)
			}
		}
	}
	for _, name := range LateBound() {
		if !strings.Contains(sections["The language"], "`{{"+name+"}}`") {
			t.Errorf("docs/job-files.md: no word of {{%s}}", name)
		}
	}
}
