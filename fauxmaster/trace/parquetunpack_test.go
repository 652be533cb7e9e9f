package trace_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"borg/fauxmaster/trace"
)

// bomb is what the pages of bombs unpack to.
var bomb = make([]byte, 64<<20)

// packings are ways to pack a page of n bytes, which need not say how long it is.
var packings = map[string]struct {
	codec format.CompressionCodec
	pack  func(n int) []byte
}{
	"gzip": {format.Gzip, func(n int) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(bomb[:n])
		_ = w.Close()
		return b.Bytes()
	}},
	"zstd": {format.Zstd, func(n int) []byte {
		// In pieces, so that its length does not stand in its head.
		var b bytes.Buffer
		w, _ := zstd.NewWriter(&b)
		_, _ = w.Write(bomb[:n/2])
		_ = w.Flush()
		_, _ = w.Write(bomb[n/2 : n])
		_ = w.Close()
		return b.Bytes()
	}},
	"zstd that says so": {format.Zstd, func(n int) []byte {
		w, _ := zstd.NewWriter(nil)
		return w.EncodeAll(bomb[:n], nil)
	}},
	"snappy": {format.Snappy, func(n int) []byte { return snappy.Encode(nil, bomb[:n]) }},
}

// packedPage is a file of one page of one row, of 8 bytes as its header claims.
func packedPage(t testing.TB, codec format.CompressionCodec, page []byte) []byte {
	return fileOfPage(t, codec, format.PageHeader{
		Type: format.DataPage, UncompressedPageSize: 8, CompressedPageSize: int32(len(page)),
		DataPageHeader: thrift.New(format.DataPageHeader{NumValues: 1}),
	}, page)
}

// TestParquetUnpacked: a page that becomes more than it claims is an error, however it is
// packed, before room is made for it; one that becomes as much is read.
func TestParquetUnpacked(t *testing.T) {
	read := func(data []byte) error {
		return trace.NewGoogle2019(0, 0).Read("instance_events.parquet", bytes.NewReader(data))
	}
	for name, p := range packings {
		for _, n := range []int{8, 9, len(bomb)} {
			data := packedPage(t, p.codec, p.pack(n))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := read(data)
			runtime.ReadMemStats(&after)
			if more := err != nil && strings.Contains(err.Error(), "it unpacks to more than the 8 bytes that it claims"); more != (n > 8) {
				t.Errorf("%s: a page of 8 bytes becomes %d: %v", name, n, err)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
				t.Errorf("%s: for a page of 8 bytes that becomes %d %d MiB were taken", name, n, got>>20)
			}
		}
	}
	for _, codec := range []format.CompressionCodec{format.Lz4Raw, format.Brotli} {
		if err := read(packedPage(t, codec, []byte("torn"))); err == nil || !strings.Contains(err.Error(), "it is packed with "+codec.String()+", which is not read") {
			t.Errorf("%s: %v", codec, err)
		}
	}
	for _, codec := range []format.CompressionCodec{format.Gzip, format.Zstd} {
		if err := read(packedPage(t, codec, []byte("torn"))); err == nil || !strings.Contains(err.Error(), "unpack it") {
			t.Errorf("%s: %v", codec, err)
		}
	}
}

// TestParquetPacked: what the library writes is read, with pages of both versions.
func TestParquetPacked(t *testing.T) {
	type row struct {
		Time int64  `parquet:"time"`
		Type string `parquet:"type,optional,dict"`
	}
	for _, codec := range []struct{ parquet.WriterOption }{
		{parquet.Compression(&parquet.Uncompressed)}, {parquet.Compression(&parquet.Snappy)}, {parquet.Compression(&parquet.Gzip)}, {parquet.Compression(&parquet.Zstd)},
	} {
		for version := 1; version <= 2; version++ {
			var file bytes.Buffer
			if err := parquet.Write(&file, []row{{1, "SUBMIT"}, {2, ""}, {3, "KILL"}}, codec.WriterOption, parquet.DataPageVersion(version)); err != nil {
				t.Fatal(err)
			}
			err := trace.NewGoogle2019(0, 0).Read("instance_events.parquet", bytes.NewReader(file.Bytes()))
			if err == nil || !strings.Contains(err.Error(), "no column") {
				t.Errorf("version %d: %v, want only that columns are missing", version, err)
			}
		}
	}
}

// fileOfPage is a file of one column with one page.
func fileOfPage(t testing.TB, codec format.CompressionCodec, page format.PageHeader, content []byte) []byte {
	t.Helper()
	var compact thrift.CompactProtocol
	header, err := thrift.Marshal(&compact, &page)
	if err != nil {
		t.Fatal(err)
	}
	schema := []format.SchemaElement{
		{Name: "root", NumChildren: thrift.New(int32(1))},
		{Name: "time", Type: thrift.New(format.Int64), RepetitionType: thrift.New(format.Required)},
	}
	footer, err := thrift.Marshal(&compact, &format.FileMetaData{Version: 1, Schema: schema, NumRows: 1, RowGroups: []format.RowGroup{{NumRows: 1, Columns: []format.ColumnChunk{{
		MetaData: format.ColumnMetaData{
			Type: format.Int64, PathInSchema: []string{"time"}, Codec: codec, NumValues: 1,
			DataPageOffset: 4, TotalCompressedSize: int64(len(header) + len(content)),
		},
	}}}}})
	if err != nil {
		t.Fatal(err)
	}
	data := append(append([]byte("PAR1"), header...), content...)
	data = append(data, footer...)
	return append(binary.LittleEndian.AppendUint32(data, uint32(len(footer))), "PAR1"...)
}
