package diff

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Field is a field that differs. Empty text: it is not set.
type Field struct {
	Path   string `json:"field"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// note adds a field if it differs.
func (o *Object) note(path, before, after string) {
	if before != after {
		o.Fields = append(o.Fields, Field{path, before, after})
	}
}

// maxFieldText is how much is shown of one value.
const maxFieldText = 200

// fieldsOf lists the fields of two messages of a type that differ, by their
// paths: "task.resources.mem_bytes". A list differs as a whole.
func fieldsOf(a, b proto.Message) (all []Field) {
	compareMessages("", a.ProtoReflect(), b.ProtoReflect(), &all)
	return all
}

func compareMessages(path string, a, b protoreflect.Message, all *[]Field) {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.Name())
		if path != "" {
			name = path + "." + name
		}
		if !a.Has(f) && !b.Has(f) {
			continue
		}
		switch {
		case f.IsMap():
			compareMaps(name, f, a.Get(f).Map(), b.Get(f).Map(), all)
		case f.Kind() == protoreflect.MessageKind && !f.IsList():
			compareMessages(name, a.Get(f).Message(), b.Get(f).Message(), all)
		default:
			compareText(name, textOf(f, a), textOf(f, b), all)
		}
	}
}

func compareMaps(path string, f protoreflect.FieldDescriptor, a, b protoreflect.Map, all *[]Field) {
	texts := func(m protoreflect.Map) map[string]string {
		to := make(map[string]string)
		m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			to[k.String()] = valueText(f.MapValue(), v)
			return true
		})
		return to
	}
	was, is := texts(a), texts(b)
	keys := maps.Clone(was)
	maps.Copy(keys, is)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		compareText(path+"."+k, was[k], is[k], all)
	}
}

func compareText(path, a, b string, all *[]Field) {
	if a == b {
		return
	}
	*all = append(*all, Field{path, cutText(a), cutText(b)})
}

func cutText(s string) string {
	if len(s) <= maxFieldText {
		return s
	}
	return strings.ToValidUTF8(s[:maxFieldText], "") + "..."
}

// textOf is a field as text; a field that is not set is empty.
func textOf(f protoreflect.FieldDescriptor, m protoreflect.Message) string {
	if !m.Has(f) {
		return ""
	}
	v := m.Get(f)
	if !f.IsList() {
		return valueText(f, v)
	}
	var parts []string
	for i := range v.List().Len() {
		parts = append(parts, valueText(f, v.List().Get(i)))
	}
	return strings.Join(parts, ", ")
}

func valueText(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.EnumKind:
		if d := f.Enum().Values().ByNumber(v.Enum()); d != nil {
			return strings.ToLower(strings.TrimPrefix(string(d.Name()), enumPrefix(f.Enum())))
		}
	case protoreflect.MessageKind:
		var parts []string
		fields := f.Message().Fields()
		for i := range fields.Len() {
			k := fields.Get(i)
			if v.Message().Has(k) && !k.IsMap() {
				parts = append(parts, fmt.Sprintf("%s=%s", k.Name(), textOf(k, v.Message())))
			}
		}
		return "{" + strings.Join(parts, " ") + "}"
	case protoreflect.BytesKind:
		return fmt.Sprintf("%d bytes", len(v.Bytes()))
	}
	return v.String()
}

// enumPrefix is what all values of an enum begin with: "JOB_KIND_".
func enumPrefix(e protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(e.Values().Get(0).Name()), "UNSPECIFIED")
}

// mapText is a map in one line, in order of the keys.
func mapText(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, " ")
}

func wallText(ns int64) string {
	if ns == 0 {
		return ""
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339)
}
