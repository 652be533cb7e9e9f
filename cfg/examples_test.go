package cfg

import (
	"path/filepath"
	"testing"
)

// Every example evaluates as it is.
func TestExamples(t *testing.T) {
	for _, pattern := range []string{"*.borg", "*.yaml", "*.json"} {
		paths, err := filepath.Glob(filepath.Join("..", "examples", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			t.Run(filepath.Base(path), func(t *testing.T) {
				f, err := Evaluate(path, Options{User: "alice"})
				if err != nil {
					t.Fatal(err)
				}
				again, err := Evaluate(path, Options{User: "alice"})
				if err != nil {
					t.Fatal(err)
				}
				for i, o := range f.Objects {
					one, err := o.SpecBytes()
					if err != nil {
						t.Fatal(err)
					}
					two, err := again.Objects[i].SpecBytes()
					if err != nil {
						t.Fatal(err)
					}
					if string(one) != string(two) || f.Hash != again.Hash {
						t.Errorf("%s: two evaluations differ", o.Key())
					}
				}
			})
		}
	}
}
