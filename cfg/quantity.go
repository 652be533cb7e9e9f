package cfg

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// number parses a decimal number exactly: "12", "1.5", "1e3". Other notations
// that big.Rat takes (fractions, hexadecimal, underscores) are none of ours.
func number(s string) (*big.Rat, bool) {
	if s == "" || len(s) > 64 {
		return nil, false
	}
	exponent := strings.IndexAny(s, "eE")
	for i, c := range s {
		switch {
		case c >= '0' && c <= '9', c == '.':
		case c == '-' || c == '+':
			if i != 0 && i != exponent+1 {
				return nil, false
			}
		case i == exponent && i > 0 && len(s)-i <= 4:
		default:
			return nil, false
		}
	}
	return new(big.Rat).SetString(s)
}

// split cuts a quantity into its number and its unit.
func split(s string) (num, unit string) {
	s = strings.TrimSpace(s)
	i := len(s)
	for i > 0 && !(s[i-1] >= '0' && s[i-1] <= '9') && s[i-1] != '.' {
		i--
	}
	return s[:i], strings.TrimSpace(s[i:])
}

// whole returns r as an integer between 0 and limit.
func whole(r *big.Rat, limit int64) (int64, error) {
	if r.Sign() < 0 {
		return 0, errors.New("it is negative")
	}
	if !r.IsInt() {
		return 0, errNotWhole
	}
	if !r.Num().IsInt64() || r.Num().Int64() > limit {
		return 0, errTooMuch
	}
	return r.Num().Int64(), nil
}

var (
	errNotWhole = errors.New("it is not a whole number")
	errTooMuch  = errors.New("it is too large")
)

// parseCPU reads an amount of CPU, such as "0.5", "2" or "500m", in thousandths
// of a core.
func parseCPU(s string) (int64, error) {
	num, unit := split(s)
	r, ok := number(num)
	if !ok {
		return 0, errors.New(`it is not an amount of cpu; write cores such as 0.5 or 2, or thousandths such as "500m"`)
	}
	switch unit {
	case "":
		r.Mul(r, big.NewRat(1000, 1))
	case "m":
	default:
		return 0, fmt.Errorf(`unit %q is not one of cpu; write cores such as 0.5 or 2, or thousandths such as "500m"`, unit)
	}
	milli, err := whole(r, maxCPUMilli)
	if errors.Is(err, errNotWhole) {
		return 0, errors.New("it is finer than a thousandth of a core")
	}
	if errors.Is(err, errTooMuch) {
		return 0, fmt.Errorf("it is too large; at most %d cores", maxCPUMilli/1000)
	}
	return milli, err
}

// parseMicro reads a number, such as "0.01" or "-3", in millionths.
func parseMicro(s string) (int64, error) {
	r, ok := number(s)
	if !ok {
		return 0, errors.New("it is not a number; write it such as 0.01 or 250")
	}
	r.Mul(r, big.NewRat(1e6, 1))
	switch {
	case !r.IsInt():
		return 0, errors.New("it is finer than a millionth")
	case !r.Num().IsInt64():
		return 0, errTooMuch
	}
	return r.Num().Int64(), nil
}

var byteUnits = map[string]int64{
	"": 1, "B": 1,
	"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
	"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50,
}

// parseBytes reads an amount of bytes, such as "512MiB", "1.5GiB", "1G" or
// "4096". A part of a byte, as in "0.1GiB", counts as a whole one.
func parseBytes(s string) (int64, error) {
	num, unit := split(s)
	r, ok := number(num)
	if !ok {
		return 0, errors.New(`it is not an amount of bytes; write it such as "512MiB", "1.5GiB" or "1G"`)
	}
	factor, ok := byteUnits[unit]
	if !ok {
		hint := `write it such as "512MiB", "1.5GiB" or "1G"`
		if unit == "m" {
			hint = `"m" is a thousandth; did you mean "M" or "MiB"?`
		} else if near := nearestUnit(unit); near != "" {
			hint = fmt.Sprintf("did you mean %q?", num+near)
		}
		return 0, fmt.Errorf("unit %q is not one of bytes; %s", unit, hint)
	}
	if unit == "" && !r.IsInt() {
		return 0, fmt.Errorf("a part of a byte; a unit is missing, such as %q", num+"GiB")
	}
	r.Mul(r, new(big.Rat).SetInt64(factor))
	if !r.IsInt() {
		up := new(big.Int).Quo(r.Num(), r.Denom())
		r.SetInt(up.Add(up, big.NewInt(1)))
	}
	n, err := whole(r, maxAmountBytes)
	if errors.Is(err, errTooMuch) {
		return 0, errors.New("it is too large; at most 1024TiB")
	}
	return n, err
}

func nearestUnit(unit string) string {
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "KB", "MB", "GB", "TB", "PB"} {
		if strings.EqualFold(u, unit) {
			return u
		}
	}
	return ""
}

var durationUnits = map[string]int64{
	"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 86400e9,
}

// timeWords are units of time as people say them, in lower case.
var timeWords = map[string]string{
	"sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
	"hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d", "msec": "ms",
}

// tooSmall is the amount of memory that was probably meant by one that no program can
// run in: a unit is missing, or it is a thousand times too small.
func tooSmall(text string) string {
	num, unit := split(text)
	if _, ok := number(num); !ok {
		return "64MiB"
	}
	if rest, ok := strings.CutPrefix(strings.ToUpper(unit), "K"); ok {
		return num + "M" + strings.Replace(rest, "I", "i", 1)
	}
	return num + "MiB"
}

// parseDuration reads a time span, such as "30s", "1m30s", "500ms" or "2d", in
// nanoseconds.
func parseDuration(s string) (int64, error) {
	const form = `write it such as "30s", "1m30s" or "500ms"`
	total := new(big.Rat)
	rest := strings.TrimSpace(s)
	if rest == "" {
		return 0, errors.New("it is not a time span; " + form)
	}
	for rest != "" {
		i := 0
		for i < len(rest) && (rest[i] >= '0' && rest[i] <= '9' || rest[i] == '.' || i == 0 && rest[i] == '-') {
			i++
		}
		j := i
		for j < len(rest) && !(rest[j] >= '0' && rest[j] <= '9') && rest[j] != '.' {
			j++
		}
		r, ok := number(rest[:i])
		if !ok {
			return 0, errors.New("it is not a time span; " + form)
		}
		unit := strings.TrimSpace(rest[i:j])
		factor, ok := durationUnits[unit]
		if unit == "" {
			return 0, fmt.Errorf("a unit is missing; did you mean %q?", s+"s")
		}
		if !ok {
			hint := form
			if near := timeWords[strings.ToLower(unit)]; near != "" && i > 0 && j == len(rest) && rest == strings.TrimSpace(s) {
				hint = fmt.Sprintf("did you mean %q?", rest[:i]+near)
			}
			return 0, fmt.Errorf("unit %q is not one of time; %s", unit, hint)
		}
		total.Add(total, r.Mul(r, new(big.Rat).SetInt64(factor)))
		rest = rest[j:]
	}
	ns, err := whole(total, maxTimeNs)
	if errors.Is(err, errNotWhole) {
		return 0, errors.New("it is finer than a nanosecond")
	}
	if errors.Is(err, errTooMuch) {
		return 0, errors.New("it is too long")
	}
	return ns, err
}
