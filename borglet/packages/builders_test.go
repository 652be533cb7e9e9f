package packages

import (
	"archive/tar"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// view is what a task sees of an image: the layers one above the other.
func view(t *testing.T, s *Store, i *testImage) string {
	t.Helper()
	trees, err := s.Hold(context.Background(), borglet.Turn{}, "view", []string{string(i.digest)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Drop("view")
	at := trees[0][0]
	if len(trees[0]) > 1 {
		at = t.TempDir()
		layers := slices.Clone(trees[0])
		slices.Reverse(layers)
		if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(layers, ":")); err != nil {
			t.Fatalf("mount the layers: %v", err)
		}
		defer func() {
			if err := unix.Unmount(at, 0); err != nil {
				t.Errorf("unmount the layers: %v", err)
			}
		}()
	}
	var seen []string
	inodes := map[uint64]string{}
	err = filepath.WalkDir(at, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == at {
			return err
		}
		name, _ := filepath.Rel(at, path)
		var is unix.Stat_t
		if err := unix.Lstat(path, &is); err != nil {
			return err
		}
		who := ""
		if is.Uid != 0 || is.Gid != 0 {
			who = fmt.Sprintf(":%d:%d", is.Uid, is.Gid)
		}
		switch is.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if mode := is.Mode & 0o7777; mode != 0o755 || who != "" {
				seen = append(seen, fmt.Sprintf("%s/%o%s", name, mode, who))
			}
		case unix.S_IFLNK:
			to, _ := os.Readlink(path)
			seen = append(seen, name+"->"+to)
		case unix.S_IFREG:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if same := inodes[is.Ino]; same != "" && is.Nlink > 1 {
				seen = append(seen, name+"=="+same)
				return nil
			}
			inodes[is.Ino] = name
			mode := ""
			if is.Mode&0o7777 != 0o644 {
				mode = fmt.Sprintf("/%o", is.Mode&0o7777)
			}
			seen = append(seen, fmt.Sprintf("%s=%.20s%s%s", name, text, mode, who))
		default:
			seen = append(seen, fmt.Sprintf("%s?%o", name, is.Mode))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(seen, " ")
}

// sparseTar is what GNU tar --sparse writes of a file of a hole of 1 KiB and "end".
func sparseTar() []byte {
	block := make([]byte, 512)
	octal := func(at, width int, n int64) { copy(block[at:], fmt.Sprintf("%0*o\x00", width-1, n)) }
	copy(block, "sparse")
	octal(100, 8, 0o644)
	octal(108, 8, 0)
	octal(116, 8, 0)
	octal(124, 12, 3)
	octal(136, 12, 1700000000)
	block[156] = 'S'
	copy(block[257:], "ustar  \x00")
	octal(386, 12, 1024)
	octal(398, 12, 3)
	octal(483, 12, 1027)
	copy(block[148:156], "        ")
	sum := 0
	for _, b := range block {
		sum += int(b)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
	out := append(block, make([]byte, 3*512)...)
	copy(out[512:], "end")
	return out
}

// TestImagesOfBuilders: each row of the table in docs/packages.md that is run.
func TestImagesOfBuilders(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("whiteouts and overlays need root")
	}
	z := func(entries ...entry) []byte { return gzipped(t, tarOf(t, entries...)) }
	low := []entry{dir("d"), file("d/a", "low-a"), file("d/b", "low-b"), {name: "tmp", kind: tar.TypeDir, mode: 0o1777}, link("lib", "d")}
	base := z(low...)
	plain := tarOf(t, low...)
	half := len(plain) / 2
	const lowView = "d/a=low-a d/b=low-b lib->d tmp/1777"
	rows := map[string]struct {
		layers [][]byte
		want   string
	}{
		"gzip":                           {[][]byte{base}, lowView},
		"gzip in several members":        {[][]byte{append(gzipped(t, plain[:half]), gzipped(t, plain[half:])...)}, lowView},
		"zstd":                           {[][]byte{zstdOf(t, plain)}, lowView},
		"zstd with frames to skip":       {[][]byte{append(append([]byte("\x50\x2a\x4d\x18\x04\x00\x00\x00skip"), zstdOf(t, plain)...), "\x51\x2a\x4d\x18\x01\x00\x00\x00x"...)}, lowView},
		"not packed":                     {[][]byte{plain}, lowView},
		"an empty layer":                 {[][]byte{base, z()}, lowView},
		"whiteout":                       {[][]byte{base, z(file("d/.wh.a", ""))}, "d/b=low-b lib->d tmp/1777"},
		"whiteout that is a hard link":   {[][]byte{base, z(hard("d/.wh.a", "d/b"))}, "d/b=low-b lib->d tmp/1777"},
		"opaque marker last":             {[][]byte{base, z(dir("d"), file("d/n", "n"), file("d/.wh..wh..opq", ""))}, "d/n=n lib->d tmp/1777"},
		"removed and made again":         {[][]byte{base, z(file("d/.wh.a", "")), z(file("d/a", "third"))}, "d/a=third d/b=low-b lib->d tmp/1777"},
		"hard link in a layer":           {[][]byte{z(file("x", "1"), hard("y", "x"))}, "x=1 y==x"},
		"file replaces directory":        {[][]byte{base, z(file("d", "now a file"))}, "d=now a file lib->d tmp/1777"},
		"directory replaces file":        {[][]byte{base, z(dir("d/a"), file("d/a/in", "in"))}, "d/a/in=in d/b=low-b lib->d tmp/1777"},
		"link replaces directory":        {[][]byte{base, z(link("d", "usr"))}, "d->usr lib->d tmp/1777"},
		"directory replaces link":        {[][]byte{base, z(file("lib/z", "z"))}, "d/a=low-a d/b=low-b lib/z=z tmp/1777"},
		"twice in a layer":               {[][]byte{z(file("t", "first"), file("t", "second"))}, "t=second"},
		"paths with ./":                  {[][]byte{z(dir("./"), dir("./e"), file("./e/f", "dot"))}, "e/f=dot"},
		"absolute paths":                 {[][]byte{z(dir("/e"), file("/e/f", "abs"), hard("/e/g", "/e/f"))}, "e/f=abs e/g==e/f"},
		"no directories":                 {[][]byte{z(file("p/q/r", "deep"))}, "p/q/r=deep"},
		"no directories over lower ones": {[][]byte{base, z(file("tmp/x", "x"))}, "d/a=low-a d/b=low-b lib->d tmp/1777 tmp/x=x"},
		"set-user-id":                    {[][]byte{z(entry{name: "su", kind: tar.TypeReg, text: "s", mode: 0o4755})}, "su=s/755"},
		"a sparse file":                  {[][]byte{sparseTar()}, "sparse=" + strings.Repeat("\x00", 20)},
		"a contiguous file":              {[][]byte{z(entry{name: "c", kind: tar.TypeCont})}, "c="},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			i := imageOf(t, runtime.GOARCH, row.layers...)
			s := openStore(t, t.TempDir(), 1<<30, writeLayout(t, i))
			if got := view(t, s, i); got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
			// The next borglet finds it whole.
			s = openStore(t, s.root, 1<<30)
			if got := view(t, s, i); got != row.want {
				t.Errorf("after a restart got  %s\nwant %s", got, row.want)
			}
		})
	}
}

// TestLayerOnOthers: a layer that depends on those below it is another one on top of
// others; one that does not is kept once.
func TestLayerOnOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("whiteouts and overlays need root")
	}
	z := func(entries ...entry) []byte { return gzipped(t, tarOf(t, entries...)) }
	top, alone := z(file("tmp/x", "x")), z(dir("e"), file("e/f", "f"))
	one := imageOf(t, runtime.GOARCH, z(dir("d"), file("d/a", "one"), entry{name: "tmp", kind: tar.TypeDir, mode: 0o1777}), top, alone)
	two := imageOf(t, runtime.GOARCH, z(dir("d"), file("d/a", "two")), top, alone)
	s := openStore(t, t.TempDir(), 1<<30, writeLayout(t, one, two))
	if got, want := view(t, s, one), "d/a=one e/f=f tmp/1777 tmp/x=x"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := view(t, s, two), "d/a=two e/f=f tmp/x=x"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if n := len(s.layers); n != 5 {
		t.Errorf("%d layers are kept, want two below, two above, and the one that depends on none", n)
	}
}

// TestManifestsOfBuilders: which manifest of an index is taken, and what is refused with
// which words.
func TestManifestsOfBuilders(t *testing.T) {
	digest := func(n int) string { return fmt.Sprintf("sha256:%064x", n) }
	index := func(list ...descriptor) []byte {
		return mustJSON(t, document{SchemaVersion: 2, Manifests: list})
	}
	of := func(n int, os, arch, variant string) descriptor {
		return descriptor{Digest: digest(n), Size: 9, Platform: &platform{Architecture: arch, OS: os, Variant: variant}}
	}
	unnamed := func(n int) descriptor { return descriptor{Digest: digest(n), Size: 9} }
	image := func(kind string) []byte {
		return mustJSON(t, document{SchemaVersion: 2, Config: &descriptor{Digest: digest(1), Size: 9}, Layers: []descriptor{{MediaType: kind, Digest: digest(2), Size: 9}}})
	}
	for name, c := range map[string]struct {
		text []byte
		next int
		says string
	}{
		"of this machine":        {text: index(of(1, "windows", "amd64", ""), of(2, "linux", "arm64", "v8"), of(3, "linux", "amd64", "")), next: 3},
		"with attestations":      {text: index(of(1, "linux", "amd64", ""), of(2, "unknown", "unknown", "")), next: 1},
		"general variant last":   {text: index(of(1, "linux", "amd64", "v3"), of(2, "linux", "amd64", "")), next: 2},
		"one variant":            {text: index(of(1, "linux", "amd64", "v2")), next: 1},
		"no platform":            {text: index(unnamed(1)), next: 1},
		"several of no platform": {text: index(unnamed(1), unnamed(2)), says: "name one of them by its digest"},
		"other machines":         {text: index(of(1, "linux", "s390x", "")), says: "not for linux/amd64, only for linux/s390x"},
		"docker, zstd":           {text: image("application/vnd.docker.image.rootfs.diff.tar.zstd")},
		"foreign layer":          {text: image("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"), says: "foreign"},
		"nondistributable layer": {text: image("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"), says: "foreign"},
		"encrypted layer":        {text: image("application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), says: "cannot be unpacked"},
		"first schema":           {text: []byte(`{"schemaVersion":1,"layers":[{}]}`), says: "images of the first schema are not read"},
		"no layers":              {text: []byte(`{"schemaVersion":2,"config":{"digest":"` + digest(1) + `","size":9}}`), says: "no layers"},
	} {
		m, next, err := readManifest(c.text, "amd64")
		switch {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", name, err, c.says)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.next != 0 && string(next.Digest) != digest(c.next):
			t.Errorf("%s: %s is taken, want %d", name, next.Digest, c.next)
		case c.next == 0 && m == nil:
			t.Errorf("%s: it is no image", name)
		}
	}
	if _, _, err := decompress(strings.NewReader("\xfd7zXZ\x00")); err == nil || !strings.Contains(err.Error(), "packed by xz") {
		t.Errorf("xz: %v", err)
	}
}

// TestNestedIndexes: an image is found through indexes within indexes, up to a bound.
func TestNestedIndexes(t *testing.T) {
	i := simple(t, 1, 100)
	wrap := func() {
		d := descriptor{MediaType: manifestTypes[1], Digest: string(i.digest), Size: int64(len(i.blobs[i.digest]))}
		i.digest = Digest(i.add(mustJSON(t, document{SchemaVersion: 2, MediaType: manifestTypes[1], Manifests: []descriptor{d}})).Digest)
	}
	for range maxManifests - 1 {
		wrap()
	}
	hold := func() error {
		s := openStore(t, t.TempDir(), 1<<30, writeLayout(t, i))
		_, err := s.Hold(context.Background(), borglet.Turn{}, "x", []string{string(i.digest)}, nil)
		return err
	}
	if err := hold(); err != nil {
		t.Error(err)
	}
	wrap()
	if err := hold(); err == nil || !strings.Contains(err.Error(), "within others") {
		t.Errorf("one more: %v", err)
	}
}
