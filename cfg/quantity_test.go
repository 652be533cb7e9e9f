package cfg

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestQuantities(t *testing.T) {
	cpu, bytes, span := parseCPU, parseBytes, parseDuration
	for _, tc := range []struct {
		parse func(string) (int64, error)
		text  string
		want  int64 // negative: an error
	}{
		{cpu, "0.5", 500}, {cpu, "2", 2000}, {cpu, "500m", 500}, {cpu, "0.001", 1}, {cpu, "1e2", 100_000}, {cpu, " 1 ", 1000},
		{cpu, "0.1", 100}, {cpu, "0.7", 700}, {cpu, "1.1", 1100}, {cpu, "2.3", 2300}, {cpu, "1000000", 1_000_000_000},
		{cpu, "0.0001", -1}, {cpu, "1.5m", -1}, {cpu, "", -1}, {cpu, "m", -1}, {cpu, "-1", -1}, {cpu, "1/3", -1}, {cpu, "0x10", -1},
		{cpu, "1_000", -1}, {cpu, "1 core", -1}, {cpu, "NaN", -1}, {cpu, "Inf", -1}, {cpu, "1e999", -1}, {cpu, "1000001", -1},
		{bytes, "512MiB", 512 << 20}, {bytes, "1.5GiB", 3 << 29}, {bytes, "1G", 1e9}, {bytes, "1Gi", 1 << 30}, {bytes, "4096", 4096},
		{bytes, "1 KiB", 1024}, {bytes, "2k", 2000}, {bytes, "0.1GiB", 107374183}, {bytes, "0.3GB", 300_000_000}, {bytes, "1TiB", 1 << 40},
		{bytes, "1.5", -1}, {bytes, "512m", -1}, {bytes, "1gib", -1}, {bytes, "-1MiB", -1}, {bytes, "2000TiB", -1}, {bytes, "99999999999999999999", -1},
		{bytes, "1e400GiB", -1}, {bytes, "GiB", -1}, {bytes, "1.2.3MiB", -1},
		{span, "30s", 30e9}, {span, "1m30s", 90e9}, {span, "500ms", 500e6}, {span, "1.5h", 5400e9}, {span, "2d", 2 * 86400e9}, {span, "0s", 0},
		{span, "0.1s", 100e6}, {span, "1us", 1000}, {span, "1µs", 1000},
		{span, "30", -1}, {span, "", -1}, {span, "s", -1}, {span, "1w", -1}, {span, "-5s", -1}, {span, "0.1ns", -1}, {span, "1s-2s", -1}, {span, "1e30s", -1},
	} {
		got, err := tc.parse(tc.text)
		if (err != nil) != (tc.want < 0) || (err == nil && got != tc.want) {
			t.Errorf("%q is %d, %v; want %d", tc.text, got, err, tc.want)
		}
	}
}

// What is printed of an amount reads back as that amount.
func TestQuantityText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		milli := rapid.Int64Range(0, maxCPUMilli).Draw(t, "milli")
		if got, err := parseCPU(quantityText(milli, unitCPU)); err != nil || got != milli {
			t.Fatalf("%d is printed %s and read as %d, %v", milli, quantityText(milli, unitCPU), got, err)
		}
		n := rapid.Int64Range(0, maxAmountBytes).Draw(t, "bytes")
		if got, err := parseBytes(quantityText(n, unitBytes)); err != nil || got != n {
			t.Fatalf("%d is printed %s and read as %d, %v", n, quantityText(n, unitBytes), got, err)
		}
		ns := rapid.Int64Range(0, maxTimeNs).Draw(t, "ns")
		if got, err := parseDuration(quantityText(ns, unitTime)); err != nil || got != ns {
			t.Fatalf("%d is printed %s and read as %d, %v", ns, quantityText(ns, unitTime), got, err)
		}
	})
}

// Amounts are exact: a decimal number of cores is that many thousandths.
func TestCPUIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		milli := rapid.Int64Range(0, 1_000_000).Draw(t, "milli")
		text := new(big.Rat).SetFrac64(milli, 1000).FloatString(3)
		if got, err := parseCPU(text); err != nil || got != milli {
			t.Fatalf("%s cores are %d, %v; want %d", text, got, err, milli)
		}
	})
}

// Parsers never panic, and never give a negative amount.
func FuzzQuantity(f *testing.F) {
	for _, s := range []string{"0.5", "500m", "1.5GiB", "1m30s", "1e999", "-1", "..", "1e", "e5", "1s1s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, parse := range map[string]func(string) (int64, error){"cpu": parseCPU, "bytes": parseBytes, "time": parseDuration} {
			if n, err := parse(s); err == nil && n < 0 {
				t.Errorf("%s %q is %d", name, s, n)
			}
		}
	})
}
