package scheduler

import "testing"

func TestFigures(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{cpuText(0), "0.0"},
		{cpuText(250), "0.25"},
		{cpuText(2500), "2.5"},
		{cpuText(4000), "4.0"},
		{cpuText(-1), "-0.001"},
		{bytesText(0), "0 B"},
		{bytesText(1023), "1023 B"},
		{bytesText(1 << 20), "1.0 MiB"},
		{bytesText(25 << 29), "12.5 GiB"},
		{bytesText(1<<30 - 1), "1023.999 MiB"},
		{bytesText(1 << 50), "1024.0 TiB"},
		{bytesText(-(3 << 30)), "-3.0 GiB"},
		{listText([]string{"a", "b"}, 2), "a, b"},
		{listText([]string{"a", "b", "c", "d"}, 2), "a, b and 2 more"},
		{plural(1, "machine"), "1 machine"},
		{plural(0, "machine"), "0 machines"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestRoundDown(t *testing.T) {
	for _, c := range []struct {
		n     int64
		bytes bool
		want  int64
	}{
		{0, true, 0}, {7, false, 7}, {257, false, 250}, {2575, false, 2500},
		{1023, true, 1023}, {5<<20 + 3, true, 5 << 20},
		{12<<30 + 700<<20, true, 12<<30 + 640<<20},
	} {
		if got := roundDown(c.n, c.bytes); got != c.want {
			t.Errorf("roundDown(%d, %v) = %d, want %d", c.n, c.bytes, got, c.want)
		}
	}
}

// The score must not overflow at the limits of the cell, and stay in bounds.
func TestFullness(t *testing.T) {
	for _, c := range []struct{ whole, left, want int64 }{
		{1 << 50, 0, 1024}, {1 << 50, 1 << 50, 0}, {1 << 50, 1 << 49, 512},
		{0, 0, 0}, {4, -1, 1024}, {4, 5, 0}, {3, 2, 341},
	} {
		if got := fullness(c.whole, c.left); got != c.want {
			t.Errorf("fullness(%d, %d) = %d, want %d", c.whole, c.left, got, c.want)
		}
	}
}
