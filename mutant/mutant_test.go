package mutant_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"borg/mutant"
)

// names are the constants of this package, by their identifiers.
func names(t *testing.T) map[string]mutant.Name {
	f, err := parser.ParseFile(token.NewFileSet(), "all.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]mutant.Name{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				found[v.Names[0].Name] = mutant.Name(text)
			}
		}
		return true
	})
	return found
}

// planted finds every mutant.Planted(mutant.X) in the tree.
func planted(t *testing.T) map[string][]string {
	places := map[string][]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() != ".." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || selected(call.Fun) != "Planted" {
				return true
			}
			name := selected(call.Args[0])
			if name == "" {
				t.Errorf("%s: want mutant.Planted of one of the names", fset.Position(call.Pos()))
			}
			places[name] = append(places[name], fset.Position(call.Pos()).String())
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return places
}

// selected is X of mutant.X.
func selected(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok && x.Name == "mutant" {
			return s.Sel.Name
		}
	}
	return ""
}

// TestNames holds that each name stands once in All and is planted at one
// place, and that nothing else is.
func TestNames(t *testing.T) {
	consts, places := names(t), planted(t)
	listed := map[mutant.Name]int{}
	for _, m := range mutant.All {
		listed[m.Name]++
		if m.Plants == "" || m.Failure == "" || m.Caught == "" || m.Aim == "" {
			t.Errorf("%s: a field of it is empty", m.Name)
		}
	}
	for _, ident := range slices.Sorted(maps.Keys(consts)) {
		if n := listed[consts[ident]]; n != 1 {
			t.Errorf("%s stands %d times in All, want once", ident, n)
		}
		at := places[ident]
		// What only the kernel's side does is planted in its model too.
		modelled := len(at) == 2 && slices.ContainsFunc(at, func(place string) bool { return strings.Contains(place, "fauxmaster/pretend/") })
		if len(at) != 1 && !modelled {
			t.Errorf("%s is planted at %d places, want one %v", ident, len(at), at)
		}
	}
	for ident, at := range places {
		if _, ok := consts[ident]; !ok {
			t.Errorf("%s is planted and not a name of this package %v", ident, at)
		}
	}
	if len(mutant.All) != len(consts) {
		t.Errorf("%d are listed, and there are %d names", len(mutant.All), len(consts))
	}
}

// TestPage holds that docs/mutants.md lists all mutants as they are, in order.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../docs/mutants.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows, want []string
	table, _, ok := strings.Cut(string(page), "\n## In a real borglet\n")
	if !ok {
		t.Fatal("docs/mutants.md has no section on a real borglet, before which its table ends")
	}
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "| `") {
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	for _, m := range mutant.All {
		failure := m.Failure
		if number, link, ok := strings.Cut(failure, ": "); ok {
			failure = "[" + number + "](" + link + ")"
		}
		want = append(want, "| `"+string(m.Name)+"` | "+m.Plants+" | "+failure+" | "+m.Caught+" | "+m.Aim+" |")
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the table of docs/mutants.md is not as All is; want\n%s", strings.Join(want, "\n"))
	}
}
