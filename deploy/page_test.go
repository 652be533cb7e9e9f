package deploy

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// page is what the test runs.
const page = "../docs/install.md"

// block is one fenced block of shell of the page, with what the comment above it says.
type block struct {
	line int
	// The part of the page: "" to install, upgrade, raise, remove, replace.
	part string
	// Where it is typed: names of hosts, or build.
	on []string
	// It is typed again until its output is this.
	until *regexp.Regexp
	// What `borgcfg status -o wide` shows before the next host has its turn.
	each *regexp.Regexp
	text string
}

// readPage reads the blocks of the page. Each block of shell is marked by a comment:
//
//	<!-- [PART; ]on: HOST[, HOST-LAST...][; until: PATTERN][; each: PATTERN] -->
func readPage() ([]*block, error) {
	data, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	var blocks []*block
	var mark string
	var in *block
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		text := strings.TrimRight(line, "\n")
		switch {
		case in != nil && text == "```":
			blocks, in = append(blocks, in), nil
		case in != nil:
			in.text += line
		case strings.HasPrefix(text, "<!-- as: "):
			// Whose certificate it takes; the page is followed by an admin.
		case strings.HasPrefix(text, "<!-- "):
			mark = text
		case text == "```sh":
			if in, err = readMark(mark); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", page, n, err)
			}
			in.line, mark = n+1, ""
		case strings.HasPrefix(text, "```"):
			return nil, fmt.Errorf("%s:%d: a block that is not run: want ```sh", page, n)
		}
	}
	if in != nil {
		return nil, fmt.Errorf("%s:%d: the block does not end", page, in.line)
	}
	return blocks, nil
}

func readMark(mark string) (*block, error) {
	text, ok := strings.CutPrefix(mark, "<!-- ")
	text, closed := strings.CutSuffix(text, " -->")
	if !ok || !closed {
		return nil, fmt.Errorf("no comment above the block says where it is typed, but %q", mark)
	}
	b := &block{}
	for part := range strings.SplitSeq(text, "; ") {
		name, value, _ := strings.Cut(part, ": ")
		var err error
		switch name {
		case "upgrade", "raise", "remove", "replace":
			b.part = name
		case "on":
			b.on, err = hostsOf(value)
		case "until":
			b.until, err = regexp.Compile(value)
		case "each":
			b.each, err = regexp.Compile(value)
		default:
			err = fmt.Errorf("%q in the comment above the block", part)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(b.on) == 0 {
		return nil, fmt.Errorf("the comment above the block does not say where it is typed: %q", mark)
	}
	return b, nil
}

var hostRange = regexp.MustCompile(`^(build|master|machine)([1-9]?)(?:-([1-9]))?$`)

func hostsOf(list string) ([]string, error) {
	var hosts []string
	for part := range strings.SplitSeq(list, ", ") {
		m := hostRange.FindStringSubmatch(part)
		if m == nil {
			return nil, fmt.Errorf("no such host: %q", part)
		}
		if m[3] == "" {
			hosts = append(hosts, part)
			continue
		}
		first, _ := strconv.Atoi(m[2])
		last, _ := strconv.Atoi(m[3])
		for i := first; i <= last; i++ {
			hosts = append(hosts, m[1]+strconv.Itoa(i))
		}
	}
	return hosts, nil
}
