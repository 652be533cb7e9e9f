package tell

import (
	"bytes"
	"strings"
	"testing"
)

// TestFoldedRows: a long text goes on below, and loses nothing.
func TestFoldedRows(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("twelve words ", 30))
	var table Table
	table.Head("LEFT", "WHY", "NEAREST")
	table.addFolded(1, 3, long, "m1")
	table.addFolded(1, 2, "short", "m2")
	var out bytes.Buffer
	if err := table.Write(&out, false, ""); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var words []string
	for _, line := range lines[1 : len(lines)-1] {
		if len(line) > 100 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
		for w := range strings.FieldsSeq(line) {
			if w == "twelve" || w == "words" {
				words = append(words, w)
			}
		}
	}
	if got := strings.Join(words, " "); got != long {
		t.Errorf("got %q, want %q", got, long)
	}
	if !strings.HasPrefix(lines[1], "3     twelve") || !strings.HasSuffix(lines[1], "m1") || strings.Contains(lines[2], "m1") || strings.Contains(lines[2], "-") {
		t.Errorf("rows are\n%s", out.String())
	}
}
