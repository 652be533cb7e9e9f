package cfg

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"go.starlark.net/starlark"
)

// Param is a parameter that a file reads.
type Param struct {
	Name string
	// The value used, as text.
	Value string
	// It was given from outside; otherwise the file's default was used.
	Given bool
	Help  string
}

// params are the values given by --set, and those that the file asks for.
type params struct {
	given map[string]string
	used  map[string]Param
}

// param is the built-in param(name, default = None, help = ""). The type of
// the default is the type of the value; without a default it is text and must
// be given.
func (e *evaluator) param(t *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var name, help string
	var def starlark.Value = starlark.None
	if err := starlark.UnpackArgs(b.Name(), args, kwargs, "name", &name, "default?", &def, "help?", &help); err != nil {
		return nil, err
	}
	text, given := e.params.given[name]
	p := Param{Name: name, Given: given, Help: help}
	if !given {
		if def == starlark.None {
			return nil, e.faultAt(e.pos(t.CallFrame(1).Pos), 1, fmt.Sprintf("give it with --set %s=VALUE", name), "parameter %q has no value", name)
		}
		p.Value = def.String()
		if s, ok := starlark.AsString(def); ok {
			p.Value = s
		}
		e.params.used[name] = p
		return def, nil
	}
	p.Value = text
	e.params.used[name] = p
	v, err := parseParam(text, def)
	if err != nil {
		return nil, e.faultAt(e.pos(t.CallFrame(1).Pos), 1, fmt.Sprintf("its default is %s", def.String()), "--set %s=%s: %v", name, text, err)
	}
	return v, nil
}

func parseParam(text string, like starlark.Value) (starlark.Value, error) {
	switch like.(type) {
	case starlark.NoneType, starlark.String:
		return starlark.String(text), nil
	case starlark.Bool:
		v, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("it must be true or false")
		}
		return starlark.Bool(v), nil
	case starlark.Int:
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("it must be a whole number")
		}
		return starlark.MakeInt64(v), nil
	case starlark.Float:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("it must be a number")
		}
		return starlark.Float(v), nil
	default:
		return nil, fmt.Errorf("a parameter is text, a number or a truth value, not a %s", like.Type())
	}
}

// unused is a fault for values that no param() asked for: a mistyped name must
// not pass for one that was heard.
func (p *params) unused(file string) *Fault {
	var extra []string
	for name := range p.given {
		if _, ok := p.used[name]; !ok {
			extra = append(extra, name)
		}
	}
	if len(extra) == 0 {
		return nil
	}
	sort.Strings(extra)
	var has []string
	for _, u := range p.list() {
		has = append(has, u.Name)
	}
	hint := "it reads no parameters"
	if near := nearest(extra[0], has); near != "" {
		hint = fmt.Sprintf("did you mean --set %s=%s?", near, p.given[extra[0]])
	} else if len(has) > 0 {
		hint = "it reads " + strings.Join(has, ", ")
	}
	return &Fault{Pos: Position{File: file}, What: fmt.Sprintf("the file has no parameter %q", extra[0]), Hint: hint}
}

// list is the parameters that were read, by name.
func (p *params) list() []Param {
	out := make([]Param, 0, len(p.used))
	for _, u := range p.used {
		out = append(out, u)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}
