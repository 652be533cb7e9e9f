package scheduler

import (
	"fmt"
	"strconv"
	"strings"
)

// cpuText writes thousandths of a core as cores: "2.5", "0.25", "4.0".
func cpuText(milli int64) string { return thousandths(milli) }

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
	tib = int64(1) << 40
)

// bytesText writes bytes in the largest unit of which there is one: "12.5 GiB".
// Digits that do not fit are cut off, never rounded up, so that what is said to
// fit does.
func bytesText(n int64) string {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	for _, u := range []struct {
		size int64
		name string
	}{{tib, "TiB"}, {gib, "GiB"}, {mib, "MiB"}, {kib, "KiB"}} {
		if n >= u.size {
			return sign + thousandths(n/u.size*1000+n%u.size*1000/u.size) + " " + u.name
		}
	}
	return sign + strconv.FormatInt(n, 10) + " B"
}

// thousandths writes n/1000 with one to three digits after the point.
func thousandths(n int64) string {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	frac := strings.TrimRight(fmt.Sprintf("%03d", n%1000), "0")
	if frac == "" {
		frac = "0"
	}
	return fmt.Sprintf("%s%d.%s", sign, n/1000, frac)
}

// roundDown makes a figure that a person would type, not above n: cores in
// tenths, bytes in eighths of their unit.
func roundDown(n int64, bytes bool) int64 {
	step := int64(1)
	switch {
	case !bytes && n >= 1000:
		step = 100
	case !bytes && n >= 100:
		step = 10
	case bytes && n >= tib:
		step = tib / 8
	case bytes && n >= gib:
		step = gib / 8
	case bytes && n >= mib:
		step = mib
	}
	return n - n%step
}

// listText names some of many: "m1, m2, m3 and 4 more".
func listText(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// plural writes "1 machine", "3 machines".
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
