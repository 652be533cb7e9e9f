package spelling

import "testing"

func TestDistance(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "cpu", 3}, {"cpu", "cpu", 0}, {"cp", "cpu", 1}, {"cpuu", "cpu", 1},
		{"cqu", "cpu", 1}, {"cup", "cpu", 1}, {"statsu", "status", 1}, {"fly", "status", 6},
	}
	for _, tt := range tests {
		if got := Distance(tt.a, tt.b); got != tt.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
