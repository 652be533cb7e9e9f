package sim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestMarksInTheSource checks that every mark that the package names is in the list. World.mark
// panics on an unknown name, but only in a seed that reaches it.
func TestMarksInTheSource(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || f.Sel.Name != "mark" {
				return true
			}
			if lit, ok := call.Args[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				found++
				if mark, _ := strconv.Unquote(lit.Value); Marks[mark] == "" {
					t.Errorf("%s: mark %q is not in the list of marks", set.Position(lit.Pos()), mark)
				}
			}
			return true
		})
	}
	if found < 50 {
		t.Errorf("found %d marks in the source, want at least 50", found)
	}
}
