package cfg

import (
	"errors"
	"fmt"
	"math/big"
	"sort"
	"strconv"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// evaluator runs Starlark files.
type evaluator struct {
	sources *sources
	params  *params
	guard   *guard
	// Modules that were loaded, by path; nil while one is loading.
	modules map[string]*module
	// Calls of each file by the place of their parenthesis, to find the places
	// of arguments.
	calls map[Position]*syntax.CallExpr
	// Jobs and alloc sets in the order in which they were declared.
	declared []*made
	budget   budget
	// Some name does not exist, and a stand-in took its place.
	mistaken bool
	print    func(Position, string)
}

func newEvaluator(s *sources, p *params, print func(Position, string)) *evaluator {
	return &evaluator{
		sources: s, params: p, print: print, guard: newGuard(),
		modules: make(map[string]*module), calls: make(map[Position]*syntax.CallExpr),
	}
}

// module is one loaded file.
type module struct {
	globals starlark.StringDict
	err     error
}

// made is what a constructor returns: a set of named values that know where
// they were written. It cannot be changed.
type made struct {
	by   *constructor
	node *node
	vals map[string]starlark.Value
}

var (
	_ starlark.HasAttrs = (*made)(nil)
)

func (m *made) String() string        { return m.by.name + "(...)" }
func (m *made) Type() string          { return m.by.name }
func (m *made) Freeze()               {}
func (m *made) Truth() starlark.Bool  { return starlark.True }
func (m *made) Hash() (uint32, error) { return 0, fmt.Errorf("%s() cannot be a key", m.by.name) }

// Attr gives back an argument, so that prototypes can be built upon.
func (m *made) Attr(name string) (starlark.Value, error) {
	if v, ok := m.vals[name]; ok {
		return v, nil
	}
	if _, ok := lookup(m.by.message, name); ok || contains(objectNames, name) {
		return starlark.None, nil
	}
	return nil, nil
}

func (m *made) AttrNames() []string {
	out := make([]string, 0, len(m.vals))
	for k := range m.vals {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// objectNames are the arguments of job() and alloc_set() that are not in the
// spec.
var objectNames = []string{"name", "user", "labels", "annotations", "band"}

// loading marks threads that run a loaded file's top level.
const loading = "loading"

// source under which a thread runs.
const running = "running"

// run evaluates the main file and returns what it declares.
func (e *evaluator) run(src *source) ([]*node, error) {
	thread := &starlark.Thread{Name: src.name, Load: e.load, Print: e.printed}
	thread.SetLocal(running, src)
	_, err := e.guard.watch(func() (starlark.StringDict, error) { return e.exec(thread, src) })
	var out []*node
	// What was declared is looked at after an error too, unless a bound was passed.
	if bound := new(Fault); e.guard.stopped() == "" && !errors.As(err, &bound) {
		for _, m := range e.declared {
			out = append(out, m.node)
		}
	}
	// With a stand-in for what does not exist, an error may follow from that alone.
	if err != nil && (!e.mistaken || len(e.sources.found) == 0) {
		return out, Faults{e.explain(src, err)}
	}
	return out, nil
}

// options of the language: sets, and control flow at top level, so that a file
// can declare jobs in a loop. No while and no recursion: what is left ends.
var options = &syntax.FileOptions{Set: true, TopLevelControl: true, GlobalReassign: true}

func (e *evaluator) exec(thread *starlark.Thread, src *source) (starlark.StringDict, error) {
	predeclared := e.predeclared()
	program, err := e.program(src, predeclared)
	if unknown := e.undefined(err); len(unknown) > 0 {
		for _, name := range unknown {
			predeclared[name] = standIn(name)
		}
		e.mistaken = true
		program, err = e.program(src, predeclared)
	}
	if err != nil {
		return nil, err
	}
	e.guard.adopt(thread)
	return program.Init(thread, predeclared)
}

func (e *evaluator) program(src *source, predeclared starlark.StringDict) (*starlark.Program, error) {
	file, err := options.Parse(src.name, src.data, 0)
	if err != nil {
		return nil, err
	}
	guardSyntax(file)
	e.index(src, file)
	return starlark.FileProgram(file, predeclared.Has)
}

func (e *evaluator) index(src *source, file *syntax.File) {
	syntax.Walk(file, func(n syntax.Node) bool {
		if call, ok := n.(*syntax.CallExpr); ok {
			e.calls[e.pos(call.Lparen)] = call
		}
		return true
	})
}

func (e *evaluator) pos(p syntax.Position) Position {
	return Position{File: p.Filename(), Line: int(p.Line), Col: int(p.Col)}
}

// load runs a loaded file once. Loading the file that is being loaded is an
// error.
func (e *evaluator) load(thread *starlark.Thread, name string) (starlark.StringDict, error) {
	from := thread.Local(running).(*source)
	src, err := e.sources.load(from, name)
	if err != nil {
		return nil, e.sources.readFault(e.pos(thread.CallFrame(0).Pos), name, err)
	}
	m, ok := e.modules[src.rel]
	if ok && m == nil {
		return nil, fmt.Errorf("load %q: the files load each other", name)
	}
	if !ok {
		e.modules[src.rel] = nil
		sub := &starlark.Thread{Name: src.name, Load: e.load, Print: thread.Print}
		sub.SetLocal(running, src)
		sub.SetLocal(loading, true)
		// All files share one budget of steps.
		sub.Steps = thread.Steps
		m = &module{}
		m.globals, m.err = e.exec(sub, src)
		thread.Steps = sub.Steps
		if m.err == nil {
			m.globals.Freeze()
		}
		e.modules[src.rel] = m
	}
	if m.err != nil {
		return nil, e.explain(src, m.err)
	}
	return m.globals, nil
}

func (e *evaluator) printed(t *starlark.Thread, text string) {
	if e.print != nil {
		e.print(e.pos(t.CallFrame(1).Pos), text)
	}
}

func (e *evaluator) predeclared() starlark.StringDict {
	out := starlark.StringDict{
		"param":  starlark.NewBuiltin("param", e.param),
		"range":  starlark.NewBuiltin("range", rangeBounded),
		multiply: starlark.NewBuiltin("multiplication", multiplyBounded),
		add:      starlark.NewBuiltin("addition", addBounded),
		extend:   starlark.NewBuiltin("addition", extendBounded),
	}
	for _, c := range constructors() {
		out[c.name] = starlark.NewBuiltin(c.name, func(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
			return e.construct(t, c, args, kwargs)
		})
	}
	return out
}

// construct makes a value of its arguments, and for jobs and alloc sets puts
// it on the list of what the file declares.
func (e *evaluator) construct(t *starlark.Thread, c *constructor, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	at := e.pos(t.CallFrame(1).Pos)
	defer func(before int) {
		for _, f := range e.sources.found[before:] {
			e.place(f, t.CallStack())
		}
	}(len(e.sources.found))
	call := e.calls[at]
	if call != nil {
		start, _ := call.Span()
		at = e.pos(start)
	}
	m := &made{by: c, node: &node{kind: kindMap, pos: at, width: len(c.name), made: c}, vals: make(map[string]starlark.Value)}
	if len(args) > 0 {
		m.node.rest = true
		if err := e.note(at, len(c.name), fmt.Sprintf("write %s(name = value, ...)", c.name), "%s() takes named arguments only", c.name); err != nil {
			return nil, err
		}
	}
	var base *made
	for _, kv := range kwargs {
		name := string(kv[0].(starlark.String))
		namePos, value := argument(e, call, name, at)
		if name == "base" {
			b, ok := kv[1].(*made)
			if ok && b.by.name == c.name {
				base = b
				continue
			}
			m.node.rest = true
			if _, mistake := kv[1].(standIn); mistake {
				continue
			}
			if err := e.note(namePos, len(name), "", "base must be %s(...), not %s", c.name, kv[1].Type()); err != nil {
				return nil, err
			}
			continue
		}
		if _, ok := lookup(c.message, name); !ok && !(c.object && contains(objectNames, name)) && !(c.name == "override" && name == "index") {
			names := known(c.message, "base")
			if c.object {
				names = append(append([]string(nil), objectNames...), names...)
			}
			if err := e.sources.note(e.sources.unknownField(namePos, name, c.name+"()", names)); err != nil {
				return nil, err
			}
		}
		n, err := e.node(kv[1], value, namePos, 0)
		if err != nil {
			return nil, err
		}
		m.node.fields = append(m.node.fields, field{name: name, pos: namePos, value: n})
		m.vals[name] = kv[1]
	}
	if base != nil {
		m.inherit(base)
	}
	if c.object {
		if err := e.declare(t, m, at); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// inherit takes over what base has and m has not.
func (m *made) inherit(base *made) {
	has := make(map[string]bool)
	canonical := func(name string) string {
		if c, ok := lookup(m.by.message, name); ok {
			return string(c.fd.Name())
		}
		return name
	}
	for _, f := range m.node.fields {
		has[canonical(f.name)] = true
	}
	// A name and the number that it stands for replace each other.
	if has["band"] || has["priority"] {
		has["band"], has["priority"] = true, true
	}
	for _, f := range base.node.fields {
		if !has[canonical(f.name)] {
			m.node.fields = append(m.node.fields, f)
			m.vals[f.name] = base.vals[f.name]
		}
	}
}

func (e *evaluator) declare(t *starlark.Thread, m *made, at Position) error {
	if t.Local(loading) != nil {
		return e.faultAt(at, len(m.by.name), "put it into a function and call that from the main file",
			"%s() at the top level of a loaded file", m.by.name)
	}
	if len(e.declared) >= maxObjects {
		return e.faultAt(at, len(m.by.name), "", "the file declares more than %d objects", maxObjects)
	}
	e.declared = append(e.declared, m)
	return nil
}

// argument finds where a named argument of a call was written.
func argument(e *evaluator, call *syntax.CallExpr, name string, at Position) (Position, syntax.Expr) {
	if call == nil {
		return at, nil
	}
	for _, a := range call.Args {
		if b, ok := a.(*syntax.BinaryExpr); ok && b.Op == syntax.EQ {
			if id, ok := b.X.(*syntax.Ident); ok && id.Name == name {
				return e.pos(id.NamePos), b.Y
			}
		}
	}
	return at, nil
}

func (e *evaluator) faultAt(pos Position, width int, hint, format string, args ...any) *Fault {
	return &Fault{Pos: pos, Width: width, Source: e.sources.line(pos), What: fmt.Sprintf(format, args...), Hint: hint}
}

// note records a fault with which the evaluation goes on.
func (e *evaluator) note(pos Position, width int, hint, format string, args ...any) error {
	return e.sources.note(e.faultAt(pos, width, hint, format, args...))
}

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

// explain turns an error of the interpreter into a fault with its place.
func (e *evaluator) explain(src *source, err error) *Fault {
	var fault *Fault
	var eval *starlark.EvalError
	if errors.As(err, &eval) {
		if !errors.As(eval.Unwrap(), &fault) {
			fault = &Fault{What: plainMessage(eval.Msg)}
		}
		e.place(fault, eval.CallStack)
		return fault
	}
	if errors.As(err, &fault) {
		return fault
	}
	return e.syntaxFault(src, err)
}

// place gives a fault the innermost place in a file, and the calls around it.
func (e *evaluator) place(fault *Fault, stack starlark.CallStack) {
	var places []Position
	for i := len(stack) - 1; i >= 0; i-- {
		if p := e.pos(stack[i].Pos); stack[i].Pos.IsValid() && p.Line > 0 {
			places = append(places, p)
		}
	}
	if fault.Pos.Line == 0 && len(places) > 0 {
		fault.Pos = places[0]
		fault.Source = e.sources.line(fault.Pos)
	}
	for _, p := range places[min(1, len(places)):] {
		if p.Line != fault.Pos.Line || p.File != fault.Pos.File {
			fault.Calls = append(fault.Calls, p)
		}
	}
	if len(fault.Calls) > 5 {
		fault.Calls = fault.Calls[:5]
	}
}
