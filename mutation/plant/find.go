package plant

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strings"
)

// File is one parsed source file.
type File struct {
	// Name is the path from the root of the module, with slashes.
	Name string
	Text []byte
	AST  *ast.File
}

// Package is a type-checked package.
type Package struct {
	// Path is the import path.
	Path  string
	Fset  *token.FileSet
	Types *types.Package
	Info  *types.Info
	Files []*File
}

// Mutant is one small bug at one place.
type Mutant struct {
	Package, File string
	Line, Column  int
	// Func is the function around it, "Type.Method" for methods; empty for a variable's value.
	Func     string
	Operator Operator
	// Was and Is are the source text before and after.
	Was, Is string

	edits []edit
}

// ID names the mutant by what it changes, so that it is found again after
// unrelated changes of the file.
func (m *Mutant) ID() string {
	return fmt.Sprintf("%s %s %s: %s => %s", m.File, m.Func, m.Operator, oneLine(m.Was), oneLine(m.Is))
}

func (m *Mutant) String() string {
	return fmt.Sprintf("%s:%d:%d: %s: %s => %s", m.File, m.Line, m.Column, m.Operator, oneLine(m.Was), oneLine(m.Is))
}

// oneLine joins lines and cuts what is long.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 100 {
		s = s[:97] + "..."
	}
	return s
}

// Find returns all mutants of the package, in the order of its files and of the text.
func Find(p *Package) []*Mutant {
	var all []*Mutant
	for _, file := range p.Files {
		if ast.IsGenerated(file.AST) {
			continue
		}
		f := &finder{pkg: p, file: file, imports: importNames(file.AST, p.Info)}
		ast.Inspect(file.AST, f.enter)
		all = append(all, f.found...)
	}
	return all
}

// importNames returns the name by which the file knows each imported package.
func importNames(file *ast.File, info *types.Info) map[*types.Package]string {
	names := map[*types.Package]string{}
	for _, spec := range file.Imports {
		if name := info.PkgNameOf(spec); name != nil && name.Name() != "_" && name.Name() != "." {
			names[name.Imported()] = name.Name()
		}
	}
	return names
}

// finder walks one file.
type finder struct {
	pkg     *Package
	file    *File
	imports map[*types.Package]string
	// Nodes from the file to the present one.
	stack []ast.Node
	found []*Mutant
}

// enter looks at one node. It is the function of ast.Inspect.
func (f *finder) enter(n ast.Node) bool {
	if n == nil {
		f.stack = f.stack[:len(f.stack)-1]
		return true
	}
	if f.skip(n) {
		return false
	}
	switch n := n.(type) {
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.CallExpr:
		f.arguments(n)
	case *ast.IfStmt:
		if !onlyPanics(n.Body.List) {
			f.add(Branch, n.Cond, f.text(n.Cond), "false", edit{f.offset(n.Cond.Pos()), f.offset(n.Cond.End()), "(", ") && !mutationIs(\x00)"})
		}
	case *ast.BlockStmt:
		f.statements(n.List)
	case *ast.CaseClause:
		f.caseClause(n)
		f.statements(n.Body)
	case *ast.CommClause:
		f.statements(n.Body)
	}
	if e, ok := n.(ast.Expr); ok && f.isConstant(e) {
		f.constant(e)
		return false
	}
	f.stack = append(f.stack, n)
	return true
}

// skip reports whether nothing in the node is to be changed: declarations of
// constants, types, imports, and what a test cannot be expected to see.
func (f *finder) skip(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok != token.VAR
	case *ast.ArrayType, *ast.StructType, *ast.InterfaceType, *ast.MapType, *ast.FuncType, *ast.FieldList, *ast.BasicLit, *ast.Ident:
		e, ok := n.(ast.Expr)
		return !ok || !f.isConstant(e)
	case *ast.CallExpr:
		return f.isUnseen(n)
	}
	return false
}

// isUnseen reports whether a call logs, panics, or asks for a planted bug.
func (f *finder) isUnseen(call *ast.CallExpr) bool {
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		return fun.Name == "panic"
	case *ast.SelectorExpr:
		used := f.pkg.Info.Uses[fun.Sel]
		if used == nil || used.Pkg() == nil {
			return false
		}
		path := used.Pkg().Path()
		return path == "log/slog" || strings.HasSuffix(path, "/mutant")
	}
	return false
}

func onlyPanics(list []ast.Stmt) bool {
	if len(list) != 1 {
		return false
	}
	e, ok := list[0].(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	id, ok := call.Fun.(*ast.Ident)
	return ok && id.Name == "panic"
}

// turned and moved say what becomes of an operator of a comparison.
var (
	turned = map[token.Token]token.Token{
		token.EQL: token.NEQ, token.NEQ: token.EQL,
		token.LSS: token.GEQ, token.GEQ: token.LSS, token.GTR: token.LEQ, token.LEQ: token.GTR,
	}
	moved      = map[token.Token]token.Token{token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR}
	logic      = map[token.Token]token.Token{token.LAND: token.LOR, token.LOR: token.LAND}
	arithmetic = map[token.Token]token.Token{token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL}
)

func (f *finder) binary(e *ast.BinaryExpr) {
	if f.isConstant(e) {
		return
	}
	f.condition(Boundary, e, moved)
	f.condition(Comparison, e, turned)
	f.condition(Logic, e, logic)
	op, ok := arithmetic[e.Op]
	if !ok {
		return
	}
	if t, isBasic := f.pkg.Info.TypeOf(e).Underlying().(*types.Basic); isBasic && t.Info()&types.IsNumeric != 0 {
		f.value(Arithmetic, e, f.operate(e, op))
	}
}

// condition adds a mutant that replaces the operator of a boolean expression.
func (f *finder) condition(kind Operator, e *ast.BinaryExpr, to map[token.Token]token.Token) {
	op, ok := to[e.Op]
	if !ok || strings.Contains(f.text(e), "\n") {
		return
	}
	is := f.operate(e, op)
	f.add(kind, e, f.text(e), is, edit{
		f.offset(e.Pos()), f.offset(e.End()),
		"(mutationIs(\x00) && (" + is + ") || !mutationIs(\x00) && (", "))",
	})
}

func (f *finder) operate(e *ast.BinaryExpr, op token.Token) string {
	return f.text(e.X) + " " + op.String() + " " + f.text(e.Y)
}

// value adds a mutant that replaces an expression by another one of its type.
func (f *finder) value(kind Operator, e ast.Expr, is string) {
	if ed, ok := f.instead(e, is); ok {
		f.add(kind, e, f.text(e), is, ed)
	}
}

// instead is the edit by which an expression has another value; ok is false
// where its type has no name in this file.
func (f *finder) instead(e ast.Expr, is string) (_ edit, ok bool) {
	t, ok := f.spell(f.pkg.Info.TypeOf(e))
	if !ok || strings.Contains(is, "\n") || strings.Contains(f.text(e), "\n") {
		return edit{}, false
	}
	return edit{
		f.offset(e.Pos()), f.offset(e.End()),
		"func() " + t + " { if mutationIs(\x00) { return " + is + " }; return ", " }()",
	}, true
}

// spell writes a type as this file can; ok is false if it cannot.
func (f *finder) spell(t types.Type) (_ string, ok bool) {
	ok = t != nil
	if !ok {
		return "", false
	}
	s := types.TypeString(t, func(p *types.Package) string {
		if p == f.pkg.Types {
			return ""
		}
		name, known := f.imports[p]
		ok = ok && known
		return name
	})
	return s, ok && !strings.Contains(s, "\n") && !strings.HasPrefix(s, "untyped")
}

// isConstant reports whether the compiler knows the value.
func (f *finder) isConstant(e ast.Expr) bool {
	tv, ok := f.pkg.Info.Types[e]
	return ok && tv.Value != nil
}

// smallMax is the largest integer that is changed by one; a larger one is halved.
const smallMax = 64

func (f *finder) constant(e ast.Expr) {
	if f.isLabel(e) {
		return
	}
	tv := f.pkg.Info.Types[e]
	if !plainType(tv.Type) {
		return
	}
	switch v := tv.Value; v.Kind() {
	case constant.Bool:
		// A named bool is a switch of the build; what it guards has its own mutants.
		if id, ok := e.(*ast.Ident); ok && f.pkg.Info.Uses[id].Parent() == types.Universe {
			f.value(Constant, e, constant.MakeBool(!constant.BoolVal(v)).ExactString())
		}
	case constant.Int:
		one, two := constant.MakeInt64(1), constant.MakeInt64(2)
		is := constant.BinaryOp(v, token.ADD, one)
		if constant.Compare(v, token.GTR, constant.MakeInt64(smallMax)) {
			is = constant.BinaryOp(v, token.QUO_ASSIGN, two)
		}
		f.value(Constant, e, is.ExactString())
	}
}

// isLabel reports whether a constant stands where only a constant may: in a
// case, or as the key of an array's element.
func (f *finder) isLabel(e ast.Expr) bool {
	if len(f.stack) == 0 {
		return true
	}
	switch parent := f.stack[len(f.stack)-1].(type) {
	case *ast.CaseClause:
		return true
	case *ast.KeyValueExpr:
		return parent.Key == e
	}
	return false
}

// plainType reports whether a type is a number or a bool and no enumeration.
func plainType(t types.Type) bool {
	switch t := types.Unalias(t).(type) {
	case *types.Basic:
		return t.Info()&types.IsUntyped == 0 && t.Info()&(types.IsInteger|types.IsBoolean) != 0
	case *types.Named:
		return t.Obj().Pkg() != nil && t.Obj().Pkg().Path() == "time" && t.Obj().Name() == "Duration"
	}
	return false
}

// statements adds a mutant for each statement that can be left out.
func (f *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := ast.Unparen(s.X).(*ast.CallExpr); ok && f.isUnseen(call) {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || allBlank(s.Lhs) {
				continue
			}
		case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
		case *ast.BranchStmt:
			if s.Tok == token.FALLTHROUGH {
				continue
			}
		case *ast.ReturnStmt:
			if len(s.Results) > 0 {
				continue
			}
		default:
			continue
		}
		f.add(Statement, s, f.text(s), "nothing", edit{f.offset(s.Pos()), f.offset(s.End()), "if !mutationIs(\x00) { ", " }"})
	}
}

func allBlank(list []ast.Expr) bool {
	for _, e := range list {
		if id, ok := e.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

// caseClause adds a mutant that does nothing in a case.
func (f *finder) caseClause(c *ast.CaseClause) {
	if len(c.Body) == 0 {
		return
	}
	first, last := c.Body[0], c.Body[len(c.Body)-1]
	if onlyPanics(c.Body) {
		return
	}
	if b, ok := last.(*ast.BranchStmt); ok && b.Tok == token.FALLTHROUGH {
		return
	}
	f.add(Case, c, string(f.file.Text[f.offset(c.Pos()):f.offset(last.End())]), "no case",
		edit{f.offset(first.Pos()), f.offset(last.End()), "if !mutationIs(\x00) { ", " }"})
}

// arguments adds a mutant for each pair of neighbouring arguments that can be swapped.
func (f *finder) arguments(call *ast.CallExpr) {
	sig, ok := f.pkg.Info.TypeOf(call.Fun).(*types.Signature)
	if !ok || call.Ellipsis.IsValid() {
		return
	}
	fixed := sig.Params().Len()
	if sig.Variadic() {
		fixed--
	}
	for i := 0; i+1 < min(fixed, len(call.Args)); i++ {
		a, b := call.Args[i], call.Args[i+1]
		if !f.swappable(a, b) {
			continue
		}
		first, ok := f.instead(a, f.text(b))
		second, ok2 := f.instead(b, f.text(a))
		if !ok || !ok2 {
			continue
		}
		f.add(Arguments, call, f.text(call.Fun)+"(.. "+f.text(a)+", "+f.text(b)+" ..)", f.text(b)+", "+f.text(a), first, second)
	}
}

func (f *finder) swappable(a, b ast.Expr) bool {
	ta, tb := f.pkg.Info.TypeOf(a), f.pkg.Info.TypeOf(b)
	return ta != nil && tb != nil && types.Identical(ta, tb) && !f.isConstant(a) && !f.isConstant(b) &&
		isQuiet(a) && isQuiet(b) && f.text(a) != f.text(b)
}

// isQuiet reports whether an expression only reads variables.
func isQuiet(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name != "nil"
	case *ast.SelectorExpr:
		return isQuiet(e.X)
	}
	return false
}

func (f *finder) text(n ast.Node) string {
	return string(f.file.Text[f.offset(n.Pos()):f.offset(n.End())])
}

func (f *finder) offset(p token.Pos) int { return f.pkg.Fset.Position(p).Offset }

func (f *finder) add(kind Operator, at ast.Node, was, is string, edits ...edit) {
	pos := f.pkg.Fset.Position(at.Pos())
	f.found = append(f.found, &Mutant{
		Package: f.pkg.Path, File: f.file.Name, Line: pos.Line, Column: pos.Column,
		Func: f.function(), Operator: kind, Was: was, Is: is, edits: edits,
	})
}

// function names the declared function around the present node.
func (f *finder) function() string {
	for _, n := range f.stack {
		if d, ok := n.(*ast.FuncDecl); ok {
			if d.Recv == nil || len(d.Recv.List) == 0 {
				return d.Name.Name
			}
			return strings.TrimPrefix(f.text(d.Recv.List[0].Type), "*") + "." + d.Name.Name
		}
	}
	return ""
}
