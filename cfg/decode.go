package cfg

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// decoder turns nodes into messages and collects what is wrong with them.
type decoder struct {
	sources *sources
	faults  Faults
	// Where each value of the object came from, by path of proto names.
	origins map[string]Origin
}

// Origin is where a value came from.
type Origin struct {
	Pos   Position
	width int
	// Not from a file: why the value is what it is, "default of batch jobs".
	Default string
}

func (o Origin) String() string {
	if o.Default != "" {
		return o.Default
	}
	return o.Pos.String()
}

// fault records what is wrong at a node.
func (d *decoder) fault(pos Position, width int, hint, format string, args ...any) {
	d.faults = append(d.faults, &Fault{
		Pos: pos, Width: width, Source: d.sources.line(pos),
		What: fmt.Sprintf(format, args...), Hint: hint,
	})
}

func (d *decoder) from(path string, n *node) { d.origins[path] = Origin{Pos: n.pos, width: n.width} }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// message decodes a map into m.
func (d *decoder) message(n *node, m protoreflect.Message, path string) {
	md := m.Descriptor()
	if n.kind == kindString && md.FullName() == "borg.Constraint" {
		d.constraintText(n, m, path)
		return
	}
	want := "a set of named values"
	if c := constructorOf(md); c != nil {
		want = c.name + "(...)"
	}
	if n.kind != kindMap || (n.made != nil && n.made.message.FullName() != md.FullName()) {
		d.fault(n.pos, n.width, "", "%s must be %s, not %s", lastName(path), want, n.describe())
		return
	}
	d.from(path, n)
	seen := make(map[protoreflect.FieldNumber]string)
	for _, f := range n.fields {
		if md.FullName() == "borg.TaskOverride" && f.name == "index" {
			d.overrideIndex(f, m, path, seen)
			continue
		}
		col, ok := lookup(md, f.name)
		if !ok {
			d.unknown(f, md, known(md, overrideNames(md)...))
			continue
		}
		if first, twice := seen[col.fd.Number()]; twice {
			d.fault(f.pos, len(f.name), "leave one of them out", "%q is given twice (as %q before)", f.name, first)
			continue
		}
		seen[col.fd.Number()] = f.name
		if f.value.kind == kindNull {
			continue
		}
		d.value(f.value, m, col, join(path, string(col.fd.Name())))
	}
	if md.FullName() == "borg.Constraint" {
		defaultRelation(m)
	}
}

func overrideNames(md protoreflect.MessageDescriptor) []string {
	if md.FullName() == "borg.TaskOverride" {
		return []string{"index"}
	}
	return nil
}

// overrideIndex reads index=N, which is short for first=N, last=N.
func (d *decoder) overrideIndex(f field, m protoreflect.Message, path string, seen map[protoreflect.FieldNumber]string) {
	for _, name := range []protoreflect.Name{"first", "last"} {
		fd := m.Descriptor().Fields().ByName(name)
		if first, twice := seen[fd.Number()]; twice {
			d.fault(f.pos, len(f.name), "leave one of them out", "%q says the same as %q", f.name, first)
			return
		}
		seen[fd.Number()] = f.name
		d.value(f.value, m, column{name: "index", fd: fd}, join(path, string(name)))
	}
}

// unknown reports a field that does not exist.
func (d *decoder) unknown(f field, md protoreflect.MessageDescriptor, names []string) {
	what := string(md.Name())
	if c := constructorOf(md); c != nil {
		what = c.name + "()"
	}
	d.faults = append(d.faults, d.sources.unknownField(f.pos, f.name, what, names))
}

func (s *sources) unknownField(pos Position, name, what string, names []string) *Fault {
	hint := "it takes " + strings.Join(names, ", ")
	if m, ok := meant[strings.ToLower(name)]; ok && contains(names, m) {
		hint = fmt.Sprintf("did you mean %q?", m)
	} else if near := nearest(name, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return &Fault{Pos: pos, Width: len(name), Source: s.line(pos), What: fmt.Sprintf("%s has no field %q", what, name), Hint: hint}
}

func contains(list []string, s string) bool {
	return slices.Contains(list, s)
}

func lastName(path string) string {
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		path = path[i+1:]
	}
	return path
}

// value decodes n into a field of m.
func (d *decoder) value(n *node, m protoreflect.Message, col column, path string) {
	fd := col.fd
	switch {
	case fd.IsMap():
		d.mapValue(n, m, col, path)
	case fd.IsList():
		d.listValue(n, m, col, path)
	case fd.Kind() == protoreflect.MessageKind:
		// Set even when empty: resources() is not the same as no resources.
		d.message(n, m.Mutable(fd).Message(), path)
	default:
		if v, ok := d.scalar(n, fd, col, path); ok {
			m.Set(fd, v)
			d.from(path, n)
		}
	}
}

func (d *decoder) mapValue(n *node, m protoreflect.Message, col column, path string) {
	fd := col.fd
	if n.kind != kindMap || n.made != nil {
		d.fault(n.pos, n.width, fmt.Sprintf(`write %s = {"name": value}`, col.name), "%s must be a set of named values, not %s", col.name, n.describe())
		return
	}
	d.from(path, n)
	mp := m.Mutable(fd).Map()
	for _, f := range n.fields {
		key := protoreflect.ValueOfString(f.name).MapKey()
		if mp.Has(key) {
			d.fault(f.pos, len(f.name), "leave one of them out", "%q is given twice", f.name)
			continue
		}
		sub := join(path, f.name)
		if v, ok := d.scalar(f.value, fd.MapValue(), column{name: col.name + " " + quote(f.name)}, sub); ok {
			mp.Set(key, v)
			d.from(sub, f.value)
		}
	}
}

func (d *decoder) listValue(n *node, m protoreflect.Message, col column, path string) {
	fd := col.fd
	if n.kind != kindList {
		hint := ""
		if n.kind == kindString {
			hint = fmt.Sprintf("write %s = [%s]", col.name, quote(n.text))
		}
		d.fault(n.pos, n.width, hint, "%s must be a list, not %s", col.name, n.describe())
		return
	}
	d.from(path, n)
	list := m.Mutable(fd).List()
	for i, item := range n.items {
		sub := fmt.Sprintf("%s[%d]", path, i)
		if fd.Kind() == protoreflect.MessageKind {
			e := list.NewElement()
			d.message(item, e.Message(), sub)
			list.Append(e)
			continue
		}
		if v, ok := d.scalar(item, fd, column{name: fmt.Sprintf("%s[%d]", col.name, i)}, sub); ok {
			list.Append(v)
			d.from(sub, item)
		}
	}
}

// scalar decodes text, numbers, truth values, words of enums and quantities.
func (d *decoder) scalar(n *node, fd protoreflect.FieldDescriptor, col column, path string) (protoreflect.Value, bool) {
	var none protoreflect.Value
	switch fd.Kind() {
	case protoreflect.StringKind:
		if n.kind != kindString {
			hint := ""
			if n.kind == kindInt || n.kind == kindFloat || n.kind == kindBool {
				hint = fmt.Sprintf("write %q", n.text)
			}
			d.fault(n.pos, n.width, hint, "%s must be text, not %s", col.name, n.describe())
			return none, false
		}
		if strings.ContainsRune(n.text, 0) {
			d.fault(n.pos, n.width, "", "%s holds a NUL character", col.name)
			return none, false
		}
		return protoreflect.ValueOfString(n.text), true
	case protoreflect.BoolKind:
		if n.kind != kindBool {
			d.fault(n.pos, n.width, "", "%s must be true or false, not %s", col.name, n.describe())
			return none, false
		}
		return protoreflect.ValueOfBool(n.text == "true"), true
	case protoreflect.BytesKind:
		return d.bytesValue(n, col)
	case protoreflect.EnumKind:
		return d.enum(n, fd, col)
	default:
		return d.integer(n, fd, col)
	}
}

func (d *decoder) bytesValue(n *node, col column) (protoreflect.Value, bool) {
	if n.kind != kindString {
		d.fault(n.pos, n.width, "", "%s must be text, not %s", col.name, n.describe())
		return protoreflect.Value{}, false
	}
	raw := []byte(n.text)
	if n.base64 {
		var err error
		if raw, err = base64.StdEncoding.DecodeString(n.text); err != nil {
			d.fault(n.pos, n.width, "bytes are written in base 64 here", "%s: %v", col.name, err)
			return protoreflect.Value{}, false
		}
	}
	return protoreflect.ValueOfBytes(raw), true
}

func (d *decoder) enum(n *node, fd protoreflect.FieldDescriptor, col column) (protoreflect.Value, bool) {
	ed := fd.Enum()
	var words []string
	for i := range ed.Values().Len() {
		num := ed.Values().Get(i).Number()
		if num == 0 {
			continue
		}
		word := enumWord(ed, num)
		words = append(words, word)
		if n.kind == kindString && (strings.EqualFold(n.text, word) || n.text == string(ed.Values().Get(i).Name())) {
			return protoreflect.ValueOfEnum(num), true
		}
	}
	if ed.FullName() == "borg.Relation" && n.kind == kindString {
		if r, ok := relations[n.text]; ok {
			return protoreflect.ValueOfEnum(r.Number()), true
		}
		words = append([]string{"=", "!=", "<", "<=", ">", ">="}, words...)
	}
	hint := "it is one of " + strings.Join(words, ", ")
	if n.kind == kindString {
		if near := nearest(n.text, words); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		d.fault(n.pos, n.width, hint, "%s cannot be %s", col.name, quote(n.text))
	} else {
		d.fault(n.pos, n.width, hint, "%s must be a word, not %s", col.name, n.describe())
	}
	return protoreflect.Value{}, false
}

// integer decodes numbers and quantities. Numbers as text are taken where JSON
// of the same messages has them: 64-bit fields.
func (d *decoder) integer(n *node, fd protoreflect.FieldDescriptor, col column) (protoreflect.Value, bool) {
	var none protoreflect.Value
	wide := fd.Kind() == protoreflect.Int64Kind || fd.Kind() == protoreflect.Uint64Kind
	var value int64
	var err error
	switch {
	case n.kind == kindString && wide && col.unit != unitNone:
		value, err = d.quantity(n.text, col)
	case n.kind == kindString && wide:
		value, err = strconv.ParseInt(n.text, 10, 64)
		if err != nil {
			err = errors.New("it is not a whole number")
		}
	case n.kind == kindInt || n.kind == kindFloat:
		value, err = d.amount(n, col)
	default:
		want := "a whole number"
		hint := ""
		switch col.unit {
		case unitCPU:
			want, hint = "an amount of cpu", `write cores such as 0.5 or 2, or thousandths such as "500m"`
		case unitBytes:
			want, hint = "an amount of bytes", `write it such as "512MiB", "1.5GiB" or "1G"`
		case unitTime:
			want, hint = "a time span", `write it such as "30s" or "1m30s"`
		default:
			if _, e := strconv.ParseInt(n.text, 10, 64); e == nil && n.kind == kindString {
				hint = "write " + n.text + " without quotation marks"
			}
		}
		d.fault(n.pos, n.width, hint, "%s must be %s, not %s", col.name, want, n.describe())
		return none, false
	}
	if err == nil {
		return d.fits(n, fd, col, value)
	}
	hint := ""
	what := err.Error()
	if w, h, ok := strings.Cut(what, "; "); ok {
		what, hint = w, h
	}
	d.fault(n.pos, n.width, hint, "%s cannot be %s: %s", col.name, quoteNumber(n), what)
	return none, false
}

func quoteNumber(n *node) string {
	if n.kind == kindString {
		return quote(n.text)
	}
	if len(n.text) > 40 {
		return n.text[:37] + "..."
	}
	return n.text
}

// quantity is text in a field that has a unit.
func (d *decoder) quantity(s string, col column) (int64, error) {
	if col.bare {
		if v, err := strconv.ParseInt(s, 10, 64); err == nil {
			if v < 0 {
				return 0, errors.New("it is negative")
			}
			return v, nil
		}
	}
	switch col.unit {
	case unitCPU:
		return parseCPU(s)
	case unitBytes:
		return parseBytes(s)
	default:
		return parseDuration(s)
	}
}

// amount is a number, in the unit of its field if the field has one.
func (d *decoder) amount(n *node, col column) (int64, error) {
	text := n.text
	if n.kind == kindFloat {
		text = plainFloat(text)
	}
	if col.unit == unitTime && !col.bare {
		if n.kind == kindInt && n.text == "0" {
			return 0, nil
		}
		return 0, fmt.Errorf("a unit is missing; write %q", n.text+"s")
	}
	if col.unit == unitCPU && !col.bare {
		return parseCPU(text)
	}
	if col.unit == unitBytes && !col.bare {
		return parseBytes(text)
	}
	r, ok := number(text)
	if !ok {
		return 0, errors.New("it is not a number")
	}
	if !r.IsInt() {
		return 0, errNotWhole
	}
	if !r.Num().IsInt64() {
		return 0, errors.New("it is too large")
	}
	return r.Num().Int64(), nil
}

// plainFloat rounds the trace of binary arithmetic off a decimal number, so
// that 0.1 + 0.2 is 0.3.
func plainFloat(s string) string {
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return s
	}
	s = r.FloatString(9)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// fits checks the range of the field's type and makes its value.
func (d *decoder) fits(n *node, fd protoreflect.FieldDescriptor, col column, v int64) (protoreflect.Value, bool) {
	lo, hi := int64(0), int64(math.MaxInt64)
	switch fd.Kind() {
	case protoreflect.Uint32Kind:
		hi = math.MaxUint32
	case protoreflect.Int32Kind:
		hi = math.MaxInt32
	}
	if v < lo || v > hi {
		why := "it is negative"
		if v > hi {
			why = fmt.Sprintf("it is too large (at most %d)", hi)
		}
		d.fault(n.pos, n.width, "", "%s cannot be %s: %s", col.name, quoteNumber(n), why)
		return protoreflect.Value{}, false
	}
	switch fd.Kind() {
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(v)), true
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(v)), true
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(v)), true
	default:
		return protoreflect.ValueOfInt64(v), true
	}
}

// constraintText reads a constraint written as text: "arch=amd64",
// "kernel>=6", "rack!=r7", "gpu", "!gpu".
func (d *decoder) constraintText(n *node, m protoreflect.Message, path string) {
	c := m.Interface().(*borgpb.Constraint)
	text := strings.TrimSpace(n.text)
	d.from(path, n)
	for _, name := range []string{"key", "relation", "value"} {
		d.from(join(path, name), n)
	}
	at := strings.IndexAny(text, "=!<>")
	switch {
	case at == 0 && strings.HasPrefix(text, "!") && !strings.ContainsAny(text[1:], "=!<>"):
		c.Key, c.Relation = strings.TrimSpace(text[1:]), borgpb.Relation_RELATION_NOT_PRESENT
	case at < 0:
		c.Key, c.Relation = text, borgpb.Relation_RELATION_PRESENT
		if !attributeKey.MatchString(text) {
			d.notConstraint(n)
		}
	default:
		end := at
		for end < len(text) && strings.ContainsRune("=!<>", rune(text[end])) {
			end++
		}
		r, ok := relations[text[at:end]]
		if !ok {
			d.notConstraint(n)
			return
		}
		c.Key, c.Relation, c.Value = strings.TrimSpace(text[:at]), r, strings.TrimSpace(text[end:])
	}
}

// attributeKey is what a key may look like where nothing else marks its end.
var attributeKey = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)

func (d *decoder) notConstraint(n *node) {
	d.fault(n.pos, n.width, `write it such as "arch=amd64", "kernel>=6", "rack!=r7", "gpu" or "!gpu"`, "%s is not a constraint", quote(n.text))
}

// defaultRelation makes constraint(key, value) mean "equal", and
// constraint(key) mean "present".
func defaultRelation(m protoreflect.Message) {
	c := m.Interface().(*borgpb.Constraint)
	if c.Relation != borgpb.Relation_RELATION_UNSPECIFIED {
		return
	}
	c.Relation = borgpb.Relation_RELATION_PRESENT
	if c.Value != "" {
		c.Relation = borgpb.Relation_RELATION_EQUAL
	}
}
