package cfg

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// Options are what an evaluation depends on besides the files.
type Options struct {
	// Values for param(), by name.
	Params map[string]string
	// Owner of objects that name none. DNS label.
	User string
	// Directory that loaded files may come from; empty: that of the main file.
	Root string
	// Hears what the file prints; nil: nobody.
	Print func(pos Position, text string)
}

// File is an evaluated job file.
type File struct {
	Path string
	// In the order in which they were declared.
	Objects []*Object
	// SHA-256 over the files and the parameters, hex.
	Hash   string
	Params []Param
	// Files that it was made of, the main one first.
	Sources []string
	// What the author should know although nothing is wrong.
	Warnings Faults
}

// ObjectKind is the kind of thing that a file declares.
type ObjectKind uint8

// Kinds of objects.
const (
	KindJob ObjectKind = iota + 1
	KindAllocSet
)

func (k ObjectKind) String() string {
	if k == KindAllocSet {
		return "alloc set"
	}
	return "job"
}

// Object is a job or an alloc set as the file declares it.
type Object struct {
	Kind        ObjectKind
	User, Name  string
	Labels      map[string]string
	Annotations map[string]string
	// One of the two, by Kind.
	Job      *borgpb.JobSpec
	AllocSet *borgpb.AllocSetSpec

	pos     Position
	origins map[string]Origin
	lacks   *Fault
}

// Lacks is what is missing in what each task or alloc asks for; nil: nothing is. It is a
// fault unless the cell fills it in, as its bounds of the user's tasks may say.
func (o *Object) Lacks() *Fault {
	r := o.AllocSet.GetResources()
	if o.Kind == KindJob {
		r = o.Job.GetTask().GetResources()
	}
	if r.GetCpuMilli() != 0 && r.GetMemBytes() != 0 {
		return nil
	}
	return o.lacks
}

// Key is "<user>/<name>".
func (o *Object) Key() string { return o.User + "/" + o.Name }

// Pos is where the object is declared.
func (o *Object) Pos() Position { return o.pos }

// Spec is the object's spec as a message.
func (o *Object) Spec() proto.Message {
	if o.Kind == KindAllocSet {
		return o.AllocSet
	}
	return o.Job
}

// SpecBytes is the spec as it goes to the cell; the same spec gives the same
// bytes.
func (o *Object) SpecBytes() ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(o.Spec())
}

// Evaluate reads a job file. What is wrong with it comes back as Faults.
func Evaluate(path string, opts Options) (*File, error) {
	s, src, err := openSources(path, opts.Root)
	if err != nil {
		if f, ok := err.(*Fault); ok {
			return nil, Faults{f}
		}
		return nil, err
	}
	defer s.close()
	p := &params{given: opts.Params, used: make(map[string]Param)}
	var nodes []*node
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".borg", ".star", ".bzl":
		nodes, err = starlarkNodes(s, src, p, opts)
	case ".yaml", ".yml", ".json":
		if nodes, err = readText(s, src, ext); err == nil {
			nodes = objectsIn(s, nodes)
		}
	default:
		return nil, Faults{{Pos: Position{File: path}, What: fmt.Sprintf("a job file's name ends in .borg, .yaml or .json, not in %q", ext)}}
	}
	var faults Faults
	if err != nil && !errors.As(err, &faults) {
		return nil, err
	}
	faults = append(s.found, faults...)
	if len(faults) == 0 {
		if f := p.unused(path); f != nil {
			faults = append(faults, f)
		}
	}
	return assemble(s, path, nodes, p, opts, faults)
}

func starlarkNodes(s *sources, src *source, p *params, opts Options) ([]*node, error) {
	e := newEvaluator(s, p, opts.Print)
	return e.run(src)
}

func readText(s *sources, src *source, ext string) ([]*node, error) {
	if ext == ".json" {
		return jsonDocument(s, src)
	}
	return yamlDocuments(s, src)
}

// assemble decodes, completes and checks the declared objects. faults are those that
// were found before.
func assemble(s *sources, path string, nodes []*node, p *params, opts Options, faults Faults) (*File, error) {
	f := &File{Path: path, Params: p.list(), Hash: hash(s, p)}
	for _, src := range s.order {
		f.Sources = append(f.Sources, src.name)
	}
	if len(nodes) == 0 && len(faults) == 0 {
		return nil, Faults{{Pos: Position{File: path}, What: "the file declares no job and no alloc set", Hint: `declare one: job(name = "hello", task = task(...))`}}
	}
	names := make(map[string]*Object)
	values := 0
	// Those all of whose values could be read.
	var read []*Object
	for _, n := range nodes {
		d := &decoder{sources: s, values: &values, origins: make(map[string]Origin)}
		o := d.object(n, opts.User)
		if len(d.faults) == 0 {
			read = append(read, o)
		}
		if values <= maxOutputValues {
			d.complete(o)
			d.validate(o)
		}
		if first := names[o.Key()]; first != nil && o.Name != "" {
			d.faultAtPath(o, "name", "jobs and alloc sets of one user share their names", "%s is declared twice (first at %s)", o.Key(), first.pos)
		}
		names[o.Key()] = o
		faults = append(faults, d.faults...)
		f.Warnings = append(f.Warnings, d.warnings...)
		f.Objects = append(f.Objects, o)
	}
	if len(faults) == 0 {
		return f, nil
	}
	// Told with the others: the file has to be changed anyway.
	for _, o := range read {
		if l := o.Lacks(); l != nil {
			may := *l
			may.What += ", unless the cell fills it in for user " + o.User
			faults = append(faults, &may)
		}
	}
	return nil, sortFaults(faults)
}

// object decodes a job or an alloc set.
func (d *decoder) object(n *node, user string) *Object {
	o := &Object{User: user, pos: n.pos, origins: d.origins}
	var m protoreflect.Message
	if n.made.name == "alloc_set" {
		o.Kind, o.AllocSet = KindAllocSet, &borgpb.AllocSetSpec{}
		m = o.AllocSet.ProtoReflect()
	} else {
		o.Kind, o.Job = KindJob, &borgpb.JobSpec{}
		m = o.Job.ProtoReflect()
	}
	d.from("", n)
	// Labels and annotations are decoded as those of any object.
	meta := &borgpb.Meta{}
	spec := &node{kind: kindMap, pos: n.pos, width: n.width, made: n.made}
	var band *field
	for i, f := range n.fields {
		switch f.name {
		case "name", "user", "labels", "annotations":
			col, _ := lookup(meta.ProtoReflect().Descriptor(), f.name)
			d.value(f.value, meta.ProtoReflect(), col, f.name)
		case "band":
			band = &n.fields[i]
		default:
			spec.fields = append(spec.fields, f)
		}
	}
	if n.rest {
		d.faulty = append(d.faulty, "")
	}
	d.message(spec, m, "")
	if band != nil {
		d.band(band, m)
	}
	o.Name, o.Labels, o.Annotations = meta.Name, meta.Labels, meta.Annotations
	if meta.User != "" {
		o.User = meta.User
	}
	return o
}

// band sets the priority that a band's name stands for, or checks that the
// given priority lies in it.
func (d *decoder) band(f *field, m protoreflect.Message) {
	if f.value.kind == kindFaulty {
		return
	}
	fd := m.Descriptor().Fields().ByName("priority")
	var words []string
	for _, b := range bands {
		words = append(words, b.name)
		if f.value.text != b.name {
			continue
		}
		if _, given := d.origins["priority"]; given {
			if p := int32(m.Get(fd).Int()); p < b.first || p > b.last {
				d.fault(f.value.pos, f.value.width, "leave one of them out", "priority %d does not lie in band %s (%d to %d)", p, b.name, b.first, b.last)
			}
			return
		}
		m.Set(fd, protoreflect.ValueOfInt32(b.usual))
		d.from("priority", f.value)
		return
	}
	hint := "it is one of " + strings.Join(words, ", ")
	if near := nearest(f.value.text, words); near != "" && f.value.kind == kindString {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	d.fault(f.value.pos, f.value.width, hint, "there is no band %s", quote(f.value.text))
}

// hash is SHA-256 over everything that an evaluation saw, each part with its
// length so that no two inputs run together.
func hash(s *sources, p *params) string {
	h := sha256.New()
	put := func(parts ...string) {
		for _, part := range parts {
			fmt.Fprintf(h, "%d:", len(part))
			h.Write([]byte(part))
		}
	}
	for _, src := range s.order {
		put("file", src.rel, string(src.data))
	}
	names := make([]string, 0, len(p.given))
	for name := range p.given {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		put("param", name, p.given[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}
