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
