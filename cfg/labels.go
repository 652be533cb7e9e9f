package cfg

import (
	"fmt"
	"strings"

	"borg/borgmaster/selector"
)

func (c check) labels(where string, m map[string]string, most int) {
	if len(m) > maxLabels {
		c.bad(where, "", "%d %s; it may have %d", len(m), where, maxLabels)
	}
	for _, k := range sortedKeys(m) {
		if k == "" || len(k) > maxLabelKeyBytes {
			c.bad(join(where, k), "", "the key %s has %d bytes; it must have 1 to %d", quote(k), len(k), maxLabelKeyBytes)
		} else {
			c.plainKey(where, k)
		}
		if len(m[k]) > most {
			c.bad(join(where, k), "", "the value of %s has %d bytes; it may have %d", quote(k), len(m[k]), most)
		}
	}
}

func (c check) annotations(m map[string]string) {
	total := 0
	for _, k := range sortedKeys(m) {
		total += len(k) + len(m[k])
		c.plainKey("annotations", k)
	}
	if len(m) > maxAnnotations {
		c.bad("annotations", "", "%d annotations; there may be %d", len(m), maxAnnotations)
	}
	if total > maxAnnotationBytes {
		c.bad("annotations", "", "annotations of %d bytes; they may have %d", total, maxAnnotationBytes)
	}
}

// plainKey wants a key that a selector can name and that people see as it is.
func (c check) plainKey(where, k string) {
	short := strings.TrimRight(k, "-")
	switch {
	case selector.IsKey(k):
	case k == "":
		c.bad(where, `write annotations = {"name": "value"}`, "a key is empty")
	case short == "" || short != k && selector.IsKey(short):
		c.bad(join(where, k), fmt.Sprintf("did you mean %q?", short), "the key %q ends in a dash, which takes a key away", k)
	default:
		c.bad(join(where, k), "letters, digits and . _ / -", "the key %q has a blank, a control character or one of , = ! ( ) < >", k)
	}
}
