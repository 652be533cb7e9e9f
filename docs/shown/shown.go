package shown

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Role is whose a command is.
type Role string

// Whose commands are.
const (
	User  Role = "user"
	Admin Role = "admin"
	Task  Role = "task"
)

// Command is one command line of a page.
type Command struct {
	// Page and line: docs/quota.md:17.
	Where string
	// As it stands there, without the prompt.
	Text string
	// The program, without its directory, and its arguments, as a shell reads them: up to a
	// pipe, without redirections and comments.
	Words []string
	// Whose it is.
	As Role
}

// Page is one page.
type Page struct {
	name  string
	lines []string
}

// Pages are the README and all pages below docs, of a tree at root.
func Pages(root string) ([]*Page, error) {
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	var pages []*Page
	for _, path := range append([]string{filepath.Join(root, "README.md")}, paths...) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		pages = append(pages, &Page{name: name, lines: strings.Split(string(text), "\n")})
	}
	return pages, nil
}

var (
	// Whose the commands of the next block are: <!-- as: admin -->
	marker = regexp.MustCompile(`^<!-- as: (user|admin|task) -->$`)
	inline = regexp.MustCompile("`([^`]+)`")
)

// Commands are the command lines of a program in the blocks of the page.
func (p *Page) Commands(program string) (all []Command) {
	inside, prompts := false, false
	as := User
	for i, line := range p.lines {
		if m := marker.FindStringSubmatch(line); m != nil && !inside {
			as = Role(m[1])
			continue
		}
		if strings.HasPrefix(line, "```") {
			if inside {
				as = User
			} else {
				prompts = p.prompts(i + 1)
			}
			inside = !inside
			continue
		}
		if !inside {
			continue
		}
		text := strings.TrimSpace(line)
		// Where some lines have a prompt the others are what the program says.
		text, prompted := strings.CutPrefix(text, "$ ")
		if prompts && !prompted {
			continue
		}
		words := Split(text)
		// A picture is no command.
		if len(words) == 0 || filepath.Base(words[0]) != program || strings.ContainsAny(text, "│─►") {
			continue
		}
		words[0] = program
		c := Command{Where: fmt.Sprintf("%s:%d", p.name, i+1), Text: text, Words: words, As: as}
		switch _, comment, _ := strings.Cut(text, " # "); {
		case strings.Contains(comment, "an admin") || strings.Contains(comment, "for admins"):
			c.As = Admin
		case strings.Contains(comment, "in a task"):
			c.As = Task
		}
		all = append(all, c)
	}
	return all
}

// prompts reports whether a line of the block from a line on has a prompt.
func (p *Page) prompts(from int) bool {
	for _, line := range p.lines[from:] {
		switch {
		case strings.HasPrefix(line, "```"):
			return false
		case strings.HasPrefix(strings.TrimSpace(line), "$ "):
			return true
		}
	}
	return false
}

// Inline are the commands of a program that sentences and tables name, with what may be
// left out.
func (p *Page) Inline(program string) (all []Command) {
	inside := false
	for i, line := range p.lines {
		if strings.HasPrefix(line, "```") {
			inside = !inside
			continue
		}
		if inside {
			continue
		}
		for _, m := range inline.FindAllStringSubmatch(line, -1) {
			text := strings.NewReplacer("[", "", "]", "", `\|`, "/").Replace(m[1])
			if words := Split(text); len(words) > 1 && words[0] == program {
				all = append(all, Command{Where: fmt.Sprintf("%s:%d", p.name, i+1), Text: m[1], Words: words, As: User})
			}
		}
	}
	return all
}

// Split reads a command line as a shell does, up to a pipe, without redirections and
// comments.
func Split(line string) (words []string) {
	var word strings.Builder
	var quote rune
	begun, skip := false, false
	end := func() {
		if begun && !skip {
			words = append(words, word.String())
		}
		if begun {
			skip = false
		}
		word.Reset()
		begun = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ' || r == '\t':
			end()
		case (r == '#' || r == '|' || r == ';') && !begun:
			return words
		case r == ';' || r == '|':
			end()
			return words
		case r == '>' || r == '<':
			end()
			skip = true
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	end()
	return words
}
