package borglet

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/klauspost/compress/gzip"

	"borg/borglet/beneath"
)

// logPiece is a part of a stream that was taken out of its file and compressed:
//
//	stdout.<from>-<to>.gz     20 digits each: offsets in the stream
//
// The file keeps its length and is a hole where pieces were taken out, so that an
// offset means the same for ever, whether it lies in a piece or in the file.
type logPiece struct {
	name     string
	from, to int64
}

// pieceSuffix ends the name of a piece that is being made; nobody reads one.
const pieceSuffix = ".new"

var pieceName = regexp.MustCompile(`^(stdout|stderr)\.([0-9]{20})-([0-9]{20})\.gz$`)

func newPiece(stream string, from, to int64) logPiece {
	return logPiece{name: fmt.Sprintf("%s.%020d-%020d.gz", stream, from, to), from: from, to: to}
}

// parsePiece is what a file is by its name; ok is false if it is no piece.
func parsePiece(name string) (stream string, p logPiece, ok bool) {
	m := pieceName.FindStringSubmatch(name)
	if m == nil {
		return "", p, false
	}
	from, err := strconv.ParseInt(m[2], 10, 64)
	to, err2 := strconv.ParseInt(m[3], 10, 64)
	return m[1], logPiece{name: name, from: from, to: to}, err == nil && err2 == nil && from < to
}

// piecesOf lists the pieces of a stream, the oldest first.
func piecesOf(dir, stream string) ([]logPiece, error) {
	names, err := fileNames(dir)
	if err != nil {
		return nil, err
	}
	var pieces []logPiece
	for _, name := range names {
		if of, p, ok := parsePiece(name); ok && of == stream {
			pieces = append(pieces, p)
		}
	}
	slices.SortFunc(pieces, func(a, b logPiece) int { return cmp.Compare(a.from, b.from) })
	return pieces, nil
}

func fileNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for pieces of a log: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("look for pieces of a log: %w", err)
	}
	return names, nil
}

// pack writes a piece of the file of a stream. Nobody sees it before it is whole and
// on the disk, and commit has done its part.
func pack(w *gzip.Writer, dir string, p logPiece, file *os.File, commit func(made, as string) error) error {
	made := filepath.Join(dir, p.name+pieceSuffix)
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pack a log: %w", err)
	}
	out, err := beneath.Open(dir, p.name+pieceSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("pack a log: %w", err)
	}
	w.Reset(out)
	n, err := io.Copy(w, io.NewSectionReader(file, p.from, p.to-p.from))
	if err == nil && n != p.to-p.from {
		err = fmt.Errorf("%s became shorter meanwhile", filepath.Base(file.Name()))
	}
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = out.Sync()
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = commit(made, filepath.Join(dir, p.name))
	}
	if err != nil {
		os.Remove(made)
		return fmt.Errorf("pack a log: %w", err)
	}
	return nil
}

// unpacker reads one piece from front to back.
type unpacker struct {
	piece logPiece
	file  *os.File
	gz    *gzip.Reader
	// at is the offset in the stream of what comes next.
	at int64
}

func unpack(dir string, p logPiece) (*unpacker, error) {
	f, err := beneath.Open(dir, p.name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	gz, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return &unpacker{piece: p, file: f, gz: gz, at: p.from}, nil
}

// readAt reads at an offset that is not before what was read last.
func (u *unpacker) readAt(buf []byte, at int64) (int, error) {
	n, err := io.CopyN(io.Discard, u.gz, at-u.at)
	u.at += n
	if err != nil {
		return 0, fmt.Errorf("%s: %w", u.piece.name, err)
	}
	read, err := io.ReadFull(u.gz, buf[:min(int64(len(buf)), u.piece.to-at)])
	u.at += int64(read)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", u.piece.name, err)
	}
	return read, nil
}

func (u *unpacker) close() {
	if u != nil {
		u.file.Close()
	}
}
