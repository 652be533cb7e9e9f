package cfg

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// ParseBytes reads an amount of bytes, such as "64KiB" or "4096".
func ParseBytes(s string) (int64, error) { return parseBytes(s) }

// JSON is the file's objects as a JSON job file, which evaluates to the same
// specs.
func (f *File) JSON() ([]byte, error) {
	var jobs, sets []json.RawMessage
	for _, o := range f.Objects {
		meta, err := compact(&borgpb.Meta{User: o.User, Name: o.Name, Labels: o.Labels, Annotations: o.Annotations})
		if err != nil {
			return nil, err
		}
		spec, err := compact(o.Spec())
		if err != nil {
			return nil, err
		}
		text := json.RawMessage(`{"meta":` + string(meta) + `,"spec":` + string(spec) + `}`)
		if o.Kind == KindAllocSet {
			sets = append(sets, text)
		} else {
			jobs = append(jobs, text)
		}
	}
	out := struct {
		AllocSets []json.RawMessage `json:"alloc_sets,omitempty"`
		Jobs      []json.RawMessage `json:"jobs,omitempty"`
	}{sets, jobs}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return nil, fmt.Errorf("print as JSON: %w", err)
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

func compact(m protoreflect.ProtoMessage) ([]byte, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("print as JSON: %w", err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return nil, fmt.Errorf("print as JSON: %w", err)
	}
	return out.Bytes(), nil
}

// Explained is a value of an object and where it came from.
type Explained struct {
	// "<job>.<field>...", with the names of the .proto files.
	Path  string
	Value string
	Origin
}

// Explain tells where the values at a path, and below it, came from. A path
// may begin with the name of an object and uses the names of job files:
// "hello.task.resources.mem", "task.args[0]".
func (f *File) Explain(path string) ([]Explained, error) {
	var out []Explained
	var known []string
	for _, o := range f.Objects {
		rest := path
		if after, ok := strings.CutPrefix(path, o.Name); ok && (after == "" || after[0] == '.') {
			rest = strings.TrimPrefix(after, ".")
		}
		raw := o.rawPath(rest)
		for at, origin := range o.origins {
			known = append(known, at)
			if at == "" || !within(at, raw) || !o.leaf(at) {
				continue
			}
			out = append(out, Explained{Path: o.Name + "." + at, Value: o.valueAt(at), Origin: origin})
		}
	}
	if len(out) == 0 {
		err := fmt.Errorf("the file sets nothing there")
		sort.Strings(known)
		if near := nearest(path, known); near != "" {
			err = fmt.Errorf("the file sets nothing there; did you mean %s?", near)
		}
		return nil, err
	}
	sort.Slice(out, func(i, j int) bool { return naturalLess(out[i].Path, out[j].Path) })
	return out, nil
}

// within tells whether at is path or lies below it.
func within(at, path string) bool {
	after, ok := strings.CutPrefix(at, path)
	return ok && (path == "" || after == "" || after[0] == '.' || after[0] == '[')
}

// leaf tells whether nothing else of the file lies below a path.
func (o *Object) leaf(at string) bool {
	for other := range o.origins {
		if other != at && within(other, at) {
			return false
		}
	}
	return true
}

// naturalLess orders paths with numbers in them by number.
func naturalLess(a, b string) bool {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x != "" && y != "" {
			if len(x) != len(y) {
				return len(x) < len(y)
			}
			if x != y {
				return x < y
			}
			a, b = a[len(x):], b[len(y):]
			continue
		}
		if a[0] != b[0] {
			return a[0] < b[0]
		}
		a, b = a[1:], b[1:]
	}
	return len(a) < len(b)
}

func digits(s string) string {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i]
}

// rawPath replaces the names of job files in a path by proto names.
func (o *Object) rawPath(path string) string {
	md := o.Spec().ProtoReflect().Descriptor()
	var out []string
	for part := range strings.SplitSeq(path, ".") {
		name, index, _ := strings.Cut(part, "[")
		if md != nil {
			if c, ok := lookup(md, name); ok {
				name = string(c.fd.Name())
				md = c.fd.Message()
				if c.fd.IsMap() {
					md = nil
				}
			}
		}
		if index != "" {
			name += "[" + index
		}
		out = append(out, name)
	}
	return strings.Join(out, ".")
}

// valueAt is the value at a path of proto names, as text.
func (o *Object) valueAt(path string) string {
	switch {
	case path == "name":
		return quote(o.Name)
	case path == "user":
		return quote(o.User)
	case strings.HasPrefix(path, "labels."):
		return quote(o.Labels[strings.TrimPrefix(path, "labels.")])
	case strings.HasPrefix(path, "annotations."):
		return quote(o.Annotations[strings.TrimPrefix(path, "annotations.")])
	}
	v, fd, err := follow(o.Spec().ProtoReflect(), path)
	if err != nil {
		return ""
	}
	return valueText(v, fd)
}

var errNoValue = errors.New("no such value")

// follow walks a path of proto names.
func follow(m protoreflect.Message, path string) (protoreflect.Value, protoreflect.FieldDescriptor, error) {
	var none protoreflect.Value
	name, rest, more := strings.Cut(path, ".")
	name, index, indexed := strings.Cut(strings.TrimSuffix(name, "]"), "[")
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if fd == nil {
		return none, nil, errNoValue
	}
	v := m.Get(fd)
	switch {
	case fd.IsMap():
		if !more {
			return v, fd, nil
		}
		key := protoreflect.ValueOfString(rest).MapKey()
		if !v.Map().Has(key) {
			return none, nil, errNoValue
		}
		return v.Map().Get(key), fd.MapValue(), nil
	case indexed:
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 || i >= v.List().Len() {
			return none, nil, errNoValue
		}
		v = v.List().Get(i)
	case fd.IsList():
		return v, fd, nil
	}
	if !more {
		return v, fd, nil
	}
	if fd.Kind() != protoreflect.MessageKind {
		return none, nil, errNoValue
	}
	return follow(v.Message(), rest)
}
