package cfg

import (
	"fmt"
	"math/big"
	"strconv"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// budget counts what a file yields.
type budget struct{ values, bytes int }

// value counts a value with so many bytes of text, and returns what is wrong if that is
// too much.
func (b *budget) value(bytes int) string {
	if b.values++; b.values > maxOutputValues {
		return fmt.Sprintf("the file yields more than %d values", maxOutputValues)
	}
	return b.text(bytes)
}

// text counts bytes of text.
func (b *budget) text(bytes int) string {
	if b.bytes += bytes; b.bytes > maxOutputBytes {
		return fmt.Sprintf("the file yields more than %d bytes of text", maxOutputBytes)
	}
	return ""
}

// name counts a name in a mapping that has others already.
func (b *budget) name(others, bytes int) string {
	if others >= maxNames {
		return fmt.Sprintf("a mapping has more than %d names", maxNames)
	}
	return b.text(bytes)
}

// node converts a value. expr is where it was written, if that is known; what
// was not written as such takes the place of what it is part of.
func (e *evaluator) node(v starlark.Value, expr syntax.Expr, at Position, depth int) (*node, error) {
	n := &node{pos: at, width: 1}
	if expr != nil {
		start, end := expr.Span()
		n.pos = e.pos(start)
		if start.Line == end.Line {
			n.width = int(end.Col - start.Col)
		}
	}
	if what := e.budget.value(0); what != "" {
		return nil, e.faultAt(n.pos, n.width, "", "%s", what)
	}
	if depth > maxDepth {
		return nil, e.faultAt(n.pos, n.width, "", "values are nested more than %d deep", maxDepth)
	}
	switch v := v.(type) {
	case starlark.NoneType:
	case starlark.Bool:
		n.kind, n.text = kindBool, strconv.FormatBool(bool(v))
	case starlark.Int:
		n.kind, n.text = kindInt, intText(v)
	case starlark.Float:
		n.kind, n.text = kindFloat, strconv.FormatFloat(float64(v), 'f', -1, 64)
	case starlark.String:
		n.kind, n.text = kindString, string(v)
	case starlark.Bytes:
		n.kind, n.text = kindString, string(v)
	case *made:
		// Its values know their own places.
		return v.node, nil
	case *starlark.Dict:
		return n, e.dict(n, v, expr, depth)
	case standIn:
		n.kind = kindFaulty
	case starlark.Iterable:
		return n, e.list(n, v, expr, depth)
	default:
		what, hint := v.Type(), ""
		if f, ok := v.(starlark.Callable); ok {
			what, hint = "function", "did you mean "+f.Name()+"(...)?"
		}
		n.kind = kindFaulty
		return n, e.note(n.pos, n.width, hint, "a %s is not a value for a job file", what)
	}
	if what := e.budget.text(len(n.text)); what != "" {
		return nil, e.faultAt(n.pos, n.width, "", "%s", what)
	}
	return n, nil
}

// intText is an integer in decimal; one that no field can hold is not written
// out, which could take long.
func intText(v starlark.Int) string {
	if i, ok := v.Int64(); ok {
		return strconv.FormatInt(i, 10)
	}
	b := v.BigInt()
	if b.BitLen() > 200 {
		b = new(big.Int).Lsh(big.NewInt(int64(b.Sign())), 200)
	}
	return b.String()
}

func (e *evaluator) dict(n *node, d *starlark.Dict, expr syntax.Expr, depth int) error {
	n.kind = kindMap
	written := make(map[string]*syntax.DictEntry)
	if lit, ok := expr.(*syntax.DictExpr); ok {
		for _, x := range lit.List {
			entry := x.(*syntax.DictEntry)
			if key, ok := entry.Key.(*syntax.Literal); ok {
				if s, ok := key.Value.(string); ok {
					written[s] = entry
				}
			}
		}
	}
	for _, kv := range d.Items() {
		name, ok := starlark.AsString(kv[0])
		if !ok {
			n.kind = kindFaulty
			if _, mistake := kv[0].(standIn); mistake {
				continue
			}
			if err := e.note(n.pos, n.width, fmt.Sprintf("write %q", kv[0].String()), "a name must be text, not %s", kv[0].Type()); err != nil {
				return err
			}
			continue
		}
		pos := n.pos
		var value syntax.Expr
		if entry := written[name]; entry != nil {
			start, _ := entry.Key.Span()
			pos, value = e.pos(start), entry.Value
		}
		if what := e.budget.name(len(n.fields), len(name)); what != "" {
			return e.faultAt(pos, n.width, "", "%s", what)
		}
		v, err := e.node(kv[1], value, pos, depth+1)
		if err != nil {
			return err
		}
		n.fields = append(n.fields, field{name: name, pos: pos, value: v})
	}
	return nil
}

func (e *evaluator) list(n *node, it starlark.Iterable, expr syntax.Expr, depth int) error {
	n.kind = kindList
	var written []syntax.Expr
	if lit, ok := expr.(*syntax.ListExpr); ok {
		written = lit.List
	}
	iter := it.Iterate()
	defer iter.Done()
	var v starlark.Value
	for i := 0; iter.Next(&v); i++ {
		var value syntax.Expr
		if i < len(written) {
			value = written[i]
		}
		item, err := e.node(v, value, n.pos, depth+1)
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	return nil
}
