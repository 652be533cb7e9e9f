package cell

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatFiles is the format in which small files of users began.
const FormatFiles = 4

// File is a small file of a user: what names and elections stand on, not a place
// for data (paper §2.6, Chubby). Files have no directories of their own; a / in a
// name is only for looking at some of them together.
type File struct {
	mark
	// "<user>/<name>".
	key  string
	user string
	name string
	// Number of the write among all writes and deletions of the cell's files. A
	// file that was deleted and written anew cannot be taken for the one before.
	version       uint64
	content       []byte
	changedWallNs int64
	gone          bool
}

// User whose it is.
func (f *File) User() string { return f.user }

// Name among the files of its user.
func (f *File) Name() string { return f.name }

// Version only grows, and no other file and no later one of this name ever has it.
func (f *File) Version() uint64 { return f.version }

// Content of it. Must not be changed.
func (f *File) Content() []byte { return f.content }

// ChangedWallNs is when it was written last.
func (f *File) ChangedWallNs() int64 { return f.changedWallNs }

type files struct {
	byKey map[string]*File
	// Sorted by key.
	list []*File
	// What each user has who has files; derived.
	of map[string]fileUse
	// Bytes of all contents; derived.
	bytes int
	// The last version; in a record of its own.
	changes fileChanges
}

type fileUse struct{ files, bytes int }

// fileChanges is the record of how often files were written and deleted.
type fileChanges struct {
	mark
	n uint64
}

func fileKey(user, name string) string { return user + "/" + name }

// File returns a user's file; nil when there is none of that name.
func (c *Cell) File(user, name string) *File { return c.files.byKey[fileKey(user, name)] }

// AllFiles yields every file, by owner and name.
func (c *Cell) AllFiles() iter.Seq[*File] { return slices.Values(c.files.list) }

// Files yields the files of a user by name: the one of the name prefix and all
// below it; with no prefix, all.
func (c *Cell) Files(user, prefix string) iter.Seq[*File] {
	return func(yield func(*File) bool) {
		below := fileKey(user, prefix)
		if prefix != "" {
			if f := c.files.byKey[below]; f != nil && !yield(f) {
				return
			}
			below += "/"
		}
		// All that begin alike stand together.
		first, _ := slices.BinarySearchFunc(c.files.list, below, compareFile)
		for _, f := range c.files.list[first:] {
			if !strings.HasPrefix(f.key, below) || !yield(f) {
				return
			}
		}
	}
}

// FileChanges is how often files of the cell were written and deleted, which is
// the latest version.
func (c *Cell) FileChanges() uint64 { return c.files.changes.n }

// InPrefix tells whether a file of that name is the one of the name prefix or
// below it.
func InPrefix(name, prefix string) bool {
	return prefix == "" || name == prefix || strings.HasPrefix(name, prefix) && name[len(prefix)] == '/'
}

// validSegment: DNS labels with dots between them, so that it can be part of a
// name in DNS and of a path, and does not lead up.
func validSegment(s string) bool {
	if len(s) > maxFileSegmentBytes {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !validName(label) {
			return false
		}
	}
	return true
}

// CheckFileName tells what is wrong with the name of a file.
func CheckFileName(name string) *borgpb.Refusal {
	if len(name) > maxFileNameBytes {
		return invalid("name", "%d bytes; the name of a file has at most %d", len(name), maxFileNameBytes)
	}
	segments := strings.Split(name, "/")
	if len(segments) > maxFileSegments {
		return invalid("name", "%d segments; the name of a file has at most %d", len(segments), maxFileSegments)
	}
	for _, s := range segments {
		if !validSegment(s) {
			return invalid("name", "%q in it is not a segment: want 1 to %d of a-z, 0-9, - and ., with a letter or digit at each end and beside each dot",
				clip(s, 64), maxFileSegmentBytes)
		}
	}
	return nil
}

// fileWords names the file that an op is about; with a name that a file can have,
// it is its key.
func fileWords(o named) string {
	return fileKey(clip(o.GetUser(), 64), clip(o.GetName(), maxFileNameBytes))
}

func checkFile(user, name string) *borgpb.Refusal {
	if r := checkUserName(user); r != nil {
		return r
	}
	return CheckFileName(name)
}

// checkIfVersion holds a change to the version that its author saw.
func checkIfVersion(key string, f *File, want *uint64) *borgpb.Refusal {
	if want == nil || mutant.Planted(mutant.FileVersionNotAsked) {
		return nil
	}
	conflict := func(format string, args ...any) *borgpb.Refusal {
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, key, "if_version", format, args...)
	}
	switch {
	case f == nil && *want != 0:
		return conflict("there is no such file, and version %d was expected", *want)
	case f != nil && *want == 0:
		return conflict("there is such a file, of version %d, and none was expected", f.version)
	case f != nil && *want != f.version:
		return conflict("it has version %d, and version %d was expected", f.version, *want)
	}
	return nil
}

func (c *Cell) checkWriteFile(o *borgpb.WriteFile) (commit, *borgpb.Refusal) {
	key := fileWords(o)
	if r := checkFile(o.User, o.Name); r != nil {
		return nil, about(key, r)
	}
	if n := len(o.Content); n > MaxFileBytes {
		return nil, about(key, invalid("content", "%d bytes; a file has at most %d", n, MaxFileBytes))
	}
	f := c.File(o.User, o.Name)
	if r := checkIfVersion(key, f, o.IfVersion); r != nil {
		return nil, r
	}
	use := c.files.of[o.User]
	more := len(o.Content)
	if f != nil {
		more -= len(f.content)
	}
	switch {
	case f == nil && int64(use.files) >= c.StateBudget(o.User, measureFiles):
		return nil, about(key, limit("", "user %s has %d files, and may have no more; delete one first%s", o.User, use.files, raiseAdvice(o.User, measureFiles, int64(use.files+1))))
	case f == nil && len(c.files.list) >= maxFiles:
		return nil, about(key, limit("", "the cell has %d files", len(c.files.list)))
	case more > 0 && int64(use.bytes+more) > c.StateBudget(o.User, measureFileBytes):
		return nil, about(key, limit("content", "the files of user %s would have %d bytes; at most %d. Write less%s",
			o.User, use.bytes+more, c.StateBudget(o.User, measureFileBytes), raiseAdvice(o.User, measureFileBytes, int64(use.bytes+more))))
	case more > 0 && c.files.bytes+more > maxFilesBytes:
		return nil, about(key, limit("content", "the files of the cell would have %d bytes; at most %d", c.files.bytes+more, maxFilesBytes))
	}
	return func(res *borgpb.Result) {
		if f == nil {
			f = &File{key: key, user: o.User, name: o.Name}
			c.files.add(f)
		}
		c.files.hold(f, o.Content)
		f.version, f.changedWallNs = c.nextFileVersion(), c.clock.wallNs
		c.dirty(f)
		c.emit(fileEvent(borgpb.EventKind_EVENT_KIND_FILE_WRITE, key, f.version, fmt.Sprintf("version %d, %d bytes", f.version, len(f.content)), c.now.reason))
		res.Version = f.version
	}, nil
}

func (c *Cell) checkDeleteFile(o *borgpb.DeleteFile) (commit, *borgpb.Refusal) {
	key := fileWords(o)
	if r := checkFile(o.User, o.Name); r != nil {
		return nil, about(key, r)
	}
	f := c.File(o.User, o.Name)
	switch {
	case o.IfVersion != nil && *o.IfVersion == 0:
		return nil, about(key, invalid("if_version", "no file has version 0; it means that there is none, and then there is nothing to delete"))
	case f == nil:
		return nil, notFound(key, "there is no such file")
	}
	if r := checkIfVersion(key, f, o.IfVersion); r != nil {
		return nil, r
	}
	return func(res *borgpb.Result) {
		c.files.remove(f)
		c.dirty(f)
		n := c.nextFileVersion()
		c.emit(fileEvent(borgpb.EventKind_EVENT_KIND_FILE_DELETE, key, n, "deleted", c.now.reason))
		res.Version = n
	}, nil
}

func (c *Cell) nextFileVersion() uint64 {
	c.files.changes.n++
	c.dirty(&c.files.changes)
	return c.files.changes.n
}

func (s *files) add(f *File) {
	s.byKey[f.key] = f
	at, _ := slices.BinarySearchFunc(s.list, f.key, compareFile)
	s.list = slices.Insert(s.list, at, f)
	use := s.of[f.user]
	use.files++
	s.of[f.user] = use
}

// hold gives a file its content, and counts it.
func (s *files) hold(f *File, content []byte) {
	use := s.of[f.user]
	use.bytes += len(content) - len(f.content)
	s.of[f.user] = use
	s.bytes += len(content) - len(f.content)
	f.content = content
}

func (s *files) remove(f *File) {
	s.hold(f, nil)
	delete(s.byKey, f.key)
	at, _ := slices.BinarySearchFunc(s.list, f.key, compareFile)
	s.list = slices.Delete(s.list, at, at+1)
	use := s.of[f.user]
	use.files--
	if s.of[f.user] = use; use.files == 0 {
		delete(s.of, f.user)
	}
	f.gone = true
}

func compareFile(f *File, key string) int { return strings.Compare(f.key, key) }

// check holds the invariants of files.
func (s *files) check() error {
	of, bytes := make(map[string]fileUse), 0
	versions := make(map[uint64]bool, len(s.list))
	for i, f := range s.list {
		if s.byKey[f.key] != f || f.gone || f.key != fileKey(f.user, f.name) || (i > 0 && s.list[i-1].key >= f.key) || len(f.content) > MaxFileBytes {
			return fmt.Errorf("file %s is out of order", f.key)
		}
		if f.version == 0 || f.version > s.changes.n || versions[f.version] {
			return fmt.Errorf("file %s has version %d, which is another one's or above %d", f.key, f.version, s.changes.n)
		}
		versions[f.version] = true
		use := of[f.user]
		of[f.user] = fileUse{use.files + 1, use.bytes + len(f.content)}
		bytes += len(f.content)
	}
	if len(s.byKey) != len(s.list) || bytes != s.bytes || len(s.list) > maxFiles || bytes > maxFilesBytes || len(of) != len(s.of) {
		return fmt.Errorf("%d files of %d users with %d bytes are counted as %d of %d with %d", len(s.list), len(of), bytes, len(s.byKey), len(s.of), s.bytes)
	}
	for user, use := range of {
		if s.of[user] != use {
			return fmt.Errorf("the files of user %s are %v, counted as %v", user, use, s.of[user])
		}
	}
	return nil
}

func fileEvent(kind borgpb.EventKind, key string, version uint64, what, reason string) Event {
	if reason != "" {
		what += ": " + reason
	}
	return Event{Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_FILE, Name: key, Version: version, Reason: what}
}

func (f *File) appendKey(b []byte) []byte { return append(append(b, kindFile), f.key...) }
func (f *File) exists() bool              { return !f.gone }

func (f *File) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.uint(f.version)
	e.bytes(f.content)
	e.int(f.changedWallNs)
	return e.b
}

func (n *fileChanges) appendKey(b []byte) []byte { return append(b, kindFileChanges) }
func (n *fileChanges) exists() bool              { return n.n != 0 }

func (n *fileChanges) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.uint(n.n)
	return e.b
}

func (l *loader) fileChanges(d *decoder) error {
	n := d.uint()
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatFiles || n == 0 {
		return errOdd
	}
	l.c.files.changes.n = n
	return nil
}

func (l *loader) file(key string, d *decoder) error {
	user, name, _ := strings.Cut(key, "/")
	f := &File{key: key, user: user, name: name, version: d.uint()}
	content, changed := d.raw(), d.int()
	if err := d.done(); err != nil {
		return err
	}
	f.changedWallNs = changed
	if l.c.format < FormatFiles || checkFile(user, name) != nil || len(content) > MaxFileBytes || changed < 0 || changed > maxTimeNs {
		return errOdd
	}
	l.c.files.add(f)
	l.c.files.hold(f, content)
	return nil
}
