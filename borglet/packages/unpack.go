package packages

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	// metaPrefix begins the names of aufs's own, of which one has a meaning.
	metaPrefix   = ".wh..wh."
	opaqueMarker = ".wh..wh..opq"
	opaqueXattr  = "trusted.overlay.opaque"
)

// bounds is how much one layer may become.
type bounds struct {
	bytes   int64
	entries int
	// kept is the memory for what is kept of names while it is unpacked.
	kept int64
	// grow is asked for room, growBytes or more at a time, before it is taken; nil:
	// there is enough.
	grow func(bytes int64) error
}

// boundsOf are those of a layer of so many packed bytes.
func boundsOf(packedBytes int64, grow func(int64) error) bounds {
	most := maxUnpackedBytes
	if packedBytes < most/maxRatio {
		most = max(freeRatioBytes, packedBytes*maxRatio)
	}
	return bounds{bytes: most, entries: maxEntries, kept: maxKeptBytes, grow: grow}
}

// unpacker puts the entries of one layer below a directory. It never follows a
// link: what it makes it makes in directories that it made itself.
type unpacker struct {
	root   *os.Root
	bounds bounds
	chown  bool
	// kept has the directories that were made, and the names that the layer takes away
	// from lower ones. keptBytes is the memory it is charged.
	kept      map[string]kept
	keptBytes int64
	// lower are the layers below, the highest first.
	lower []*os.Root
	// needsLower: what is made depends on the layers below.
	needsLower bool
	bytes      int64
	entries    int
	// grown is how much room was got; at least bytes.
	grown int64
}

// unpacked is what a layer has become.
type unpacked struct {
	bytes   int64
	entries int
	// alone: it is the same on top of any other layers.
	alone bool
}

// unpack unpacks a layer, packed or not, into an empty directory, and returns
// what it takes there. lower are the unpacked layers below it, the lowest first. Nothing
// is synced.
func unpack(r io.Reader, dir string, b bounds, lower []string) (is unpacked, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return is, fmt.Errorf("unpack: %w", err)
	}
	defer root.Close()
	plain, closePlain, err := decompress(r)
	if err != nil {
		return is, err
	}
	defer closePlain()
	u := &unpacker{
		root: root, bounds: b, chown: os.Geteuid() == 0,
		kept: map[string]kept{".": {kind: madeDir}},
	}
	defer u.closeLower()
	if err := u.openLower(lower); err != nil {
		return is, err
	}
	// The archive is above its files by headers of half a block each at least, so
	// that twice the bound is never reached by what is within it.
	stream := &bounded{r: plain, left: satAdd(b.bytes, b.bytes)}
	if err := u.archive(stream); err != nil {
		return is, err
	}
	if err := u.finish(); err != nil {
		return is, err
	}
	return unpacked{u.bytes, u.entries, !u.needsLower}, nil
}

// archive unpacks all entries of an archive.
func (u *unpacker) archive(stream *bounded) error {
	archive := tar.NewReader(stream)
	for last := ""; ; {
		stream.headers()
		h, err := archive.Next()
		stream.content()
		switch {
		case err == io.EOF:
			return nil
		case err != nil && !errors.Is(err, tar.ErrInsecurePath):
			return fmt.Errorf("unpack: read the archive at byte %d, after entry %.200q: %w", stream.read, last, err)
		}
		// h may have a megabyte of records. Nothing of it is kept but what is copied.
		last = strings.Clone(h.Name[:min(len(h.Name), maxNameTold)])
		if err := u.entry(h, archive); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, archive); err != nil {
			return fmt.Errorf("unpack %.200q: %w", h.Name, err)
		}
	}
}

func satAdd(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// decompress tells by the first bytes how it was packed.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	head, err := buffered.Peek(4)
	if err != nil && err != io.EOF {
		return nil, nil, fmt.Errorf("unpack: %w", err)
	}
	switch {
	case len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b:
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, nil, fmt.Errorf("unpack: read gzip: %w", err)
		}
		return z, func() {}, nil
	case string(head) == "\x28\xb5\x2f\xfd", len(head) == 4 && head[0]&0xf0 == 0x50 && string(head[1:]) == "\x2a\x4d\x18":
		// A frame of zstd, or one to be skipped before it.
		z, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxWindowBytes), zstd.WithDecoderMaxWindow(maxWindowBytes))
		if err != nil {
			return nil, nil, fmt.Errorf("unpack: read zstd: %w", err)
		}
		return z, z.Close, nil
	case string(head) == "\xfd7zX", strings.HasPrefix(string(head), "BZh"):
		return nil, nil, errors.New("unpack: it is packed by xz or bzip2; push the image again with layers that are packed by gzip or zstd")
	}
	return buffered, func() {}, nil
}

// refuse says what is wrong with an entry.
func refuse(name, format string, args ...any) error {
	return fmt.Errorf("entry %.200q is refused: %w", name, fmt.Errorf(format, args...))
}

// entryName is the path of an entry below the root, or why it is refused. An absolute path
// means the root of the package, as all unpackers of images take it.
func entryName(name string) (string, error) {
	name = strings.TrimLeft(name, "/")
	switch {
	case strings.ContainsRune(name, 0):
		return "", refuse(name, "its path has a zero byte")
	case len(name) > maxEntryPathBytes:
		return "", refuse(name, "its path has %d bytes; at most %d", len(name), maxEntryPathBytes)
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", refuse(name, "its path leads out of the package")
		case len(part) > maxEntryNameBytes:
			return "", refuse(name, "a part of its path has %d bytes; at most %d", len(part), maxEntryNameBytes)
		}
	}
	return path.Clean(name), nil
}

// count counts one more entry, or directory that an entry implies.
func (u *unpacker) count(entry string) error {
	if u.entries++; u.entries > u.bounds.entries {
		return refuse(entry, "the layer has more than %d entries, with the directories that they imply", u.bounds.entries)
	}
	return u.take(entry, blockBytes)
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if err := u.count(h.Name); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		// It says nothing that a package has. It is an entry like others to the bounds.
		return nil
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return refuse(h.Name, "the root of a package is a directory")
		}
		return u.keep(h.Name, name, kept{kind: madeDir, look: lookOf(h)})
	}
	if err := u.parents(h.Name, path.Dir(name)); err != nil {
		return err
	}
	if base := path.Base(name); strings.HasPrefix(base, whiteoutPrefix) {
		return u.whiteout(h.Name, path.Dir(name), base)
	}
	if h.Typeflag == tar.TypeDir {
		return u.directory(h, name)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, tar.TypeLink, tar.TypeSymlink:
	case tar.TypeChar, tar.TypeBlock:
		return refuse(h.Name, "it is a device; tasks have those of /dev alone")
	case tar.TypeFifo:
		return refuse(h.Name, "it is a pipe")
	default:
		return refuse(h.Name, "its kind %q is not known", h.Typeflag)
	}
	if u.isDir(name) {
		return refuse(h.Name, "it is a directory in the same layer")
	}
	// The last of several entries of one name counts.
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpack %.200q: %w", h.Name, err)
	}
	u.forget(name)
	switch h.Typeflag {
	case tar.TypeLink:
		return u.hardLink(h, name)
	case tar.TypeSymlink:
		return u.symbolicLink(h, name)
	}
	return u.file(h, name, content)
}

// take counts bytes against the bound.
func (u *unpacker) take(name string, bytes int64) error {
	if bytes < 0 || bytes > u.bounds.bytes-u.bytes {
		return refuse(name, "%w: more than %d bytes", errBomb, u.bounds.bytes)
	}
	if more := u.bytes + bytes - u.grown; more > 0 && u.bounds.grow != nil {
		more = max(more, growBytes)
		if err := u.bounds.grow(more); err != nil {
			return err
		}
		u.grown += more
	}
	u.bytes += bytes
	return nil
}

// parents makes the directories above an entry that have no entry of their own
// yet, and refuses what would lead through something else.
func (u *unpacker) parents(entry, dir string) error {
	if u.isDir(dir) {
		return nil
	}
	if err := u.parents(entry, path.Dir(dir)); err != nil {
		return err
	}
	if err := u.count(entry); err != nil {
		return err
	}
	return u.makeDir(entry, dir, kept{kind: madeDir, implied: !u.isGone(dir)})
}

// makeDir makes one directory in one that was made.
func (u *unpacker) makeDir(entry, dir string, as kept) error {
	hides := u.isGone(dir)
	if hides {
		if err := u.root.Remove(dir); err != nil {
			return fmt.Errorf("unpack %.200q: %w", entry, err)
		}
	}
	err := u.root.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		info, statErr := u.root.Lstat(dir)
		if statErr == nil && info.Mode()&fs.ModeSymlink != 0 {
			return refuse(entry, "its path leads through %.200q, which is a symbolic link", dir)
		}
		return refuse(entry, "its path leads through %.200q, which is no directory", dir)
	}
	if err != nil {
		return fmt.Errorf("unpack %.200q: %w", entry, err)
	}
	if err := u.keep(entry, dir, as); err != nil {
		return err
	}
	if hides {
		return u.opaque(dir)
	}
	return nil
}

func (u *unpacker) directory(h *tar.Header, name string) error {
	as := kept{kind: madeDir, look: lookOf(h)}
	if u.isDir(name) {
		return u.keep(h.Name, name, as)
	}
	if info, err := u.root.Lstat(name); err == nil && !u.isGone(name) {
		if info.Mode()&fs.ModeSymlink != 0 {
			return refuse(h.Name, "it is a symbolic link in the same layer")
		}
		return refuse(h.Name, "it is a file in the same layer")
	}
	return u.makeDir(h.Name, name, as)
}

func (u *unpacker) file(h *tar.Header, name string, content io.Reader) error {
	if h.Size < 0 {
		return refuse(h.Name, "its size is %d", h.Size)
	}
	if err := u.take(h.Name, h.Size); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("unpack %.200q: %w", h.Name, err)
	}
	n, err := io.Copy(f, content)
	if err == nil && n != h.Size {
		err = io.ErrUnexpectedEOF
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("unpack %.200q: %w", h.Name, err)
	}
	return u.dress(lookOf(h), h.Name, name)
}

// symbolicLink makes a link. An absolute one means the task's own root, where
// the task alone follows it; one that climbs out of the package is refused.
func (u *unpacker) symbolicLink(h *tar.Header, name string) error {
	to := h.Linkname
	switch {
	case to == "" || strings.ContainsRune(to, 0):
		return refuse(h.Name, "it is a symbolic link to %.200q", to)
	case len(to) > maxLinkBytes:
		return refuse(h.Name, "it is a symbolic link of %d bytes; at most %d", len(to), maxLinkBytes)
	case !strings.HasPrefix(to, "/"):
		if end := path.Join(path.Dir(name), to); end == ".." || strings.HasPrefix(end, "../") {
			return refuse(h.Name, "it is a symbolic link to %.200q, which leads out of the package", to)
		}
	}
	if err := u.root.Symlink(to, name); err != nil {
		return fmt.Errorf("unpack %.200q: %w", h.Name, err)
	}
	if u.chown {
		if err := u.root.Lchown(name, h.Uid, h.Gid); err != nil {
			return refuse(h.Name, "its owner is %d:%d: %w", h.Uid, h.Gid, err)
		}
	}
	return nil
}

// hardLink makes another name of a file of the same layer. One to a file of a lower layer
// is refused: a copy of that file would be another file, and grow this layer by what it
// does not say.
func (u *unpacker) hardLink(h *tar.Header, name string) error {
	to, err := entryName(h.Linkname)
	if err != nil {
		return refuse(h.Name, "it is a hard link: %w", err)
	}
	info, err := u.root.Lstat(to)
	if !u.isDir(path.Dir(to)) {
		// Nothing is reached through a link.
		info, err = nil, fs.ErrNotExist
	}
	switch {
	case err != nil && u.isDir(to), err == nil && (!info.Mode().IsRegular() || u.isGone(to)):
		return refuse(h.Name, "it is a hard link to %.200q, which is no file", h.Linkname)
	case err != nil:
		return refuse(h.Name, "it is a hard link to %.200q, which is no file of this layer; copy the file, or build both in one layer", h.Linkname)
	}
	if err := u.root.Link(to, name); err != nil {
		return fmt.Errorf("unpack %.200q: %w", h.Name, err)
	}
	return nil
}

// whiteout takes a name, or all names of a directory, away from lower layers,
// as overlayfs has it: a device of number 0, an attribute.
func (u *unpacker) whiteout(entry, dir, base string) error {
	if base == opaqueMarker {
		return u.opaque(dir)
	}
	if strings.HasPrefix(base, metaPrefix) {
		return nil
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return refuse(entry, "it takes away %q", hidden)
	}
	name := path.Join(dir, hidden)
	if u.isDir(name) {
		return u.opaque(name)
	}
	if _, err := u.root.Lstat(name); err == nil {
		// What the layer has in its place hides it already.
		return nil
	}
	d, err := u.root.Open(dir)
	if err != nil {
		return fmt.Errorf("unpack %.200q: %w", entry, err)
	}
	defer d.Close()
	if err := unix.Mknodat(int(d.Fd()), hidden, unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("unpack %.200q: mark as taken away: %w", entry, err)
	}
	return u.keep(entry, name, kept{kind: takenAway})
}

func (u *unpacker) opaque(dir string) error {
	d, err := u.root.Open(dir)
	if err != nil {
		return fmt.Errorf("unpack %.200q: %w", dir, err)
	}
	defer d.Close()
	if err := unix.Fsetxattr(int(d.Fd()), opaqueXattr, []byte("y"), 0); err != nil {
		return fmt.Errorf("unpack %.200q: hide what is below: %w", dir, err)
	}
	return nil
}
