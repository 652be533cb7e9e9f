package trace_test

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"borg/fauxmaster/trace"
)

// TestParquetClaims: a small file that claims much is an error, before room is made for
// it.
func TestParquetClaims(t *testing.T) {
	type row struct {
		Time int64  `parquet:"time"`
		Type string `parquet:"type,optional,snappy"`
		ID   int64  `parquet:"collection_id,optional,dict"`
	}
	var file bytes.Buffer
	if err := parquet.Write(&file, []row{{1, "SUBMIT", 5}, {2, "KILL", 6}}); err != nil {
		t.Fatal(err)
	}
	read := func(data []byte) error {
		return trace.NewGoogle2019(0, 0).Read("instance_events.parquet", bytes.NewReader(data))
	}
	if err := read(file.Bytes()); err != nil && !strings.Contains(err.Error(), "no column") {
		t.Fatalf("as it was written: %v", err)
	}
	// Whatever byte is another one, in no file becomes much of it.
	for at := range file.Len() {
		for _, value := range []byte{0x00, 0x7f, 0x80, 0xff} {
			data := bytes.Clone(file.Bytes())
			data[at] = value
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := read(data)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 32<<20 {
				t.Errorf("with byte %d of %d as %#x %d MiB were taken: %v", at, len(data), value, got>>20, err)
			}
		}
	}
	// The length of the footer is believed as little as the rest.
	data := bytes.Clone(file.Bytes())
	copy(data[len(data)-8:], "\xff\xff\xff\x7f")
	if err := read(data); err == nil || !strings.Contains(err.Error(), "its footer would have 2147483647 of its") {
		t.Errorf("with a footer of 2 GiB: %v", err)
	}
	// So is what pages claim, which are written here as the library would not.
	for name, page := range map[string]format.PageHeader{
		"unpacked":    {Type: format.DataPage, UncompressedPageSize: 1 << 30},
		"values":      {Type: format.DataPage, DataPageHeader: thrift.New(format.DataPageHeader{NumValues: 1 << 30})},
		"goes beyond": {Type: format.DataPage, CompressedPageSize: 1 << 30},
	} {
		err := read(fileOfPage(t, format.Uncompressed, page, nil))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a page that claims too much: %v, want something of %q", err, name)
		}
	}
}
