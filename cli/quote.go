package cli

import (
	"strings"
	"unicode"
)

// Quote returns a word as a shell takes it. The result is always valid text.
func Quote(word string) string {
	word = strings.ToValidUTF8(word, "\ufffd")
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_=+./:,@%^", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
