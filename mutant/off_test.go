//go:build !mutants

package mutant_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"borg/mutant"
)

// TestOff holds that no ordinary program has a mutant in it: the compiler has
// left out the names with the bugs. The list itself shows that a name that is
// used is found.
func TestOff(t *testing.T) {
	for _, m := range mutant.All {
		if mutant.Planted(m.Name) {
			t.Errorf("%s is planted", m.Name)
		}
	}
	// It has every package in which one can be planted.
	program := filepath.Join(t.TempDir(), "fauxmaster")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/fauxmaster").CombinedOutput(); err != nil {
		t.Fatalf("build fauxmaster: %v\n%s", err, out)
	}
	code, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutant.All {
		if bytes.Contains(code, []byte(m.Name)) {
			t.Errorf("an ordinary fauxmaster holds the mutant %s: let the if stand outside of func literals", m.Name)
		}
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(self, []byte(mutant.All[0].Name)) {
		t.Errorf("%s is in the list of this test and not found in it: the test sees nothing", mutant.All[0].Name)
	}
}
