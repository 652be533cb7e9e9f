package borg_test

import (
	"errors"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const limitsPage = "docs/limits.md"

var (
	// A line of the page that names the package of the tables after it.
	limitsOf = regexp.MustCompile("^`([a-z/]+)`[ ,:]")
	// | limit | figure | ... | `constant` |
	limitRow = regexp.MustCompile("^\\| .* \\| ([0-9][^|]*) \\|(?: [^|]* \\|)? `([A-Za-z]+)` \\|$")
)

// maximaExcused are packages of which the page lists all constants that are called max*, but for some.
var maximaExcused = map[string]map[string]string{
	"proto/door":           {},
	"proto/door/entrance":  {},
	"borgmaster/admission": {},
	"borgmaster/watch":     {},
	"borglet": {
		"maxExtents":       "it bounds the work of one measurement, which is approximate beyond it",
		"maxUIDBytes":      "masters make the ids",
		"maxNoticeNs":      "masters order less: limits of the cell",
		"maxReasonBytes":   "masters say less: limits of the cell",
		"maxIssueFailures": "it delays a round of renewals, and refuses nothing",
		"maxLogOffset":     "no log has so many bytes",
		"maxExecRates":     "it drops users who lose nothing by that",
	},
}

// TestLimitsPage holds every figure on the page of limits to the constant that
// it names, and wants all of the cell's limits to be there.
func TestLimitsPage(t *testing.T) {
	page, err := os.ReadFile(limitsPage)
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string][]string)
	dir := ""
	var known map[string]int64
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if m := limitsOf.FindStringSubmatch(line); m != nil {
			dir, known = m[1], constantsOf(t, m[1])
		}
		m := limitRow.FindStringSubmatch(line)
		switch {
		case m == nil && strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| limit |"):
			t.Errorf("%s: not a row of limits: %s", limitsPage, line)
		case m != nil:
			figure, name := m[1], m[2]
			listed[dir] = append(listed[dir], name)
			got, ok := figureOf(figure)
			want, there := known[name]
			if !ok || !there || got != want {
				t.Errorf("%s says %s = %s; in %s it is %d (known: %v)", limitsPage, name, figure, dir, want, there)
			}
		}
	}
	for _, name := range constantsIn(t, "borgmaster/cell/limits.go") {
		if name != "second" && !slices.Contains(listed["borgmaster/cell"], name) {
			t.Errorf("%s does not list %s of borgmaster/cell", limitsPage, name)
		}
	}
	for dir, excused := range maximaExcused {
		for name := range constantsOf(t, dir) {
			if isMax := strings.HasPrefix(strings.ToLower(name), "max"); isMax && !slices.Contains(listed[dir], name) == (excused[name] == "") {
				t.Errorf("%s must list %s of %s, or the test must say why not, and not both", limitsPage, name, dir)
			}
		}
	}
	if len(listed) < 10 {
		t.Errorf("%s was read as having limits of %v only", limitsPage, slices.Sorted(maps.Keys(listed)))
	}
}

// linkTo is a link from a page to a file of the tree.
var linkTo = regexp.MustCompile(`\]\(([^):#]+)(?:#[^)]*)?\)`)

// TestDocsIndex wants every page in the index, and every link of a page to
// lead somewhere.
func TestDocsIndex(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("found the pages %v (%v)", pages, err)
	}
	index, err := os.ReadFile("docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		name := filepath.Base(page)
		if name != "README.md" && strings.Count(string(index), "]("+name+")") != 1 {
			t.Errorf("docs/README.md must list %s once", name)
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range linkTo.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join("docs", link[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, link[1], err)
			}
		}
	}
}

// anchorIn is a link to a heading, of the page itself where no page is named.
var anchorIn = regexp.MustCompile(`\]\(([^):#]*)#([^)]+)\)`)

// notInAnchor is what is left out of a heading to make its anchor.
var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// TestDocsAnchors wants every link to a heading of a page to lead to one.
func TestDocsAnchors(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	anchors, texts := make(map[string][]string), make(map[string]string)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(page)
		texts[name] = string(text)
		for line := range strings.Lines(string(text)) {
			if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
				plain := notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
				anchors[name] = append(anchors[name], strings.ReplaceAll(plain, " ", "-"))
			}
		}
	}
	found := 0
	for name, text := range texts {
		for _, link := range anchorIn.FindAllStringSubmatch(text, -1) {
			to := link[1]
			if to == "" {
				to = name
			}
			if _, ok := texts[to]; !ok {
				continue // a page elsewhere
			}
			if found++; !slices.Contains(anchors[to], link[2]) {
				t.Errorf("docs/%s links to #%s of %s, which has no such heading", name, link[2], to)
			}
		}
	}
	if found < 10 {
		t.Errorf("found %d links to headings", found)
	}
}

// figureUnits are the units on the page; times are in nanoseconds.
var figureUnits = map[string]int64{
	"": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50, "PiB/s": 1 << 50, "milli-cores": 1,
	"ns": 1, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9, "days": 24 * 3600e9,
}

// figureOf reads "100,000", "64 KiB", "15 min", "2^61 ns".
func figureOf(text string) (n int64, ok bool) {
	number, unit, _ := strings.Cut(text, " ")
	scale, ok := figureUnits[unit]
	if power, isPower := strings.CutPrefix(number, "2^"); isPower {
		bits, err := strconv.Atoi(power)
		return scale << bits, ok && err == nil
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(number, ",", ""), 10, 64)
	return n * scale, ok && err == nil
}

// constantsIn names the constants of one file.
func constantsIn(t *testing.T, path string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
			for _, s := range g.Specs {
				for _, id := range s.(*ast.ValueSpec).Names {
					names = append(names, id.Name)
				}
			}
		}
	}
	return names
}

// constantsOf computes the whole-number constants of a package. Nothing but
// time is imported for that: what other packages say no limit depends on.
func constantsOf(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s names %q, where there is no code (%v)", limitsPage, dir, err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: onlyTime{}, FakeImportC: true, IgnoreFuncBodies: true, Error: func(error) {}}
	// What is not imported makes errors that do not matter here.
	pkg, _ := conf.Check(dir, fset, files, nil)
	all := make(map[string]int64)
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if !ok {
			continue
		}
		if n, exact := constant.Int64Val(constant.ToInt(c.Val())); exact {
			all[name] = n
		}
	}
	return all
}

// onlyTime imports package time, of which it knows the durations.
type onlyTime struct{}

func (onlyTime) Import(path string) (*types.Package, error) {
	if path != "time" {
		return nil, errors.New("not needed")
	}
	const durations = `package time
type Duration int64
const (
	Nanosecond Duration = 1
	Microsecond = 1000 * Nanosecond
	Millisecond = 1000 * Microsecond
	Second = 1000 * Millisecond
	Minute = 60 * Second
	Hour = 60 * Minute
)`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "time.go", durations, 0)
	if err != nil {
		return nil, err
	}
	var conf types.Config
	return conf.Check("time", fset, []*ast.File{f}, nil)
}
