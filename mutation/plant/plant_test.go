package plant

import (
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// exported opens what the compiler says of a package of the standard library.
func exported(path string) (io.ReadCloser, error) {
	name, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}", path).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", path, err)
	}
	return os.Open(strings.TrimSpace(string(name)))
}

// read parses and checks one file as a package of its own.
func read(t *testing.T, name string, text []byte) *Package {
	t.Helper()
	p := &Package{Path: "example/sample", Fset: token.NewFileSet()}
	parsed, err := parser.ParseFile(p.Fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	p.Info = &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Implicits: map[ast.Node]types.Object{},
	}
	conf := types.Config{Importer: importer.ForCompiler(p.Fset, "gc", exported)}
	if p.Types, err = conf.Check(p.Path, p.Fset, []*ast.File{parsed}, p.Info); err != nil {
		t.Fatal(err)
	}
	p.Files = []*File{{Name: name, Text: text, AST: parsed}}
	return p
}

// TestFind compares the mutants of a small file with testdata/sample.txt.
func TestFind(t *testing.T) {
	text, err := os.ReadFile("testdata/sample.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, m := range Find(read(t, "sample.go", text)) {
		fmt.Fprintln(&got, m)
	}
	const golden = "testdata/sample.txt"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("mutants of the sample:\n%s\nwant:\n%s", got.String(), want)
	}
}

// program prints what each of its mutants makes different.
const program = `package main

import "fmt"

func fee(age, miles int) int {
	if age < 18 {
		return 0
	}
	sum := 5
	sum += miles - age
	switch {
	case miles > 100:
		sum = 50
	}
	return sum
}

func main() {
	for _, age := range []int{17, 18, 40} {
		for _, miles := range []int{100, 101} {
			fmt.Println(fee(age, miles))
		}
	}
}
`

// TestWrite builds a program with all of its mutants and runs it with each: with
// none it prints what the original prints, with each something else.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := func(name string, text, hook []byte) string {
		write("main.go", text)
		write(HookFile, hook)
		out := filepath.Join(dir, name)
		cmd := exec.Command("go", "build", "-o", out, ".")
		cmd.Dir = dir
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s\n%s", err, said, text)
		}
		return out
	}
	run := func(name string, env ...string) string {
		cmd := exec.Command(name)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		return fmt.Sprint(string(out), err)
	}
	write("go.mod", []byte("module example\n\ngo 1.24\n"))
	p := read(t, "main.go", []byte(program))
	mutants := Find(p)
	if len(mutants) < 15 {
		t.Fatalf("%d mutants, want at least 15", len(mutants))
	}
	want := run(build("original", []byte(program), []byte("package main\n")))
	text := Write(p.Files[0], mutants, 1)
	if a, b := strings.Count(string(text), "\n"), strings.Count(program, "\n"); a != b {
		t.Errorf("%d lines with mutants, %d without", a, b)
	}
	chosen := build("chosen", text, Hook("main", false))
	if got := run(chosen, NumberVar+"=0"); got != want {
		t.Errorf("without a mutant:\n%s\nwant:\n%s", got, want)
	}
	for i, m := range mutants {
		if got := run(chosen, fmt.Sprintf("%s=%d", NumberVar, i+1)); got == want {
			t.Errorf("nothing changes with %v", m)
		}
	}
	seen := filepath.Join(dir, "seen")
	write("seen", make([]byte, len(mutants)+1))
	if got := run(build("recorded", text, Hook("main", true)), SeenVar+"="+seen); got != want {
		t.Errorf("while it is recorded:\n%s\nwant:\n%s", got, want)
	}
	passed, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range mutants {
		if passed[i+1] == 0 {
			t.Errorf("not recorded as passed: %v", m)
		}
	}
}
