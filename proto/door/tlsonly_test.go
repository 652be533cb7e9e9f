//go:build !plaintext

package door_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestNoPlaintext: a build without the tag plaintext has nothing of it, no program
// of the Makefile is built with the tag but to be measured, and nothing that runs
// can turn it on.
func TestNoPlaintext(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.GoFiles}}{{.IgnoredGoFiles}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, ignored, _ := strings.Cut(string(out), "]")
	if strings.Contains(files, "plaintext.go") || !strings.Contains(files, "tlsonly.go") || !strings.Contains(ignored, "plaintext.go") {
		t.Errorf("the files of a build are %s", out)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(makefile)) {
		if strings.Contains(line, "plaintext") {
			t.Errorf("the Makefile builds with it: %s", line)
		}
	}
}
