package trace

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// What becomes of a field of a foreign object. The table in docs/import.md has the same
// rows; a test holds them together.
const (
	// Mapped: it becomes something of ours; what of it does not is counted by itself.
	fieldMapped = "mapped"
	// Lost: it changes what is asked for, where it may run or what it is, and nothing of
	// ours says so. It is counted, as a field that is not known is.
	fieldLost = "counted as lost"
	// Aside: it changes none of these.
	fieldAside = "changes none of it"
)

// field is one row of the table.
type field struct {
	name, fate string
	// words say what it becomes, or what is lost.
	words string
	// of is where the fields of its value stand, or of each element; nil: it has none of
	// its own, or they mean nothing by themselves.
	of *object
	// saysNothing are values, as JSON, with which nothing is lost.
	saysNothing []string
}

// object is where fields stand in one kind of foreign object.
type object struct {
	name   string
	fields []field
}

// asides are fields that change nothing here.
func asides(names ...string) (all []field) {
	for _, name := range names {
		all = append(all, field{name: name, fate: fieldAside})
	}
	return all
}

// objects are all of them, in the order of the table.
var objects = slices.Concat(kubernetesObjects, nomadObjects)

// count notes what of an object is lost, and what is not known. Of a list it is each
// element.
func (o *object) count(c *Cell, raw json.RawMessage) {
	if len(raw) == 0 {
		return
	}
	var list []json.RawMessage
	if raw[0] == '[' && json.Unmarshal(raw, &list) == nil {
		for _, element := range list {
			o.count(c, element)
		}
		return
	}
	var has map[string]json.RawMessage
	if json.Unmarshal(raw, &has) != nil {
		return
	}
	for name, value := range has {
		if isEmptyJSON(value) {
			continue
		}
		i := slices.IndexFunc(o.fields, func(f field) bool { return strings.EqualFold(f.name, name) })
		if i < 0 {
			c.note(fmt.Sprintf("%s: the field %s is not known", o.name, brief(name)))
			continue
		}
		f := &o.fields[i]
		if f.fate == fieldLost && !slices.Contains(f.saysNothing, string(value)) {
			c.note(fmt.Sprintf("%s: %s is lost: %s", o.name, f.name, f.words))
		}
		if f.of != nil {
			f.of.count(c, value)
		}
	}
}

// isEmptyJSON reports whether a value says nothing.
func isEmptyJSON(value json.RawMessage) bool {
	return slices.Contains([]string{"null", "false", "0", `""`, "[]", "{}"}, string(value))
}
