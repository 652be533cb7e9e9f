package cfg

import (
	"fmt"
	"strings"
)

// objectsIn finds the jobs and alloc sets in YAML or JSON documents. A
// document holds lists under "jobs" and "alloc_sets", or one object under "job"
// or "alloc_set".
// What is wrong with them is recorded.
func objectsIn(s *sources, docs []*node) []*node {
	var out []*node
	by := make(map[string]*constructor)
	for _, c := range constructors() {
		if c.object {
			by[c.name] = c
		}
	}
	add := func(n *node, c *constructor) {
		if n.kind == kindFaulty {
			return
		}
		if flat := flatten(s, n, c); flat != nil {
			out = append(out, flat)
		}
	}
	top := []string{"jobs", "alloc_sets", "job", "alloc_set"}
	for _, doc := range docs {
		if doc.kind == kindNull || doc.kind == kindFaulty {
			continue
		}
		if doc.kind != kindMap {
			s.note(&Fault{Pos: doc.pos, Width: doc.width, Source: s.line(doc.pos),
				What: "a job file holds named values, not " + doc.describe(), Hint: "write jobs: and below it a list of jobs"})
			continue
		}
		for _, f := range doc.fields {
			name := f.name
			switch name {
			case "allocSets":
				name = "alloc_sets"
			case "allocSet":
				name = "alloc_set"
			}
			switch {
			case by[name] != nil && f.value.kind == kindList:
				s.note(&Fault{Pos: f.value.pos, Width: f.value.width, Source: s.line(f.value.pos),
					What: fmt.Sprintf("a %s must be a set of named values, not %s", name, f.value.describe()), Hint: fmt.Sprintf("for several write %ss:", name)})
			case by[name] != nil:
				add(f.value, by[name])
			case by[strings.TrimSuffix(name, "s")] != nil && f.value.kind == kindList:
				for _, item := range f.value.items {
					add(item, by[strings.TrimSuffix(name, "s")])
				}
			case by[strings.TrimSuffix(name, "s")] != nil:
				s.note(&Fault{Pos: f.value.pos, Width: f.value.width, Source: s.line(f.value.pos),
					What: fmt.Sprintf("%s must be a list, not %s", name, f.value.describe()), Hint: fmt.Sprintf("for a single one write %s:", strings.TrimSuffix(name, "s"))})
			default:
				fault := s.unknownField(f.pos, f.name, "a job file", top)
				if _, ok := lookup(by["job"].message, f.name); ok || contains(objectNames, f.name) {
					fault.Hint = "a job's values go below job:"
				}
				s.note(fault)
			}
		}
	}
	return out
}

// flatten gives an object that is written as {meta, spec} the shape of the
// constructor: all values side by side. What is wrong with it is recorded; nil: it is
// no object.
func flatten(s *sources, n *node, c *constructor) *node {
	if n.kind != kindMap {
		s.note(&Fault{Pos: n.pos, Width: n.width, Source: s.line(n.pos), What: fmt.Sprintf("a %s must be a set of named values, not %s", c.name, n.describe())})
		return nil
	}
	out := &node{kind: kindMap, pos: n.pos, width: 1, made: c, base64: true}
	meta, spec := n.field("meta"), n.field("spec")
	if meta == nil && spec == nil {
		flatFields(s, out, n.fields, c)
		return out
	}
	for _, f := range n.fields {
		if f.value.kind != kindMap && (f.name == "meta" || f.name == "spec") {
			out.rest = true
			if f.value.kind != kindFaulty {
				s.note(&Fault{Pos: f.value.pos, Width: f.value.width, Source: s.line(f.value.pos), What: fmt.Sprintf("%s must be a set of named values, not %s", f.name, f.value.describe())})
			}
			continue
		}
		switch f.name {
		case "meta":
			for _, m := range f.value.fields {
				if !contains(objectNames, m.name) || m.name == "band" {
					fault := s.unknownField(m.pos, m.name, "meta", []string{"name", "user", "labels", "annotations"})
					if m.name == "uid" || m.name == "version" {
						fault.What, fault.Hint = fmt.Sprintf("%s is given by the cell", m.name), "leave it out"
					}
					s.note(fault)
					continue
				}
				out.fields = append(out.fields, m)
			}
		case "spec":
			flatFields(s, out, f.value.fields, c)
		default:
			fault := s.unknownField(f.pos, f.name, "a "+c.name+" with meta and spec", []string{"meta", "spec"})
			if f.name == "status" {
				fault.What, fault.Hint = "status is what the cell says", "leave it out"
			}
			s.note(fault)
		}
	}
	return out
}

// flatFields checks the names here, where those that only objects have can be
// offered too.
func flatFields(s *sources, out *node, fields []field, c *constructor) {
	for _, f := range fields {
		if _, ok := lookup(c.message, f.name); !ok && !contains(objectNames, f.name) {
			s.note(s.unknownField(f.pos, f.name, c.name+"()", append(append([]string(nil), objectNames...), known(c.message)...)))
		}
		out.fields = append(out.fields, f)
	}
}
