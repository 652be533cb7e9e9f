package selector

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// IsKey reports whether k can be the key of a label or annotation: a selector can name it, and
// people see it as it is. It is not empty, has no blanks, no characters that nobody sees and none
// that part the terms of a selector, and no dash at its end, which takes a key away.
func IsKey(k string) bool {
	odd := func(r rune) bool { return unicode.Is(unseen, r) || strings.ContainsRune(",=!()<>", r) }
	return k != "" && utf8.ValidString(k) && !strings.ContainsFunc(k, odd) && !strings.HasSuffix(k, "-")
}

// unseen are the blanks and the control, format and private characters of Unicode 15. They are
// listed here because each release of Go has its own tables, and all replicas must refuse the
// same keys, whichever release built them.
var unseen = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x0, 0x20, 1}, {0x7f, 0xa0, 1}, {0xad, 0xad, 1}, {0x600, 0x605, 1}, {0x61c, 0x61c, 1}, {0x6dd, 0x6dd, 1},
		{0x70f, 0x70f, 1}, {0x890, 0x891, 1}, {0x8e2, 0x8e2, 1}, {0x1680, 0x1680, 1}, {0x180e, 0x180e, 1},
		{0x2000, 0x200f, 1}, {0x2028, 0x202f, 1}, {0x205f, 0x2064, 1}, {0x2066, 0x206f, 1}, {0x3000, 0x3000, 1},
		{0xd800, 0xf8ff, 1}, {0xfeff, 0xfeff, 1}, {0xfff9, 0xfffb, 1},
	},
	R32: []unicode.Range32{
		{0x110bd, 0x110bd, 1}, {0x110cd, 0x110cd, 1}, {0x13430, 0x1343f, 1}, {0x1bca0, 0x1bca3, 1}, {0x1d173, 0x1d17a, 1},
		{0xe0001, 0xe0001, 1}, {0xe0020, 0xe007f, 1}, {0xf0000, 0xffffd, 1}, {0x100000, 0x10fffd, 1},
	},
	LatinOffset: 3,
}
