package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestSimulate runs a short seed, says what came of it, and repeats.
func TestSimulate(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"fauxmaster", "simulate", "--seed", "4", "--duration", "1s", "--twice"}, &out, &errs)
	if code != 0 || !strings.Contains(out.String(), "1 seeds, 0 violations, 0 do not repeat") {
		t.Errorf("exit %d\n%s%s", code, out.String(), errs.String())
	}
	out.Reset()
	code = run(t.Context(), []string{"fauxmaster", "simulate", "--seed", "4", "--duration", "1s", "--trace"}, &out, &errs)
	if code != 0 || !strings.Contains(out.String(), "settled at index") {
		t.Errorf("exit %d and no transcript:\n%.500s", code, out.String())
	}
	if code = run(t.Context(), []string{"fauxmaster", "simulate", "--seeds", "0"}, &out, &errs); code != 2 {
		t.Errorf("no seeds: exit %d, want 2", code)
	}
}
