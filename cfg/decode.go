package cfg

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// decoder turns nodes into messages and collects what is wrong with them.
type decoder struct {
	sources *sources
	faults  Faults
	// What is not wrong, and not as its author may think.
	warnings Faults
	// Values decoded, over all objects of the file. A prototype that is used in
	// many places is decoded in each.
	values *int
	// Where each value of the object came from, by path of proto names.
	origins map[string]Origin
	// Paths of values that have a fault, or are missing because of one.
	faulty []string
}

// Origin is where a value came from.
type Origin struct {
	Pos   Position
	width int
	// As written, of a value that is text or a number.
	text string
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

func (d *decoder) from(path string, n *node) {
	d.origins[path] = Origin{Pos: n.pos, width: n.width, text: n.text}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// spent counts a value, and tells whether there have been too many; the first
// time it says so.
func (d *decoder) spent(n *node) bool {
	*d.values++
	if *d.values == maxOutputValues+1 {
		d.fault(n.pos, n.width, "", "the file yields more than %d values", maxOutputValues)
	}
	return *d.values > maxOutputValues
}

// message decodes a map into m.
func (d *decoder) message(n *node, m protoreflect.Message, path string) {
	if d.spent(n) {
		return
	}
	if n.kind == kindFaulty || n.rest {
		d.faulty = append(d.faulty, path)
	}
	if n.kind == kindFaulty {
		return
	}
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
			meant := d.unknown(f, md, known(md, overrideNames(md)...))
			if col, ok := lookup(md, meant); ok {
				meant = string(col.fd.Name())
			}
			d.faulty = append(d.faulty, join(path, meant))
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

// unknown reports a field that does not exist, and returns the one that was probably
// meant, or the name itself.
func (d *decoder) unknown(f field, md protoreflect.MessageDescriptor, names []string) string {
	what := string(md.Name())
	if c := constructorOf(md); c != nil {
		what = c.name + "()"
	}
	d.faults = append(d.faults, d.sources.unknownField(f.pos, f.name, what, names))
	if near := meantBy(f.name, names); near != "" {
		return near
	}
	return f.name
}

// meantBy is the field that a name was probably meant to be, or "".
func meantBy(name string, names []string) string {
	if m, ok := meant[strings.ToLower(name)]; ok && contains(names, m) {
		return m
	}
	return nearest(name, names)
}

// belongsIn is the constructor that takes a field which was put beside it, or around it; empty: none.
func belongsIn(name, what string) string {
	takes := func(m proto.Message) bool {
		_, ok := lookup(m.ProtoReflect().Descriptor(), name)
		return ok
	}
	switch {
	case what == "job()" && takes(&borgpb.TaskSpec{}):
		return "task"
	case what == "task()" && (takes(&borgpb.JobSpec{}) || contains(objectNames, name)):
		return "job"
	case (what == "job()" || what == "task()" || what == "alloc_set()") && takes(&borgpb.Resources{}):
		return "resources"
	}
	return ""
}

func (s *sources) unknownField(pos Position, name, what string, names []string) *Fault {
	hint := "it takes " + strings.Join(names, ", ")
	if place := belongsIn(name, what); place != "" && !contains(names, meant[strings.ToLower(name)]) {
		hint = fmt.Sprintf("it belongs in %s(...); in YAML and JSON below %s", place, place)
	} else if near := meantBy(name, names); near != "" {
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
	faults, faulty := len(d.faults), len(d.faulty)
	defer func() {
		if (len(d.faults) > faults || n.kind == kindFaulty) && len(d.faulty) == faulty {
			d.faulty = append(d.faulty, path)
		}
	}()
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
	if n.kind == kindFaulty {
		return
	}
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
	if n.kind == kindFaulty {
		return
	}
	if n.kind != kindList {
		hint := ""
		if n.kind == kindString {
			hint = fmt.Sprintf("write %s = %s", col.name, listHint(col.name, n.text))
		}
		d.fault(n.pos, n.width, hint, "%s must be a list, not %s", col.name, n.describe())
		return
	}
	d.from(path, n)
	list := m.Mutable(fd).List()
	for i, item := range n.items {
		if *d.values > maxOutputValues {
			return
		}
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

// listHint is the list to write for text where a list is wanted. A command line becomes
// its words, or is given to a shell if it needs one.
func listHint(name, text string) string {
	words := []string{text}
	switch {
	case name != "args" && name != "command":
	case strings.ContainsAny(text, "|&;<>()$`\\\"'*?~#"):
		words = []string{"/bin/sh", "-c", text}
	default:
		words = strings.Fields(text)
	}
	for i, w := range words {
		words[i] = strconv.Quote(w)
	}
	return "[" + strings.Join(words, ", ") + "]"
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
