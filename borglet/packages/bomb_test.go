package packages

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
)

// heap measures how far the memory in use grows.
type heap struct {
	before, most uint64
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func newHeap() *heap {
	now := inUse()
	return &heap{now, now}
}

func (h *heap) look() { h.most = max(h.most, inUse()) }

// grown is by how many bytes the memory in use has grown at most.
func (h *heap) grown() int64 { return int64(h.most - h.before) }

// archiveOf writes an archive while it is read: count entries, each as header says.
// Every thousandth has the heap looked at.
func archiveOf(t *testing.T, h *heap, count int, header func(i int) *tar.Header) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { r.Close() })
	go func() {
		archive := tar.NewWriter(w)
		for i := range count {
			if err := archive.WriteHeader(header(i)); err != nil {
				w.CloseWithError(err)
				return
			}
			if i%1000 == 999 {
				h.look()
			}
		}
		w.CloseWithError(archive.Close())
	}()
	return r
}

// recorded is a directory with so many bytes of records, which compress to nothing.
func recorded(i, bytes int) *tar.Header {
	return &tar.Header{
		Name: fmt.Sprintf("d%d/", i), Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX,
		PAXRecords: map[string]string{"BORG.test": strings.Repeat("x", bytes)},
	}
}

var large = bounds{bytes: maxUnpackedBytes, entries: maxEntries, kept: maxKeptBytes}

// TestRecordsAreNotKept: a layer of 400 MiB of records, none of which says anything
// that a package has, costs no memory.
func TestRecordsAreNotKept(t *testing.T) {
	h := newHeap()
	const count = 2000
	is, err := unpack(archiveOf(t, h, count, func(i int) *tar.Header { return recorded(i, 200<<10) }), t.TempDir(), large, nil)
	if err != nil || is.entries != count {
		t.Fatalf("unpack: %d entries, %v", is.entries, err)
	}
	if h.grown() > 32<<20 {
		t.Errorf("%d entries with 200 KiB of records each take %d bytes of memory", count, h.grown())
	}
}

// TestHeadersAreBounded: an entry has no more headers than one needs, of whatever kind,
// and the refusal says where.
func TestHeadersAreBounded(t *testing.T) {
	global := &tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"BORG.test": strings.Repeat("x", 900<<10)}}
	for name, second := range map[string]*tar.Header{
		"records":       recorded(1, 900<<10),
		"global header": global,
		"long name":     {Name: strings.Repeat("n", 900<<10), Typeflag: tar.TypeDir, Format: tar.FormatGNU},
		"long link":     {Name: "l", Linkname: strings.Repeat("n", 900<<10), Typeflag: tar.TypeSymlink, Format: tar.FormatGNU},
	} {
		h := newHeap()
		_, err := unpack(archiveOf(t, h, 2, func(i int) *tar.Header {
			if i == 0 {
				return recorded(0, 10)
			}
			return second
		}), t.TempDir(), large, nil)
		if !errors.Is(err, errBomb) || !strings.Contains(err.Error(), `after entry "d0/": `) || !strings.Contains(err.Error(), "more than 262144 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGlobalHeadersCount: what leaves nothing behind is counted too.
func TestGlobalHeadersCount(t *testing.T) {
	h := newHeap()
	b := large
	b.entries = 1000
	_, err := unpack(archiveOf(t, h, 2000, func(int) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"BORG.test": "x"}}
	}), t.TempDir(), b, nil)
	if err == nil || !strings.Contains(err.Error(), "more than 1000 entries") {
		t.Errorf("2000 global headers: %v", err)
	}
}

// TestImpliedDirectoriesCount: an entry brings at most the directories that the bound of
// entries leaves.
func TestImpliedDirectoriesCount(t *testing.T) {
	b := large
	b.entries = 100
	_, err := unpack(bytes.NewReader(tarOf(t, file(strings.Repeat("d/", 120)+"x", ""))), t.TempDir(), b, nil)
	if err == nil || !strings.Contains(err.Error(), "more than 100 entries") {
		t.Errorf("120 directories that one entry implies: %v", err)
	}
}

// TestKeptNamesAreBounded: the names of directories, which are kept until a layer ends,
// end at their own bound.
func TestKeptNamesAreBounded(t *testing.T) {
	h := newHeap()
	b := large
	b.kept = 8 << 20
	long := strings.Repeat(strings.Repeat("n", 250)+"/", 15)
	_, err := unpack(archiveOf(t, h, 100_000, func(i int) *tar.Header {
		return &tar.Header{Name: fmt.Sprintf("%s%d/", long, i), Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX}
	}), t.TempDir(), b, nil)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d bytes of memory", b.kept)) || !strings.Contains(err.Error(), "entry \"nnn") {
		t.Errorf("100,000 directories with paths of 3,800 bytes: %.300v", err)
	}
	if h.look(); h.grown() > 2*b.kept {
		t.Errorf("they take %d bytes of memory; the bound is %d", h.grown(), b.kept)
	}
}

// TestManifestBomb: a manifest of elements that say nothing takes no more memory than its
// own bytes several times.
func TestManifestBomb(t *testing.T) {
	for name, text := range map[string]string{
		"layers":    `{"layers":[{}` + strings.Repeat(",{}", maxManifestBytes/3-20) + `]}`,
		"manifests": `{"manifests":[{}` + strings.Repeat(",{}", maxManifestBytes/3-20) + `]}`,
		"urls":      `{"config":{"urls":[""` + strings.Repeat(`,""`, maxManifestBytes/3-20) + `]}}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := readManifest([]byte(text), "amd64")
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "more than 1024 elements") {
			t.Errorf("%s: %.200v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 6*maxManifestBytes {
			t.Errorf("%s: %d bytes were allocated for %d", name, took, len(text))
		}
	}
}

// TestWindowIsBounded: a frame that asks for a window of 128 MiB gets none.
func TestWindowIsBounded(t *testing.T) {
	frame := "\x28\xb5\x2f\xfd\x00\x88\x01\x00\x00"
	_, err := unpack(strings.NewReader(frame), t.TempDir(), large, nil)
	if err == nil || !strings.Contains(err.Error(), "window") {
		t.Errorf("got %v", err)
	}
}
