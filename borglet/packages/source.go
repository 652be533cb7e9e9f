package packages

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Source is where packages are brought from.
type Source interface {
	// Open reads a manifest or another blob from offset on; a source that cannot
	// begin there begins at its start, and says where. What it does not have is
	// errAbsent. Bytes of it are not believed.
	Open(ctx context.Context, of content, offset int64) (r io.ReadCloser, from int64, err error)
	// String names it to people.
	String() string
}

// content is what is asked of a source.
type content struct {
	blob
	// manifest: it is asked for as one; then Bytes may be zero, not known.
	manifest bool
}

// errAbsent: a source does not have it.
var errAbsent = errors.New("it is not there")

// ParseSource reads what a borglet is told: http://HOST/PREFIX and https://... are
// registries, to which who is shown, an absolute path is an OCI layout, or an archive of one.
func ParseSource(text string, who Credentials) (Source, error) {
	switch {
	case strings.HasPrefix(text, "http://"), strings.HasPrefix(text, "https://"):
		return newRegistry(text, who)
	case !filepath.IsAbs(text):
		return nil, fmt.Errorf("%q: want https://HOST/REPOSITORY, or the absolute path of an OCI layout or of an archive of one", text)
	}
	info, err := os.Stat(text)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		return archive(text), nil
	}
	if _, err := os.Stat(filepath.Join(text, "oci-layout")); err != nil {
		return nil, fmt.Errorf("%s is not an OCI layout: it has no file oci-layout", text)
	}
	return layout(text), nil
}

// layout is a directory in the form of OCI.
type layout string

func (l layout) String() string { return "OCI layout " + string(l) }

func (l layout) Open(_ context.Context, of content, offset int64) (io.ReadCloser, int64, error) {
	f, err := os.OpenInRoot(string(l), filepath.Join("blobs", "sha256", of.Digest.hex()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, errAbsent
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", f.Name())
	}
	if err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, offset, nil
}

// archive is a layout in one file, as tar. It is searched each time: the files
// in it are skipped and not read.
type archive string

func (a archive) String() string { return "archive " + string(a) }

func (a archive) Open(_ context.Context, of content, offset int64) (io.ReadCloser, int64, error) {
	f, err := os.Open(string(a))
	if err != nil {
		return nil, 0, err
	}
	want, docker := "blobs/sha256/"+of.Digest.hex(), false
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if err == io.EOF && docker {
			err = fmt.Errorf("it has a manifest.json and no such blob: an archive of `docker save` in its old form, which has no digests; write an OCI archive")
		} else if err == io.EOF {
			err = errAbsent
		}
		if err != nil {
			f.Close()
			return nil, 0, err
		}
		name := path.Clean(h.Name)
		docker = docker || name == "manifest.json"
		if name != want || h.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := io.CopyN(io.Discard, r, offset); err != nil {
			f.Close()
			return nil, 0, err
		}
		return struct {
			io.Reader
			io.Closer
		}{r, f}, offset, nil
	}
}
