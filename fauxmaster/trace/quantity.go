package trace

import (
	"fmt"
	"math/big"
	"strings"

	"borg/proto/borgpb"
)

// quantitySuffixes are those of Kubernetes, and those of bytes in job files, as powers: of two
// first, then of ten.
var quantitySuffixes = []struct {
	suffix string
	base   int64
	power  int64
}{
	{"KiB", 2, 10}, {"MiB", 2, 20}, {"GiB", 2, 30}, {"TiB", 2, 40}, {"PiB", 2, 50}, {"EiB", 2, 60},
	{"Ki", 2, 10}, {"Mi", 2, 20}, {"Gi", 2, 30}, {"Ti", 2, 40}, {"Pi", 2, 50}, {"Ei", 2, 60},
	{"n", 10, -9}, {"u", 10, -6}, {"m", 10, -3}, {"k", 10, 3}, {"M", 10, 6}, {"G", 10, 9}, {"T", 10, 12}, {"P", 10, 15}, {"E", 10, 18},
}

// maxQuantity is far above what any machine has, in any unit.
const maxQuantity = 1 << 50

// quantity reads an amount as Kubernetes writes it ("250m", "1.5Gi", "1e3"), times
// scale. What is left of a unit is rounded up where it is asked for and down
// where it is offered.
func quantity(text string, scale int64, up bool) (int64, error) {
	digits, factor := text, big.NewRat(scale, 1)
	for _, s := range quantitySuffixes {
		if rest, ok := strings.CutSuffix(text, s.suffix); ok {
			digits = rest
			power := new(big.Int).Exp(big.NewInt(s.base), big.NewInt(max(s.power, -s.power)), nil)
			if s.power < 0 {
				factor.Mul(factor, new(big.Rat).SetFrac(big.NewInt(1), power))
			} else {
				factor.Mul(factor, new(big.Rat).SetInt(power))
			}
			break
		}
	}
	// An exponent beyond two digits would make the number itself large.
	if at := strings.IndexAny(digits, "eE"); len(digits) > 40 || strings.Contains(digits, "/") || at >= 0 && len(digits)-at > 4 {
		return 0, noQuantity(text)
	}
	v, ok := new(big.Rat).SetString(digits)
	if !ok || v.Sign() < 0 {
		return 0, noQuantity(text)
	}
	v.Mul(v, factor)
	whole, rest := new(big.Int).QuoRem(v.Num(), v.Denom(), new(big.Int))
	if up && rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	if !whole.IsInt64() || whole.Int64() > maxQuantity {
		return 0, fmt.Errorf("%s is more than a machine can have", brief(text))
	}
	return whole.Int64(), nil
}

func noQuantity(text string) error {
	return fmt.Errorf(`%s is no quantity: want a number, perhaps with a unit, as 0.5, 250m, 4096, 16GiB, 64Gi or 500M`, brief(text))
}

// bound keeps amounts below what a cell takes, which is far above what a machine has.
func (c *Cell) bound(r *borgpb.Resources) {
	beyond := false
	within := func(n *int64, most int64) {
		beyond = beyond || *n < 0 || *n > most
		*n = min(max(*n, 0), most)
	}
	within(&r.CpuMilli, maxOpenbCPUMilli)
	within(&r.MemBytes, maxQuantity)
	within(&r.DiskBytes, maxQuantity)
	for name, n := range r.Devices {
		within(&n, maxDeviceCount)
		r.Devices[name] = n
	}
	if beyond {
		c.note("amounts below zero, or above what any machine has: taken as zero, or as the most")
	}
}

const maxDeviceCount = 4096
