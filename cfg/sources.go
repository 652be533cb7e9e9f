package cfg

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// sources are the files of one evaluation. All lie in one directory and below
// it; the operating system holds us to that, symbolic links included.
type sources struct {
	root *os.Root
	// Directory of root, as in the name that the user typed.
	dir   string
	files map[string]*source
	order []*source
	// Faults with which the reading went on, and which they are.
	found Faults
	noted map[faultKey]bool
}

// source is one file, by its path below the root.
type source struct {
	rel string
	// As shown to people.
	name string
	data []byte
}

// openSources opens the directory that files may come from and returns the
// main file in it. An empty root is the directory of the main file.
func openSources(main, root string) (*sources, *source, error) {
	dir, at := root, main
	if dir == "" {
		// The main file may be a link to one that lies elsewhere; then the files
		// beside that one are meant.
		if real, err := filepath.EvalSymlinks(main); err == nil {
			at = real
		}
		dir = filepath.Dir(at)
	}
	rel, err := filepath.Rel(dir, at)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, nil, fmt.Errorf("%s does not lie in %s", main, dir)
	}
	r, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, &Fault{Pos: Position{File: main}, What: "there is no such file", Hint: "its directory " + dir + " does not exist"}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", dir, err)
	}
	s := &sources{root: r, dir: dir, files: make(map[string]*source)}
	src, err := s.read(filepath.ToSlash(rel))
	if err != nil {
		defer s.close()
		return nil, nil, s.readFault(Position{File: main}, main, err)
	}
	src.name = main
	return s, src, nil
}

func (s *sources) close() { _ = s.root.Close() }

var errTooLarge = fmt.Errorf("it is longer than %d bytes", maxFileBytes)

// read returns a file by its path below the root, reading it once.
func (s *sources) read(rel string) (*source, error) {
	if src, ok := s.files[rel]; ok {
		return src, nil
	}
	if len(s.files) >= maxFiles {
		return nil, fmt.Errorf("more than %d files are loaded", maxFiles)
	}
	f, err := s.root.Open(filepath.FromSlash(rel))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, errors.New("it is a directory")
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, errTooLarge
	}
	// Some editors begin each file with a byte order mark. It is no part of the text,
	// whatever kind of file it is.
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		return nil, errors.New("it is not UTF-8 text")
	}
	src := &source{rel: rel, name: filepath.Join(s.dir, filepath.FromSlash(rel)), data: data}
	s.files[rel] = src
	s.order = append(s.order, src)
	return src, nil
}

// errOutside is the error for a file that load() may not read.
var errOutside = errors.New("it lies outside")

// load resolves a load() in a file and reads what it names. Names are relative
// to the loading file.
func (s *sources) load(from *source, name string) (*source, error) {
	if path.IsAbs(name) {
		return nil, errors.New("the path is absolute")
	}
	rel := path.Join(path.Dir(from.rel), name)
	if !filepath.IsLocal(rel) {
		return nil, fmt.Errorf("%w %s, where all files of a job file must be", errOutside, s.dir)
	}
	return s.read(rel)
}

// readFault says why a file cannot be read.
func (s *sources) readFault(pos Position, name string, err error) *Fault {
	f := &Fault{Pos: pos, Source: s.line(pos)}
	var p *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.What = "there is no such file"
	case errors.As(err, &p):
		f.What = "it cannot be read: " + p.Err.Error()
	default:
		f.What = err.Error()
	}
	if pos.Line > 0 {
		f.What = fmt.Sprintf("load %s: %s", quote(name), f.What)
	}
	if near := s.similar(name); near != "" && errors.Is(err, fs.ErrNotExist) {
		f.Hint = fmt.Sprintf("did you mean %q?", near)
	}
	if errors.Is(err, errOutside) {
		f.Hint = "--root DIRECTORY names a directory above both, which files may come from"
	}
	return f
}

// similar is a job file near a missing one, with a name like it.
func (s *sources) similar(name string) string {
	dir, err := s.root.Open(".")
	if err != nil {
		return ""
	}
	defer dir.Close()
	entries, err := dir.ReadDir(1000)
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return nearest(filepath.Base(name), names)
}

// line is the source line at a position, or "".
func (s *sources) line(pos Position) string {
	if pos.Line == 0 {
		return ""
	}
	for _, src := range s.order {
		if src.name != pos.File {
			continue
		}
		lines := strings.SplitN(string(src.data), "\n", pos.Line+1)
		if pos.Line <= len(lines) {
			return strings.TrimRight(lines[pos.Line-1], "\r")
		}
	}
	return ""
}
