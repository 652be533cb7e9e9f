package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/docs/shown"
)

// TestDocsCommands reads each command line of borgcfg on the pages as the program reads
// it: the verb is there, each flag is, and the number of arguments is right.
func TestDocsCommands(t *testing.T) {
	pages, err := shown.Pages(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	// No cell is found from here.
	t.Chdir(t.TempDir())
	read, inline := 0, 0
	for _, page := range pages {
		for _, c := range page.Commands("borgcfg") {
			if said := misread(t, c.Words); said != "" {
				t.Errorf("%s: %s: borgcfg does not understand it: %s", c.Where, c.Text, said)
			}
			read++
		}
		// What is named in a sentence may leave out what it is about.
		for _, c := range page.Inline("borgcfg") {
			if said := misread(t, c.Words); said != "" && !missing.MatchString(said) {
				t.Errorf("%s: %s: borgcfg does not understand it: %s", c.Where, c.Text, said)
			}
			inline++
		}
	}
	if read < 80 || inline < 100 {
		t.Errorf("only %d command lines and %d commands in sentences were found", read, inline)
	}
}

// TestHintsNameCommands wants each command of borgcfg that a program of the tree tells
// somebody to type to be there.
func TestHintsNameCommands(t *testing.T) {
	named := regexp.MustCompile(`borgcfg ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?`)
	app := newApp(&console{})
	// What sentences say of the program, and what every program has.
	prose := []string{"does", "of", "finds", "help"}
	found := 0
	eachText(t, func(path, text string) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if slices.Contains(prose, m[1]) {
				continue
			}
			found++
			verb := app.Command(m[1])
			// Events can be exported, and are shown otherwise.
			sub := func(c *ucli.Command) bool { return c.HasName(m[2]) }
			if verb == nil || len(verb.Subcommands) > 0 && m[2] != "" && verb.Name != "events" && !slices.ContainsFunc(verb.Subcommands, sub) {
				t.Errorf("%s: %q: there is no such command", path, m[0])
			}
		}
	})
	if found < 100 {
		t.Errorf("only %d commands were found", found)
	}
}

// eachText calls f with each string literal of the sources that is not in a test.
func eachText(t *testing.T, f func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Errorf("%s: %s: %v", path, lit.Value, err)
				}
				f(path, text)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var (
	// What the program says of a verb or a flag that it has not, or of too many or too few
	// arguments; what it says of their values is not looked at: they are examples.
	unread = regexp.MustCompile(`unknown command|unknown flag|borgcfg [a-z -]+ (needs|takes) |needs a value`)
	// Of these, that something is missing.
	missing = regexp.MustCompile(`borgcfg [a-z -]+ needs |needs a value`)
)

// misread is what the program says of a command line that is none of its; empty: it is one.
func misread(t *testing.T, words []string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	con := &console{
		stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, terminal: true, errTerminal: true, inTerminal: true,
		env: func(name string) string {
			if name == "HOME" || strings.HasPrefix(name, "XDG_") {
				return os.DevNull
			}
			return ""
		},
	}
	if code := run(t.Context(), words, con); code == cli.Usage && unread.MatchString(stderr.String()) {
		return stderr.String()
	}
	return ""
}
