package cfg

// kind is what a value looks like before it is known what it is for.
type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindInt
	kindFloat
	kindString
	kindList
	kindMap
	// A fault of it was told already.
	kindFaulty
)

func (k kind) String() string {
	return [...]string{"nothing", "true or false", "a whole number", "a number", "text", "a list", "a set of named values", "nothing"}[k]
}

// node is a value of a job file, and where it was written. Nodes are not
// changed once made, so that prototypes may share them.
type node struct {
	kind  kind
	pos   Position
	width int
	// Text, or a number in decimal as exactly as its language has it.
	text  string
	items []*node
	// Of a map, in the order written.
	fields []field
	// Starlark constructor that made a map; nil: a plain one.
	made *constructor
	// A fault was told of what the map lacks: values that are missing are no faults.
	rest bool
	// Bytes are base 64 in JSON and YAML, and as they are in Starlark.
	base64 bool
}

// field is one named value of a map.
type field struct {
	name  string
	pos   Position
	value *node
}

func (n *node) field(name string) *field {
	for i := range n.fields {
		if n.fields[i].name == name {
			return &n.fields[i]
		}
	}
	return nil
}

// describe says what was found, for errors.
func (n *node) describe() string {
	switch n.kind {
	case kindString:
		return "text " + quote(n.text)
	case kindInt, kindFloat:
		return "the number " + n.text
	case kindBool:
		return n.text
	case kindMap:
		if n.made != nil {
			return n.made.name + "()"
		}
	}
	return n.kind.String()
}

// quote is text in quotation marks, cut when it is long.
func quote(s string) string {
	r := []rune(s)
	if len(r) > 40 {
		s = string(r[:37]) + "..."
	}
	return `"` + s + `"`
}
