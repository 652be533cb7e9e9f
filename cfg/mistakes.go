package cfg

import (
	"errors"
	"fmt"
	"strings"

	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// syntaxFault is an error of the parser or of the resolver with its place.
func (e *evaluator) syntaxFault(src *source, err error) *Fault {
	var list resolve.ErrorList
	if errors.As(err, &list) && len(list) > 0 {
		for _, one := range list[1:] {
			if e.sources.note(e.nameFault(one)) != nil {
				break
			}
		}
		err = list[0]
	}
	var parse syntax.Error
	if errors.As(err, &parse) {
		f := e.faultAt(e.pos(parse.Pos), 1, "", "not a job file: %s", plainMessage(parse.Msg))
		return f
	}
	var res resolve.Error
	if errors.As(err, &res) {
		return e.nameFault(res)
	}
	return &Fault{Pos: Position{File: src.name}, What: plainMessage(err.Error())}
}

func (e *evaluator) nameFault(res resolve.Error) *Fault {
	msg := plainMessage(res.Msg)
	f := e.faultAt(e.pos(res.Pos), 1, "", "%s", msg)
	if name, ok := strings.CutPrefix(msg, "undefined: "); ok {
		name, _, _ = strings.Cut(name, " ")
		f.Width = len(name)
		f.What = fmt.Sprintf("there is nothing called %q", name)
		f.Hint = ""
		var names []string
		for n := range e.predeclared() {
			if n != multiply && n != add && n != extend {
				names = append(names, n)
			}
		}
		for n := range starlark.Universe {
			names = append(names, n)
		}
		words := map[string]string{"true": "True", "false": "False", "null": "None", "nil": "None", "none": "None"}
		if w := words[name]; w != "" {
			f.Hint = fmt.Sprintf("did you mean %s?", w)
		} else if near := nearestSorted(name, names); near != "" {
			f.Hint = fmt.Sprintf("did you mean %q?", near)
		}
	}
	return f
}

// plainMessage takes the interpreter's own words out of a message.
func plainMessage(msg string) string {
	msg = strings.TrimPrefix(msg, "Starlark computation cancelled: ")
	msg = strings.TrimPrefix(strings.TrimPrefix(msg, "multiplication: "), "addition: ")
	if i := strings.Index(msg, " (did you mean"); i >= 0 && strings.HasPrefix(msg, "undefined: ") {
		msg = msg[:i]
	}
	return msg
}

// undefined records the names that a file uses and that do not exist, and returns them;
// none if something else is wrong with its names too.
func (e *evaluator) undefined(err error) []string {
	var list resolve.ErrorList
	if !errors.As(err, &list) {
		return nil
	}
	var names []string
	for _, one := range list {
		name, ok := strings.CutPrefix(one.Msg, "undefined: ")
		if !ok {
			return nil
		}
		name, _, _ = strings.Cut(name, " ")
		names = append(names, name)
	}
	for _, one := range list {
		if e.sources.note(e.nameFault(one)) != nil {
			return nil
		}
	}
	return names
}

// standIn takes the place of a name that does not exist, so that the rest of the file
// can be looked at. Whatever is done with it gives it again.
type standIn string

var (
	_ starlark.Callable  = standIn("")
	_ starlark.HasAttrs  = standIn("")
	_ starlark.HasBinary = standIn("")
	_ starlark.Iterable  = standIn("")
)

func (s standIn) String() string                      { return string(s) }
func (s standIn) Name() string                        { return string(s) }
func (s standIn) Type() string                        { return "name that does not exist" }
func (s standIn) Freeze()                             {}
func (s standIn) Truth() starlark.Bool                { return starlark.True }
func (s standIn) Hash() (uint32, error)               { return starlark.String(s).Hash() }
func (s standIn) Attr(string) (starlark.Value, error) { return s, nil }
func (s standIn) AttrNames() []string                 { return nil }
func (s standIn) Iterate() starlark.Iterator          { return starlark.Tuple(nil).Iterate() }
func (s standIn) CallInternal(*starlark.Thread, starlark.Tuple, []starlark.Tuple) (starlark.Value, error) {
	return s, nil
}

// Binary is the result of an operator with the stand-in on either side.
func (s standIn) Binary(syntax.Token, starlark.Value, starlark.Side) (starlark.Value, error) {
	return s, nil
}
