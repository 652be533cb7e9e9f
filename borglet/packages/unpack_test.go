package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// entry is one entry of an archive of a test.
type entry struct {
	name string
	kind byte
	// content of a file, target of a link.
	text string
	mode int64
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, ModTime: time.Unix(1700000000, 0)}
		if e.mode == 0 {
			h.Mode = 0o644
		}
		switch e.kind {
		case tar.TypeReg:
			h.Size = int64(len(e.text))
		case tar.TypeLink, tar.TypeSymlink:
			h.Linkname = e.text
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.kind == tar.TypeReg {
			if _, err := w.Write([]byte(e.text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func gzipped(t testing.TB, plain []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

var wide = bounds{bytes: 1 << 20, entries: 100, kept: 1 << 20}

func file(name, text string) entry { return entry{name: name, kind: tar.TypeReg, text: text} }
func link(name, to string) entry   { return entry{name: name, kind: tar.TypeSymlink, text: to} }
func hard(name, to string) entry   { return entry{name: name, kind: tar.TypeLink, text: to} }
func dir(name string) entry        { return entry{name: name, kind: tar.TypeDir, mode: 0o755} }

// tricks are archives that are refused, and a part of the reason.
var tricks = map[string]struct {
	entries []entry
	reason  string
}{
	"up":                      {[]entry{file("../x", "")}, "leads out of the package"},
	"up in the middle":        {[]entry{file("a/../../x", "")}, "leads out of the package"},
	"through a link":          {[]entry{link("a", "/etc"), file("a/passwd", "")}, `leads through "a", which is a symbolic link`},
	"through a link inside":   {[]entry{dir("d"), link("a", "d"), file("a/x", "")}, "which is a symbolic link"},
	"directory over a link":   {[]entry{link("a", "/etc"), dir("a")}, "it is a symbolic link in the same layer"},
	"through a file":          {[]entry{file("a", ""), file("a/x", "")}, "which is no directory"},
	"link out":                {[]entry{link("a", "../x")}, "leads out of the package"},
	"link out from below":     {[]entry{link("d/a", "../../x")}, "leads out of the package"},
	"hard link out":           {[]entry{hard("a", "../x")}, "leads out of the package"},
	"hard link absolute":      {[]entry{hard("a", "/etc/shadow")}, "no file of this layer"},
	"hard link by a link":     {[]entry{link("d", "/etc"), hard("a", "d/shadow")}, "no file of this layer"},
	"hard link to a link":     {[]entry{link("d", "/etc/shadow"), hard("a", "d")}, "which is no file"},
	"hard link to a dir":      {[]entry{dir("d"), hard("a", "d")}, "which is no file"},
	"hard link to nothing":    {[]entry{hard("a", "b")}, "no file of this layer"},
	"character device":        {[]entry{{name: "null", kind: tar.TypeChar}}, "it is a device"},
	"block device":            {[]entry{{name: "sda", kind: tar.TypeBlock}}, "it is a device"},
	"pipe":                    {[]entry{{name: "p", kind: tar.TypeFifo}}, "it is a pipe"},
	"file over a directory":   {[]entry{dir("d"), file("d", "")}, "it is a directory in the same layer"},
	"link over a directory":   {[]entry{file("d/x", ""), link("d", "/etc")}, "it is a directory in the same layer"},
	"root is a link":          {[]entry{link("./", "/etc")}, "the root of a package is a directory"},
	"takes away its parent":   {[]entry{file("d/.wh...", "")}, `it takes away ".."`},
	"whiteout by a link":      {[]entry{link("a", "/etc"), file("a/.wh.passwd", "")}, "which is a symbolic link"},
	"opaque by a link":        {[]entry{link("a", "/etc"), file("a/.wh..wh..opq", "")}, "which is a symbolic link"},
	"long name":               {[]entry{file(strings.Repeat("n", 256), "")}, "a part of its path has 256 bytes"},
	"long path":               {[]entry{file(strings.Repeat("n/", 2100)+"x", "")}, "its path has 4201 bytes"},
	"too big":                 {[]entry{file("a", strings.Repeat("x", 1<<20))}, "becomes too much"},
	"too many":                {slices.Repeat([]entry{file("a", "")}, 101), "more than 100 entries"},
	"many directories of one": {[]entry{file(strings.Repeat("d/", 300)+"x", "")}, "more than 100 entries"},
}

func TestTricksAreRefused(t *testing.T) {
	for name, c := range tricks {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			in := filepath.Join(base, "in")
			if err := os.Mkdir(in, 0o755); err != nil {
				t.Fatal(err)
			}
			_, err := unpack(bytes.NewReader(gzipped(t, tarOf(t, c.entries...))), in, wide, nil)
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("got %v, want %q", err, c.reason)
			}
			checkInside(t, base, in)
		})
	}
}

// TestBomb: what is small when packed and large when not, within files or beside
// them, ends at the bound.
func TestBomb(t *testing.T) {
	headers := make([]entry, 40)
	for i := range headers {
		headers[i] = link(strings.Repeat("n", 200), strings.Repeat("x", 4000))
	}
	for name, plain := range map[string][]byte{
		"a file of zeros": tarOf(t, file("zeros", strings.Repeat("\x00", 8<<20))),
		"only headers":    tarOf(t, headers...),
		"no archive":      bytes.Repeat([]byte{0}, 8<<20),
	} {
		packed := gzipped(t, plain)
		_, err := unpack(bytes.NewReader(packed), t.TempDir(), bounds{bytes: 64 << 10, entries: 1000, kept: 1 << 20}, nil)
		if name == "no archive" {
			// Zeros are the end of an archive; what is behind it is not read.
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, errBomb) {
			t.Errorf("%s, %d bytes packed: got %v, want %v", name, len(packed), err, errBomb)
		}
	}
	if got, want := boundsOf(10<<20, nil).bytes, int64(10<<20*maxRatio); got != want {
		t.Errorf("boundsOf(10 MiB) = %d, want %d", got, want)
	}
	if got := boundsOf(1<<60, nil).bytes; got != maxUnpackedBytes {
		t.Errorf("boundsOf(much) = %d, want %d", got, maxUnpackedBytes)
	}
}

// TestUnpack: what an image may have is unpacked as it is, but for rights.
func TestUnpack(t *testing.T) {
	dest := t.TempDir()
	is, err := unpack(bytes.NewReader(gzipped(t, tarOf(t,
		entry{name: "./", kind: tar.TypeDir, mode: 0o755},
		entry{name: "bin/su", kind: tar.TypeReg, text: "su", mode: 0o6755},
		hard("bin/other", "bin/su"),
		link("bin/abs", "/bin/su"),
		link("lib", "usr/lib"),
		entry{name: "tmp", kind: tar.TypeDir, mode: 0o1777},
		entry{name: "closed", kind: tar.TypeDir, mode: 0o555},
		file("closed/in", "there"),
		file("twice", "one"), file("twice", "two"),
	))), dest, wide, nil)
	if err != nil || is.entries != 11 {
		t.Fatalf("unpack: %d entries, %v", is.entries, err)
	}
	for name, want := range map[string]fs.FileMode{
		"bin/su": 0o755, "tmp": 0o777 | fs.ModeDir | fs.ModeSticky, "closed": 0o555 | fs.ModeDir, "bin": 0o755 | fs.ModeDir,
	} {
		info, err := os.Lstat(filepath.Join(dest, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want %v", name, info.Mode(), err, want)
		}
	}
	a, _ := os.Stat(filepath.Join(dest, "bin/su"))
	b, _ := os.Stat(filepath.Join(dest, "bin/other"))
	if !os.SameFile(a, b) {
		t.Error("the hard link is another file")
	}
	if !a.ModTime().Equal(time.Unix(1700000000, 0)) {
		t.Errorf("its time is %v", a.ModTime())
	}
	for name, want := range map[string]string{"lib": "usr/lib", "bin/abs": "/bin/su"} {
		if to, err := os.Readlink(filepath.Join(dest, name)); to != want {
			t.Errorf("%s links to %q (%v), want %q", name, to, err, want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dest, "twice")); string(text) != "two" {
		t.Errorf("twice: %q %v, want the last of both", text, err)
	}
}

// TestWhiteouts: names taken away are as overlayfs has them.
func TestWhiteouts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("whiteouts need root")
	}
	dest := t.TempDir()
	_, err := unpack(bytes.NewReader(tarOf(t,
		file("etc/.wh.gone", ""),
		file("var/.wh..wh..opq", ""),
		file("var/new", "new"),
		file(".wh.again", ""), file("again/x", "a directory of its own"),
		file("kept", "kept"), file(".wh.kept", ""),
		file(".wh..wh.plnk", ""),
	)), dest, wide, nil)
	if err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Lstat(filepath.Join(dest, "etc/gone"), &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR || stat.Rdev != 0 {
		t.Errorf("etc/gone: mode %o, device %d, %v; want a device of number 0", stat.Mode, stat.Rdev, err)
	}
	for _, name := range []string{"var", "again"} {
		var value [8]byte
		n, err := unix.Lgetxattr(filepath.Join(dest, name), opaqueXattr, value[:])
		if err != nil || string(value[:n]) != "y" {
			t.Errorf("%s is not opaque: %q %v", name, value[:max(n, 0)], err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dest, "kept")); string(text) != "kept" {
		t.Errorf("kept: %q %v", text, err)
	}
	if _, err := os.Lstat(filepath.Join(dest, ".wh..wh.plnk")); err == nil {
		t.Error("aufs's own name was unpacked")
	}
}

// FuzzUnpack: whatever comes, nothing appears outside, and nothing inside that
// may not be there.
func FuzzUnpack(f *testing.F) {
	for _, name := range slices.Sorted(maps.Keys(tricks)) {
		if entries := tricks[name].entries; len(entries) < 10 {
			f.Add(tarOf(f, entries...))
			f.Add(gzipped(f, tarOf(f, entries...)))
		}
	}
	f.Add(tarOf(f, file("etc/.wh.gone", ""), file("var/.wh..wh..opq", ""), dir("var"), hard("b", "etc/x")))
	f.Add([]byte("\x28\xb5\x2f\xfd"))
	f.Fuzz(func(t *testing.T, archive []byte) {
		base := t.TempDir()
		in := filepath.Join(base, "in")
		if err := os.Mkdir(in, 0o755); err != nil {
			t.Fatal(err)
		}
		is, err := unpack(bytes.NewReader(archive), in, wide, nil)
		if err == nil && (is.bytes > wide.bytes || is.entries > wide.entries) {
			t.Errorf("it took %d bytes in %d entries, with a bound of %+v", is.bytes, is.entries, wide)
		}
		checkInside(t, base, in)
	})
}

// checkInside wants nothing beside in, and in it no rights and devices.
func checkInside(t *testing.T, base, in string) {
	t.Helper()
	beside, err := os.ReadDir(base)
	if err != nil || len(beside) != 1 {
		t.Fatalf("beside the package: %v %v", beside, err)
	}
	var total int64
	err = filepath.WalkDir(in, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			return err
		}
		switch kind := stat.Mode & unix.S_IFMT; {
		case kind == unix.S_IFCHR && stat.Rdev == 0:
		case kind != unix.S_IFREG && kind != unix.S_IFDIR && kind != unix.S_IFLNK:
			t.Errorf("%s has mode %o", path, stat.Mode)
		}
		if stat.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			t.Errorf("%s has mode %o", path, stat.Mode)
		}
		if e.Type().IsRegular() {
			total += stat.Size
		}
		return nil
	})
	if err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	if total > wide.bytes {
		t.Errorf("%d bytes were unpacked, with a bound of %d", total, wide.bytes)
	}
}
