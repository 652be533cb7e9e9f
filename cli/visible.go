package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible is a text from elsewhere as it may be printed on a terminal, on one
// line: what would move the cursor, change colours or the direction of writing,
// or is no text at all, is written as an escape.
func Visible(text string) string { return visible(text, "") }

// VisibleLines is Visible for texts that may have lines and tabs.
func VisibleLines(text string) string { return visible(text, "\n\t") }

func visible(text, keep string) string {
	if strings.IndexFunc(text, func(r rune) bool { return hidden(r, keep) }) < 0 {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case !hidden(r, keep):
			b.WriteString(text[:n])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		text = text[n:]
	}
	return b.String()
}

// hidden tells what is not printed as it is. IsPrint knows neither marks of
// direction nor line separators.
func hidden(r rune, keep string) bool {
	return r == utf8.RuneError || !unicode.IsPrint(r) && !strings.ContainsRune(keep, r)
}
