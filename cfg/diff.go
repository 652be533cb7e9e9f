package cfg

import (
	"fmt"
	"math/big"
	"sort"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// Effect is what a change does to tasks that run.
type Effect uint8

// Effects, from the mildest. The cell decides for each task; a change that is
// milder here may still move a task that no longer fits where it is.
const (
	// Nothing but the record changes.
	EffectNone Effect = iota
	// Changes while the task runs; one that no longer fits its machine is moved.
	EffectInPlace
	// Tasks come or go, the others are left alone.
	EffectResize
	// The task is stopped and started again.
	EffectRestart
	// The task is stopped and placed anew.
	EffectReschedule
)

func (e Effect) String() string {
	return [...]string{"no task is disturbed", "in place where it still fits", "other tasks are left alone", "restarts tasks", "moves tasks"}[e]
}

// Change is one field that differs.
type Change struct {
	// Path of proto names, such as "task.resources.mem_bytes".
	Path string
	// Values as text; empty: not set.
	Old, New string
	Effect   Effect
}

func (c Change) String() string {
	switch {
	case c.Old == "":
		return fmt.Sprintf("%s: added %s (%s)", c.Path, c.New, c.Effect)
	case c.New == "":
		return fmt.Sprintf("%s: removed %s (%s)", c.Path, c.Old, c.Effect)
	}
	return fmt.Sprintf("%s: %s -> %s (%s)", c.Path, c.Old, c.New, c.Effect)
}

// DiffJob compares a job of the cell with what a file says of it.
func DiffJob(old *borgpb.Job, o *Object) []Change {
	return append(DiffLabels(old.GetMeta(), o), Diff(old.GetSpec(), o.Job)...)
}

// DiffLabels compares labels and annotations of the cell with those of a file.
func DiffLabels(old *borgpb.Meta, o *Object) []Change {
	return append(diffMap("labels", old.GetLabels(), o.Labels), diffMap("annotations", old.GetAnnotations(), o.Annotations)...)
}

func diffMap(name string, a, b map[string]string) []Change {
	keys := make(map[string]bool)
	for k := range a {
		keys[k] = true
	}
	for k := range b {
		keys[k] = true
	}
	var out []Change
	for _, k := range sortedKeys(keys) {
		x, inA := a[k]
		y, inB := b[k]
		if inA == inB && x == y {
			continue
		}
		c := Change{Path: name + "." + k}
		if inA {
			c.Old = strconv.Quote(x)
		}
		if inB {
			c.New = strconv.Quote(y)
		}
		out = append(out, c)
	}
	return out
}

// Diff compares two specs of a job field by field, in the order of the fields.
func Diff(old, new *borgpb.JobSpec) []Change {
	d := &differ{}
	d.message("", old.ProtoReflect(), new.ProtoReflect())
	for i := range d.changes {
		d.changes[i].Effect = effectOf(d.changes[i].Path)
	}
	return d.changes
}

// effectOf is what a change of a field does to tasks.
func effectOf(path string) Effect {
	if rest, ok := strings.CutPrefix(path, "overrides"); ok {
		// A changed override is a changed task.
		if _, field, ok := strings.Cut(rest, ".spec."); ok {
			return effectOf("task." + field)
		}
		return EffectRestart
	}
	field, ok := strings.CutPrefix(path, "task.")
	if !ok {
		switch path {
		case "tasks":
			return EffectResize
		case "alloc_set":
			return EffectReschedule
		case "alloc_by_index":
			// Whoever is in the alloc of its index stays there.
			return EffectInPlace
		}
		return EffectNone
	}
	if strings.HasPrefix(field, "resources.device") {
		return EffectRestart
	}
	switch first(field) {
	case "resources", "constraints", "tolerations", "grace_ns", "cpu_slack", "mem_slack", "no_estimation",
		"notice_ns", "notice_signal":
		return EffectInPlace
	}
	return EffectRestart
}

// first is the field that a path begins with.
func first(path string) string {
	if i := strings.IndexAny(path, ".["); i >= 0 {
		return path[:i]
	}
	return path
}

type differ struct{ changes []Change }

func (d *differ) add(path, old, new string) {
	d.changes = append(d.changes, Change{Path: path, Old: old, New: new})
}

func (d *differ) message(path string, a, b protoreflect.Message) {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		at := join(path, string(fd.Name()))
		inA, inB := a.Has(fd), b.Has(fd)
		switch {
		case !inA && !inB:
		case fd.IsMap():
			d.mapField(at, fd, a.Get(fd).Map(), b.Get(fd).Map())
		case fd.IsList():
			d.listField(at, fd, a.Get(fd).List(), b.Get(fd).List())
		case fd.Kind() == protoreflect.MessageKind && inA && inB:
			d.message(at, a.Get(fd).Message(), b.Get(fd).Message())
		case !a.Get(fd).Equal(b.Get(fd)) || inA != inB:
			old, new := "", ""
			// A number that is zero is a value like others, when the other side
			// has one.
			number := fd.Kind() != protoreflect.MessageKind && fd.Kind() != protoreflect.StringKind
			if inA || number {
				old = valueText(a.Get(fd), fd)
			}
			if inB || number {
				new = valueText(b.Get(fd), fd)
			}
			d.add(at, old, new)
		}
	}
}

func (d *differ) mapField(path string, fd protoreflect.FieldDescriptor, a, b protoreflect.Map) {
	keys := make(map[string]bool)
	for _, m := range []protoreflect.Map{a, b} {
		m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
			keys[k.String()] = true
			return true
		})
	}
	for _, k := range sortedKeys(keys) {
		key := protoreflect.ValueOfString(k).MapKey()
		old, new := "", ""
		if a.Has(key) {
			old = valueText(a.Get(key), fd.MapValue())
		}
		if b.Has(key) {
			new = valueText(b.Get(key), fd.MapValue())
		}
		if old != new {
			d.add(path+"."+k, old, new)
		}
	}
}

func (d *differ) listField(path string, fd protoreflect.FieldDescriptor, a, b protoreflect.List) {
	for i := range max(a.Len(), b.Len()) {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case i >= a.Len():
			d.add(at, "", valueText(b.Get(i), fd))
		case i >= b.Len():
			d.add(at, valueText(a.Get(i), fd), "")
		case fd.Kind() == protoreflect.MessageKind:
			d.message(at, a.Get(i).Message(), b.Get(i).Message())
		case !a.Get(i).Equal(b.Get(i)):
			d.add(at, valueText(a.Get(i), fd), valueText(b.Get(i), fd))
		}
	}
}

// valueText is a value as people write it.
func valueText(v protoreflect.Value, fd protoreflect.FieldDescriptor) string {
	if fd.IsList() && !isElement(v) {
		var parts []string
		for i := range v.List().Len() {
			parts = append(parts, elementText(v.List().Get(i), fd))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	if fd.IsMap() {
		return mapText(v.Map(), fd)
	}
	return elementText(v, fd)
}

func isElement(v protoreflect.Value) bool {
	_, isList := v.Interface().(protoreflect.List)
	return !isList
}

func mapText(m protoreflect.Map, fd protoreflect.FieldDescriptor) string {
	var parts []string
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		parts = append(parts, fmt.Sprintf("%q: %s", k.String(), elementText(v, fd.MapValue())))
		return true
	})
	sort.Strings(parts)
	return "{" + strings.Join(parts, ", ") + "}"
}

func elementText(v protoreflect.Value, fd protoreflect.FieldDescriptor) string {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return strconv.Quote(v.String())
	case protoreflect.BytesKind:
		return fmt.Sprintf("%d bytes", len(v.Bytes()))
	case protoreflect.EnumKind:
		return enumWord(fd.Enum(), v.Enum())
	case protoreflect.MessageKind:
		return messageText(v.Message())
	}
	if _, u := friendlyName(fd); u != unitNone {
		return quantityText(v.Int(), u)
	}
	return v.String()
}

func messageText(m protoreflect.Message) string {
	if c, ok := m.Interface().(*borgpb.Constraint); ok {
		return strconv.Quote(constraintText(c))
	}
	if o, ok := m.Interface().(*borgpb.TaskOverride); ok {
		return fmt.Sprintf("for tasks %d to %d %s", o.First, o.Last, messageText(o.Spec.ProtoReflect()))
	}
	if !m.IsValid() || proto.Size(m.Interface()) == 0 {
		return "nothing"
	}
	var parts []string
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); m.Has(fd) {
			name, _ := friendlyName(fd)
			parts = append(parts, name+" = "+valueText(m.Get(fd), fd))
		}
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// constraintText is a constraint as it can be written in a job file.
func constraintText(c *borgpb.Constraint) string {
	sign := map[borgpb.Relation]string{
		borgpb.Relation_RELATION_EQUAL: "=", borgpb.Relation_RELATION_NOT_EQUAL: "!=",
		borgpb.Relation_RELATION_LESS_THAN: "<", borgpb.Relation_RELATION_LESS_THAN_EQUAL: "<=",
		borgpb.Relation_RELATION_GREATER_THAN: ">", borgpb.Relation_RELATION_GREATER_THAN_EQUAL: ">=",
	}[c.Relation]
	text := c.Key + sign + c.Value
	if c.Relation == borgpb.Relation_RELATION_NOT_PRESENT {
		text = "!" + c.Key
	}
	if c.Soft {
		text += " (soft)"
	}
	return text
}

// microText is a number of millionths as people write it.
func microText(n int64) string {
	s := new(big.Rat).SetFrac64(n, 1e6).FloatString(6)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// quantityText is an amount with the largest unit in which it is exact.
func quantityText(n int64, u unit) string {
	switch u {
	case unitCPU:
		s := strconv.FormatInt(n/1000, 10)
		if n%1000 != 0 {
			s += "." + strings.TrimRight(fmt.Sprintf("%03d", n%1000), "0")
		}
		return s
	case unitBytes:
		for _, b := range []struct {
			size int64
			name string
		}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
			if n != 0 && n%b.size == 0 {
				return fmt.Sprintf("%d%s", n/b.size, b.name)
			}
		}
		return fmt.Sprintf("%dB", n)
	}
	if u == unitMicro {
		return microText(n)
	}
	for _, t := range []struct {
		size int64
		name string
	}{{3600e9, "h"}, {60e9, "m"}, {1e9, "s"}, {1e6, "ms"}, {1e3, "us"}} {
		if n != 0 && n%t.size == 0 {
			return fmt.Sprintf("%d%s", n/t.size, t.name)
		}
	}
	return fmt.Sprintf("%dns", n)
}
