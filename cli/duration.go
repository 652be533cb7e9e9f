package cli

import (
	"regexp"
	"strconv"
	"time"

	ucli "github.com/urfave/cli/v2"
)

var days = regexp.MustCompile(`([0-9]+\.?[0-9]*|\.[0-9]+)d`)

// ParseDuration reads a time span as time.ParseDuration does, and days of 24 hours: "2d",
// "1d12h".
func ParseDuration(text string) (time.Duration, error) { return time.ParseDuration(withoutDays(text)) }

// withoutDays writes the days of a time span as hours.
func withoutDays(text string) string {
	return days.ReplaceAllStringFunc(text, func(part string) string {
		n, err := strconv.ParseFloat(part[:len(part)-1], 64)
		if err != nil {
			return part
		}
		return strconv.FormatFloat(n*24, 'f', -1, 64) + "h"
	})
}

// plainValue is a flag's value as the library reads it: it knows no days.
func plainValue(f ucli.Flag, value string) string {
	if _, ok := f.(*ucli.DurationFlag); !ok {
		return value
	}
	if _, err := ParseDuration(value); err != nil {
		// The complaint names what was typed.
		return value
	}
	return withoutDays(value)
}
