package cli

import (
	"strings"

	ucli "github.com/urfave/cli/v2"
)

// sayDefaultOnce moves what the usage of a flag says of its default to where the help
// prints defaults. The help would add the zero value behind it: "(default: 3) (default: 0)".
func sayDefaultOnce(flags []ucli.Flag) {
	for _, f := range flags {
		switch f := f.(type) {
		case *ucli.IntFlag:
			f.Usage, f.DefaultText = splitDefault(f.Usage, f.DefaultText)
		case *ucli.Int64Flag:
			f.Usage, f.DefaultText = splitDefault(f.Usage, f.DefaultText)
		case *ucli.UintFlag:
			f.Usage, f.DefaultText = splitDefault(f.Usage, f.DefaultText)
		case *ucli.Uint64Flag:
			f.Usage, f.DefaultText = splitDefault(f.Usage, f.DefaultText)
		case *ucli.Float64Flag:
			f.Usage, f.DefaultText = splitDefault(f.Usage, f.DefaultText)
		case *ucli.DurationFlag:
			f.Usage, f.DefaultText = splitDefault(f.Usage, f.DefaultText)
		}
	}
}

// splitDefault cuts "(default: ...)" off the end of a usage.
func splitDefault(usage, is string) (rest, text string) {
	const begin = " (default: "
	at := strings.LastIndex(usage, begin)
	if is != "" || at < 0 || !strings.HasSuffix(usage, ")") {
		return usage, is
	}
	return usage[:at], strings.TrimSuffix(usage[at+len(begin):], ")")
}
