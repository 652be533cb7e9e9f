package cfg

import (
	"errors"
	"fmt"
	"sort"

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
