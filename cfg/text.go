package cfg

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// yamlDocuments reads all documents of a YAML file.
func yamlDocuments(s *sources, src *source) ([]*node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(src.data))
	var docs []*node
	var spent budget
	for {
		var y yaml.Node
		err := dec.Decode(&y)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, Faults{yamlFault(s, src, err)}
		}
		for _, root := range y.Content {
			n, fault := yamlNode(s, src, root, 0, &spent)
			if fault != nil {
				return nil, Faults{fault}
			}
			docs = append(docs, n)
		}
	}
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// yamlFault takes the line out of the parser's message.
func yamlFault(s *sources, src *source, err error) *Fault {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	pos := Position{File: src.name}
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		pos.Line, _ = strconv.Atoi(m[1])
		line := s.line(pos)
		pos.Col = 1 + len(line) - len(strings.TrimLeft(line, " \t"))
		msg = strings.Replace(msg, m[0], "", 1)
	}
	return &Fault{Pos: pos, Source: s.line(pos), What: "not YAML: " + msg}
}

// yamlNode converts a parsed YAML value. Aliases are followed and count each
// time, so that a few lines of them cannot grow without bound.
func yamlNode(s *sources, src *source, y *yaml.Node, depth int, spent *budget) (*node, *Fault) {
	pos := Position{File: src.name, Line: y.Line, Col: y.Column}
	fault := func(format string, args ...any) (*node, *Fault) {
		return nil, &Fault{Pos: pos, Width: max(1, len(y.Value)), Source: s.line(pos), What: fmt.Sprintf(format, args...)}
	}
	if what := spent.value(len(y.Value)); what != "" {
		return fault("%s", what)
	}
	if depth > maxDepth {
		return fault("values are nested more than %d deep", maxDepth)
	}
	n := &node{pos: pos, width: utf8.RuneCountInString(y.Value), text: y.Value, base64: true}
	switch y.Kind {
	case yaml.AliasNode:
		return yamlNode(s, src, y.Alias, depth+1, spent)
	case yaml.SequenceNode:
		n.kind = kindList
		for _, c := range y.Content {
			item, f := yamlNode(s, src, c, depth+1, spent)
			if f != nil {
				return nil, f
			}
			n.items = append(n.items, item)
		}
	case yaml.MappingNode:
		if f := yamlFields(s, src, n, y, depth, spent); f != nil {
			return nil, f
		}
	case yaml.ScalarNode:
		if (y.ShortTag() == "!!int" || y.ShortTag() == "!!float") && octal.MatchString(y.Value) {
			_, f := fault("%s is an octal number to some readers of YAML and a decimal one to people", y.Value)
			f.Hint = octalHint(y.Value)
			return faultyNode(s, n, f)
		}
		if !yamlScalar(n, y) {
			_, f := fault("%s cannot be used in a job file", strings.TrimPrefix(y.Tag, "!!"))
			return faultyNode(s, n, f)
		}
	default:
		return fault("this cannot be used in a job file")
	}
	return n, nil
}

// faultyNode records a fault of a node, with which the reading goes on.
func faultyNode(s *sources, n *node, f *Fault) (*node, *Fault) {
	if s.note(f) != nil {
		return nil, f
	}
	n.kind = kindFaulty
	return n, nil
}

// octal is a number that begins with a zero and says no base.
var octal = regexp.MustCompile(`^[-+]?0[0-9_]+$`)

// octalHint says both things that may be meant.
func octalHint(text string) string {
	sign, digits := "", strings.ReplaceAll(text, "_", "")
	if rest, ok := strings.CutPrefix(digits, "-"); ok {
		sign, digits = "-", rest
	}
	digits = strings.TrimLeft(strings.TrimPrefix(digits, "+"), "0")
	if digits == "" {
		return "write 0"
	}
	if strings.ContainsAny(digits, "89") {
		return "write " + sign + digits
	}
	return fmt.Sprintf("write %s%s, or %s0o%s if octal is meant", sign, digits, sign, digits)
}

// yamlFields converts the fields of a mapping. Those of a merge key ("<<") come last,
// and only where the mapping, or a mapping that is merged earlier, does not have them.
func yamlFields(s *sources, src *source, n *node, y *yaml.Node, depth int, spent *budget) *Fault {
	n.kind = kindMap
	var merged []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k := y.Content[i]
		kpos := Position{File: src.name, Line: k.Line, Col: k.Column}
		if k.Kind == yaml.ScalarNode && k.ShortTag() == "!!merge" {
			merged = append(merged, y.Content[i+1])
			continue
		}
		if k.Kind != yaml.ScalarNode {
			if f := (&Fault{Pos: kpos, Source: s.line(kpos), What: "a name must be plain text"}); s.note(f) != nil {
				return f
			}
			continue
		}
		if what := spent.name(len(n.fields), len(k.Value)); what != "" {
			return &Fault{Pos: kpos, Width: len(k.Value), Source: s.line(kpos), What: what}
		}
		if n.field(k.Value) != nil {
			f := &Fault{Pos: kpos, Width: len(k.Value), Source: s.line(kpos), What: fmt.Sprintf("%q is given twice", k.Value), Hint: "leave one of them out"}
			if s.note(f) != nil {
				return f
			}
			continue
		}
		v, f := yamlNode(s, src, y.Content[i+1], depth+1, spent)
		if f != nil {
			return f
		}
		n.fields = append(n.fields, field{name: k.Value, pos: kpos, value: v})
	}
	for _, m := range merged {
		if f := yamlMerge(s, src, n, m, depth, spent); f != nil {
			return f
		}
	}
	return nil
}

// yamlMerge adds what a merge key names: a mapping, or a list of them.
func yamlMerge(s *sources, src *source, n *node, y *yaml.Node, depth int, spent *budget) *Fault {
	v, f := yamlNode(s, src, y, depth+1, spent)
	if f != nil {
		return f
	}
	from := []*node{v}
	if v.kind == kindList {
		from = v.items
	}
	for _, one := range from {
		if one.kind != kindMap {
			return &Fault{Pos: v.pos, Source: s.line(v.pos), What: "what is merged by << is no mapping", Hint: "name one with an anchor, such as <<: *base"}
		}
		for _, f := range one.fields {
			if what := spent.name(len(n.fields), 0); what != "" {
				return &Fault{Pos: v.pos, Source: s.line(v.pos), What: what}
			}
			if n.field(f.name) == nil {
				n.fields = append(n.fields, f)
			}
		}
	}
	return nil
}

// yamlScalar sets the kind and the text of a scalar.
func yamlScalar(n *node, y *yaml.Node) bool {
	switch y.ShortTag() {
	case "!!str", "!!timestamp", "!!binary":
		n.kind = kindString
	case "!!null":
		n.kind = kindNull
	case "!!bool":
		var b bool
		if y.Decode(&b) != nil {
			return false
		}
		n.kind, n.text = kindBool, strconv.FormatBool(b)
	case "!!int":
		n.kind = kindInt
		var i int64
		if y.Decode(&i) == nil {
			n.text = strconv.FormatInt(i, 10)
		}
	case "!!float":
		n.kind = kindFloat
	default:
		return false
	}
	return true
}

// jsonDocument reads a JSON file.
func jsonDocument(s *sources, src *source) ([]*node, error) {
	p := &jsonParser{s: s, src: src, dec: json.NewDecoder(bytes.NewReader(src.data))}
	p.dec.UseNumber()
	n, fault := p.value(0)
	if fault != nil {
		return nil, Faults{fault}
	}
	start := p.next()
	if start < len(src.data) {
		return nil, Faults{p.fault(start, 1, "not JSON: something follows the end of the value")}
	}
	return []*node{n}, nil
}

// jsonParser reads tokens and keeps their places.
type jsonParser struct {
	s     *sources
	src   *source
	dec   *json.Decoder
	spent budget
	// asked is the byte whose line and column were asked for last.
	asked, line, col int
}

// next is the offset of the next token.
func (p *jsonParser) next() int {
	at := int(p.dec.InputOffset())
	for at < len(p.src.data) && strings.IndexByte(" \t\r\n,:", p.src.data[at]) >= 0 {
		at++
	}
	return at
}

func (p *jsonParser) pos(at int) Position {
	at = min(at, len(p.src.data))
	if at < p.asked || p.line == 0 {
		p.asked, p.line, p.col = 0, 1, 1
	}
	// Places are asked for in order: counting from the start each time takes minutes.
	since := p.src.data[p.asked:at]
	if n := bytes.Count(since, []byte("\n")); n > 0 {
		p.line, p.col = p.line+n, 1
		since = since[bytes.LastIndexByte(since, '\n')+1:]
	}
	p.asked, p.col = at, p.col+utf8.RuneCount(since)
	return Position{File: p.src.name, Line: p.line, Col: p.col}
}

func (p *jsonParser) fault(at, width int, format string, args ...any) *Fault {
	pos := p.pos(at)
	return &Fault{Pos: pos, Width: width, Source: p.s.line(pos), What: fmt.Sprintf(format, args...)}
}

func (p *jsonParser) token() (json.Token, int, *Fault) {
	at := p.next()
	t, err := p.dec.Token()
	if err == nil {
		return t, at, nil
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return nil, at, p.fault(max(0, int(syntax.Offset)-1), 1, "not JSON: %v", syntax)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, at, p.fault(len(p.src.data), 1, "not JSON: the file ends too early")
	}
	return nil, at, p.fault(at, 1, "not JSON: %v", err)
}

func (p *jsonParser) value(depth int) (*node, *Fault) {
	t, at, fault := p.token()
	if fault != nil {
		return nil, fault
	}
	text, _ := t.(string)
	if what := p.spent.value(len(text)); what != "" {
		return nil, p.fault(at, 1, "%s", what)
	}
	if depth > maxDepth {
		return nil, p.fault(at, 1, "values are nested more than %d deep", maxDepth)
	}
	n := &node{pos: p.pos(at), width: int(p.dec.InputOffset()) - at, base64: true}
	switch t := t.(type) {
	case json.Delim:
		n.width = 1
		if t == '[' {
			n.kind = kindList
			return n, p.list(n, depth)
		}
		n.kind = kindMap
		return n, p.object(n, depth)
	case string:
		n.kind, n.text = kindString, t
	case json.Number:
		n.kind, n.text = kindInt, t.String()
		if strings.ContainsAny(n.text, ".eE") {
			n.kind = kindFloat
		}
	case bool:
		n.kind, n.text = kindBool, strconv.FormatBool(t)
	}
	return n, nil
}

func (p *jsonParser) list(n *node, depth int) *Fault {
	for p.dec.More() {
		item, fault := p.value(depth + 1)
		if fault != nil {
			return fault
		}
		n.items = append(n.items, item)
	}
	_, _, fault := p.token()
	return fault
}

func (p *jsonParser) object(n *node, depth int) *Fault {
	for p.dec.More() {
		t, at, fault := p.token()
		if fault != nil {
			return fault
		}
		name, ok := t.(string)
		if !ok {
			return p.fault(at, 1, "not JSON: a name must be text")
		}
		if what := p.spent.name(len(n.fields), len(name)); what != "" {
			return p.fault(at, len(name)+2, "%s", what)
		}
		twice := n.field(name) != nil
		if twice {
			f := p.fault(at, len(name)+2, "%q is given twice", name)
			f.Hint = "leave one of them out"
			if p.s.note(f) != nil {
				return f
			}
		}
		v, fault := p.value(depth + 1)
		if fault != nil {
			return fault
		}
		if twice {
			continue
		}
		n.fields = append(n.fields, field{name: name, pos: p.pos(at), value: v})
	}
	_, _, fault := p.token()
	return fault
}
