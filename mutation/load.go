package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"slices"
	"strings"

	"borg/mutation/plant"
)

// listed is a package as `go list` tells of it.
type listed struct {
	ImportPath, Dir, Export   string
	GoFiles, CgoFiles         []string
	TestGoFiles, XTestGoFiles []string
	Imports, Deps             []string
	Module                    *struct{ Path, Dir string }
}

// tree is the module with its types.
type tree struct {
	// module is its import path, root its directory.
	module, root string
	packages     map[string]*listed
	fset         *token.FileSet
	imports      types.Importer
	checked      map[string]*plant.Package
}

// goList runs go list and decodes what it prints.
func goList(ctx context.Context, args ...string) ([]*listed, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	var all []*listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &listed{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all = append(all, p)
	}
}

const listFields = "-json=ImportPath,Dir,Export,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,Imports,Deps,Module"

// load lists the module and what it imports, compiled.
func load(ctx context.Context, tags string) (*tree, error) {
	all, err := goList(ctx, listFields, "-deps", "-export", "-tags", tags, "./...")
	if err != nil {
		return nil, err
	}
	t := &tree{packages: map[string]*listed{}, fset: token.NewFileSet(), checked: map[string]*plant.Package{}}
	for _, p := range all {
		t.packages[p.ImportPath] = p
	}
	main, err := goList(ctx, listFields, "-tags", tags, ".")
	if err != nil {
		return nil, err
	}
	t.module, t.root = main[0].Module.Path, main[0].Module.Dir
	t.imports = importer.ForCompiler(t.fset, "gc", func(path string) (io.ReadCloser, error) {
		p := t.packages[path]
		if p == nil || p.Export == "" {
			return nil, fmt.Errorf("no compiled package %s", path)
		}
		return os.Open(p.Export)
	})
	return t, nil
}

// ours returns the import paths of the module's packages that match the patterns.
func (t *tree) ours(ctx context.Context, patterns []string, tags string) ([]string, error) {
	all, err := goList(ctx, slices.Concat([]string{"-json=ImportPath", "-tags", tags}, patterns)...)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range all {
		if known := t.packages[p.ImportPath]; known != nil && len(known.GoFiles) > 0 {
			paths = append(paths, p.ImportPath)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// check parses and type-checks a package.
func (t *tree) check(path string) (*plant.Package, error) {
	if p := t.checked[path]; p != nil {
		return p, nil
	}
	l := t.packages[path]
	p := &plant.Package{Path: path, Fset: t.fset}
	for _, name := range slices.Concat(l.GoFiles, l.CgoFiles) {
		text, err := os.ReadFile(filepath.Join(l.Dir, name))
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(t.root, filepath.Join(l.Dir, name))
		if err != nil {
			return nil, err
		}
		p.Files = append(p.Files, &plant.File{Name: filepath.ToSlash(rel), Text: text})
	}
	var err error
	if p.Types, p.Info, err = t.typesOf(p, func(f *plant.File) []byte { return f.Text }, true); err != nil {
		return nil, err
	}
	// What cgo compiles cannot be overlaid.
	p.Files = p.Files[:len(l.GoFiles)]
	t.checked[path] = p
	return p, nil
}

// typesOf checks the package with the texts that text returns. keep stores the
// parsed files in the package.
func (t *tree) typesOf(p *plant.Package, text func(*plant.File) []byte, keep bool) (*types.Package, *types.Info, error) {
	fset := t.fset
	if !keep {
		fset = token.NewFileSet()
	}
	var files []*ast.File
	for _, f := range p.Files {
		parsed, err := parser.ParseFile(fset, f.Name, text(f), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		if keep {
			f.AST = parsed
		}
		files = append(files, parsed)
	}
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Implicits: map[ast.Node]types.Object{},
	}
	conf := types.Config{Importer: t.imports, FakeImportC: true}
	checked, err := conf.Check(p.Path, fset, files, info)
	return checked, info, err
}

// valid returns the mutants of one package with which it still compiles. Most
// do; where a set does not, its halves are tried.
func (t *tree) valid(p *plant.Package, mutants []*plant.Mutant) []*plant.Mutant {
	if len(mutants) == 0 || t.compiles(p, mutants) {
		return mutants
	}
	if len(mutants) == 1 {
		return nil
	}
	half := len(mutants) / 2
	return append(t.valid(p, mutants[:half:half]), t.valid(p, mutants[half:])...)
}

func (t *tree) compiles(p *plant.Package, mutants []*plant.Mutant) bool {
	hook := &plant.File{Name: plant.HookFile}
	with := &plant.Package{Path: p.Path, Files: append(slices.Clone(p.Files), hook)}
	for _, name := range t.packages[p.Path].CgoFiles {
		text, err := os.ReadFile(filepath.Join(t.packages[p.Path].Dir, name))
		if err != nil {
			return false
		}
		with.Files = append(with.Files, &plant.File{Name: name, Text: text})
	}
	_, _, err := t.typesOf(with, func(f *plant.File) []byte {
		if f == hook {
			return plant.Hook(p.Types.Name(), false)
		}
		return plant.Write(f, mutants, 1)
	}, false)
	return err == nil
}

// short is an import path without the module's.
func (t *tree) short(path string) string {
	if path == t.module {
		return "."
	}
	return strings.TrimPrefix(path, t.module+"/")
}
