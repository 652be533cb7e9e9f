// Package hostpath takes the paths of a machine's own files out of what users are told.
//
// A user has no use for where a master or a borglet keeps its files, and an attacker has.
// So an error is told without them where it leaves the program: what a borglet reports,
// and what a door answers. The program's own log keeps the whole error.
//
// Paths that a task has in its own file system, and those that a job names, stay.
package hostpath

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// hidden stands for a directory of the machine.
const hidden = "[host]"

// kernelPath is a path of the kernel's that names other processes or groups.
var kernelPath = regexp.MustCompile(`(^|[^A-Za-z0-9._/-])(/proc/(?:self|thread-self|[0-9]+)|/sys/fs/cgroup)(/[^\s:;,"'` + "`" + `()]*)?`)

// Dirs are the directories and files of a program that users are not told of. Nil hides
// only what is hidden of every program.
type Dirs struct{ dirs []string }

// New returns the Dirs of those paths. Empty and relative ones, and the root, hide nothing.
func New(paths ...string) *Dirs {
	d := &Dirs{}
	for _, p := range paths {
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			real = p
		}
		for _, p := range []string{p, real} {
			if p = filepath.Clean(p); filepath.IsAbs(p) && p != "/" && !slices.Contains(d.dirs, p) {
				d.dirs = append(d.dirs, p)
			}
		}
	}
	// What is below another one goes first, or its own part would be left.
	slices.SortFunc(d.dirs, func(a, b string) int { return len(b) - len(a) })
	return d
}

// Hide returns the text without the paths of d: of each only the last element is left.
func (d *Dirs) Hide(text string) string {
	if !strings.Contains(text, "/") {
		return text
	}
	if d != nil {
		for _, dir := range d.dirs {
			text = hideBelow(text, dir)
		}
	}
	return kernelPath.ReplaceAllString(text, "${1}"+hidden)
}

// hideBelow hides one directory and what is below it.
func hideBelow(text, dir string) string {
	var b strings.Builder
	for {
		at := strings.Index(text, dir)
		if at < 0 {
			return b.String() + text
		}
		rest := text[at+len(dir):]
		below := rest[:endOfPath(rest)]
		if below != "" && below[0] != '/' || at > 0 && isInPath(text[at-1]) {
			// Another directory, whose name only begins or ends like this one.
			b.WriteString(text[:at+len(dir)])
			text = rest
			continue
		}
		b.WriteString(text[:at] + short(below))
		text = rest[len(below):]
	}
}

// short is what is left of a path.
func short(path string) string {
	if path = strings.TrimRight(path, "/"); path == "" {
		return hidden
	}
	return hidden + "/" + filepath.Base(path)
}

// endOfPath is where a path ends that a text begins with. A path with blanks ends early,
// and what is left of it is below the directory that is hidden.
func endOfPath(text string) int {
	for i := range len(text) {
		if !isInPath(text[i]) {
			return i
		}
	}
	return len(text)
}

func isInPath(c byte) bool { return !strings.ContainsRune(" \t\r\n:;,\"'`()<>|&?*\\", rune(c)) }

// Text is an error without the paths of the machine that the operating system, or a
// library, put into it.
func Text(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for _, p := range pathsIn(err, nil) {
		if filepath.IsAbs(p) && p != "/" {
			text = strings.ReplaceAll(text, p, short(p))
		}
	}
	return (*Dirs)(nil).Hide(text)
}

// pathsIn collects the paths that the errors in a tree name.
func pathsIn(err error, paths []string) []string {
	switch e := err.(type) {
	case *fs.PathError:
		paths = append(paths, e.Path)
	case *os.LinkError:
		paths = append(paths, e.Old, e.New)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if under := e.Unwrap(); under != nil {
			return pathsIn(under, paths)
		}
	case interface{ Unwrap() []error }:
		for _, under := range e.Unwrap() {
			paths = pathsIn(under, paths)
		}
	}
	return paths
}
