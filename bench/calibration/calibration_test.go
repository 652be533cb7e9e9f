package calibration

import (
	"os"
	"testing"
)

// TestMeasure holds that all four are measured and that nothing is left.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	r, err := Measure(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r.HashMiBPerS <= 0 || r.GathersPerS <= 0 || r.SyncMs <= 0 || r.CallUs <= 0 {
		t.Errorf("Measure = %+v, want four figures above zero", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
