//go:build !mutants

package main

import (
	"bytes"
	"testing"
)

// TestNoMutants: an ordinary build has no command that plants bugs.
func TestNoMutants(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"fauxmaster", "mutants", "--list"}, &out, &errs); code != 2 {
		t.Errorf("exit %d, want 2\n%s%s", code, out.String(), errs.String())
	}
}
