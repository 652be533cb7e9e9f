package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var byteUnits = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1}, {"", 1},
}

// ParseBytes reads "4GiB", "512MB", "1024".
func ParseBytes(text string) (int64, error) {
	text = strings.TrimSpace(text)
	for _, unit := range byteUnits {
		number, ok := strings.CutSuffix(text, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(n >= 0 && n*float64(unit.bytes) < math.MaxInt64) {
			break
		}
		return int64(n * float64(unit.bytes)), nil
	}
	return 0, fmt.Errorf("%q: want bytes such as 512MiB or 4GiB", text)
}
