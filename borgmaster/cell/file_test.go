package cell

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

func writeFile(user, name string, bytes int) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: user, Name: name, Content: make([]byte, bytes)}}}
}

func deleteFile(user, name string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: user, Name: name}}}
}

// TestFileLimits: of one file, of a user, and of the whole cell. What is at a limit
// is taken, and one more is not; what goes, or becomes smaller, makes room.
func TestFileLimits(t *testing.T) {
	l := raised(t, FormatFiles)
	refused := func(what string, op *borgpb.Op, kind borgpb.RefusalKind, words string) {
		t.Helper()
		if r := l.refusalOf(op); r.GetKind() != kind || !strings.Contains(r.GetMessage(), words) {
			t.Errorf("%s: %v, want %v that says %q", what, r, kind, words)
		}
	}
	const invalid, limit = borgpb.RefusalKind_REFUSAL_KIND_INVALID, borgpb.RefusalKind_REFUSAL_KIND_LIMIT
	refused("a content that is too large", writeFile("u", "big", MaxFileBytes+1), invalid, "at most 262144")
	for i := range maxFilesOfUser {
		l.do(writeFile("many", fmt.Sprint("f", i), 0))
	}
	refused("one more of a user who has them all", writeFile("many", "one-more", 0), limit, "has 1000 files")
	l.do(writeFile("many", "f7", 1))
	l.do(deleteFile("many", "f8"))
	l.do(writeFile("many", "one-more", 0))

	full := maxFileBytesOfUser / MaxFileBytes
	users := maxFilesBytes / maxFileBytesOfUser
	for u := range users {
		for i := range full {
			if n := MaxFileBytes; u > 0 || i > 0 {
				l.do(writeFile(fmt.Sprint("u", u), fmt.Sprint("f", i), n))
			} else {
				// What many has is of the cell too.
				l.do(writeFile("u0", "f0", n-1))
			}
		}
	}
	refused("more of a user who is full", writeFile("u1", "more", 1), limit, "the files of user u1 would have")
	refused("more of a cell that is full", writeFile("other", "more", 1), limit, "the files of the cell would have")
	// In the place of one that is as large, or larger.
	l.do(writeFile("u1", "f0", MaxFileBytes))
	l.do(writeFile("u1", "f0", 1))
	l.do(writeFile("other", "more", 1))
	if err := l.c.Check(); err != nil {
		t.Error(err)
	}
	if n := len(slices.Collect(l.c.Files("u1", ""))); n != full {
		t.Errorf("u1 has %d files, want %d", n, full)
	}
}

// TestFileNames: a name can be part of a path and of a name in DNS.
func TestFileNames(t *testing.T) {
	deep := strings.Repeat("a/", maxFileSegments-1) + "a"
	long := strings.Repeat(strings.Repeat("a", 31)+"/", 8)[:maxFileNameBytes]
	for name, ok := range map[string]bool{
		"leader": true, "conf/leader": true, "config.json": true, "a-b.c-d/0": true, deep: true, long: true,
		"": false, "/": false, "a/": false, "/a": false, "a//b": false, "..": false, "a/../b": false, ".": false, ".a": false, "a.": false, "a..b": false,
		"-a": false, "a-": false, "a.-b": false, "A": false, "a b": false, "a_b": false, "a\x00": false, "ä": false, "a\n": false,
		deep + "/a": false, long + "a": false, strings.Repeat("a", 64): false, strings.Repeat("a", 63): true, strings.Repeat("a.", 31) + "ab": false,
	} {
		if r := CheckFileName(name); (r == nil) != ok {
			t.Errorf("the name %q: %v, want that it is taken: %v", name, r, ok)
		}
	}
}

// TestFilesBelow: what is looked at together is a name and what is below it, not
// what begins alike.
func TestFilesBelow(t *testing.T) {
	l := raised(t, FormatFiles)
	for _, name := range []string{"conf", "conf-x", "conf.d/a", "conf/a", "conf/b/c", "confer", "z"} {
		l.do(writeFile("u", name, 1))
	}
	l.do(writeFile("u-x", "conf/other", 1))
	for prefix, want := range map[string]string{
		"": "conf conf-x conf.d/a conf/a conf/b/c confer z", "conf": "conf conf/a conf/b/c", "conf/b": "conf/b/c", "conf/b/c": "conf/b/c", "con": "", "zz": "",
	} {
		var got []string
		for f := range l.c.Files("u", prefix) {
			got = append(got, f.Name())
		}
		if words := strings.Join(got, " "); words != want {
			t.Errorf("below %q are %q, want %q", prefix, words, want)
		}
		for f := range l.c.Files("u", "") {
			if in := slices.Contains(got, f.Name()); InPrefix(f.Name(), prefix) != in {
				t.Errorf("InPrefix(%q, %q) is not %v", f.Name(), prefix, in)
			}
		}
	}
}

// TestFilesAreLoaded: what a checkpoint holds of files comes back as it was, also
// how often they were changed, and odd records are refused.
func TestFilesAreLoaded(t *testing.T) {
	l := raised(t, FormatFiles)
	l.do(writeFile("u", "conf/leader", 3))
	l.do(writeFile("u", "gone", 3))
	l.do(deleteFile("u", "gone"))
	c, err := Load(l.c.Records())
	if err != nil {
		t.Fatal(err)
	}
	f, was := c.File("u", "conf/leader"), l.c.File("u", "conf/leader")
	if f == nil || f.Version() != 1 || !bytes.Equal(f.Content(), was.Content()) || f.ChangedWallNs() != was.ChangedWallNs() || c.FileChanges() != 3 || c.Digest() != l.c.Digest() {
		t.Errorf("loaded is %v after %d changes", f, c.FileChanges())
	}
	for what, change := range map[string]func(key, value []byte) ([]byte, []byte){
		"a file of nobody":            func(key, value []byte) ([]byte, []byte) { return append(key[:1:1], "leader"...), value },
		"a file with an odd name":     func(key, value []byte) ([]byte, []byte) { return append(key, '/'), value },
		"a file of version 0":         func(key, value []byte) ([]byte, []byte) { value[1] = 0; return key, value },
		"a file of a version to be":   func(key, value []byte) ([]byte, []byte) { value[1] = 4; return key, value },
		"a file that is cut off":      func(key, value []byte) ([]byte, []byte) { return key, value[:len(value)-1] },
		"a file with a byte too many": func(key, value []byte) ([]byte, []byte) { return key, append(value, 0) },
	} {
		odd := func(yield func(k, v []byte) bool) {
			for k, v := range l.c.Records() {
				k, v = bytes.Clone(k), bytes.Clone(v)
				if k[0] == kindFile {
					k, v = change(k, v)
				}
				if !yield(k, v) {
					return
				}
			}
		}
		if _, err := Load(odd); err == nil {
			t.Errorf("%s was loaded", what)
		}
	}
}
