package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

type record struct{ key, value string }

func testHeader() *borgpb.CheckpointHeader {
	return &borgpb.CheckpointHeader{
		CellFormat: 1, CellName: "cc", CellId: "cc-0001", Epoch: 1, Index: 42, Term: 3,
		CellTimeNs: 5e9, WallTimeNs: 1_800_000_000e9, Digest: bytes.Repeat([]byte{7}, 16),
		Voters: []uint64{1, 2, 3}, Members: []*borgpb.Member{{Id: 1, Addr: "a:7001"}, {Id: 2, Addr: "b:7002"}, {Id: 3, Addr: "c:7003"}},
	}
}

func encode(t testing.TB, h *borgpb.CheckpointHeader, records []record) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if err := w.Add([]byte(r.key), []byte(r.value)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// decode reads all of a file; records are only to be believed without error.
func decode(file []byte) (*borgpb.CheckpointHeader, []record, error) {
	r, err := NewReader(bytes.NewReader(file))
	if err != nil {
		return nil, nil, err
	}
	var records []record
	for k, v := range r.Records() {
		records = append(records, record{string(k), string(v)})
	}
	return r.Header(), records, r.Err()
}

// manyRecords fills several chunks, with bytes that do not compress.
func manyRecords(n, valueBytes int) []record {
	rnd := rand.New(rand.NewPCG(1, 2))
	records := make([]record, n)
	for i := range records {
		v := make([]byte, rnd.IntN(valueBytes))
		for j := range v {
			v[j] = byte(rnd.Uint32())
		}
		records[i] = record{fmt.Sprintf("key/%06d", i), string(v)}
	}
	return records
}

func TestFileRoundTrip(t *testing.T) {
	for _, tc := range []struct {
		name    string
		records []record
	}{
		{"empty", nil},
		{"one", []record{{"k", "v"}}},
		{"empty key and value", []record{{"", ""}, {"k", ""}}},
		{"several chunks", manyRecords(3000, 1000)},
		{"a record larger than a chunk", []record{{"big", strings.Repeat("x", 3<<20)}, {"small", "y"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := encode(t, testHeader(), tc.records)
			h, got, err := decode(file)
			if err != nil {
				t.Fatal(err)
			}
			want := testHeader()
			want.FileFormat = FileFormat
			if !proto.Equal(h, want) {
				t.Errorf("header is %v, want %v", h, want)
			}
			if len(got) != len(tc.records) {
				t.Fatalf("%d records, want %d", len(got), len(tc.records))
			}
			for i := range got {
				if got[i] != tc.records[i] {
					t.Fatalf("record %d is %.40q, want %.40q", i, got[i], tc.records[i])
				}
			}
			info, err := Inspect(bytes.NewReader(file))
			if err != nil || info.FileBytes != int64(len(file)) || info.Records != uint64(len(tc.records)) {
				t.Errorf("Inspect = %+v, %v; the file has %d bytes", info, err, len(file))
			}
		})
	}
}

// TestEveryByteCounts flips every bit pattern's worth of each byte, cuts the
// file at each length, and adds to it: all must be refused.
func TestEveryByteCounts(t *testing.T) {
	file := encode(t, testHeader(), manyRecords(6, 60))
	for i := range file {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			bad := bytes.Clone(file)
			bad[i] ^= flip
			if err := Verify(bytes.NewReader(bad)); err == nil {
				t.Fatalf("byte %d of %d flipped by %#x: accepted", i, len(file), flip)
			}
		}
		if err := Verify(bytes.NewReader(file[:i])); err == nil {
			t.Fatalf("cut to %d of %d bytes: accepted", i, len(file))
		} else if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNotCheckpoint) {
			t.Fatalf("cut to %d of %d bytes: %v, want ErrDamaged", i, len(file), err)
		}
	}
	if err := Verify(bytes.NewReader(append(bytes.Clone(file), 0))); !errors.Is(err, ErrDamaged) {
		t.Errorf("with a byte after the end: %v, want ErrDamaged", err)
	}
}

// TestDamageInLargeFile flips a byte in each 512 bytes of a file of several
// chunks.
func TestDamageInLargeFile(t *testing.T) {
	file := encode(t, testHeader(), manyRecords(1500, 1000))
	for i := 0; i < len(file); i += 512 {
		bad := bytes.Clone(file)
		bad[i] ^= 0x10
		if err := Verify(bytes.NewReader(bad)); err == nil {
			t.Fatalf("byte %d of %d flipped: accepted", i, len(file))
		}
	}
}

// frames cuts a file behind its magic into frames with their chained sums.
func frames(t *testing.T, file []byte) [][]byte {
	t.Helper()
	var out [][]byte
	for rest := file[len(magic):]; ; {
		head := decodeFrameHead([frameHeadBytes]byte(rest))
		n := frameHeadBytes + int(head.storedBytes) + chainBytes
		out = append(out, rest[:n])
		rest = rest[n:]
		if head.kind == frameTrailer {
			return append(out, rest)
		}
	}
}

// TestSplice makes files of the frames of two good ones.
func TestSplice(t *testing.T) {
	other := testHeader()
	other.Index = 43
	a := frames(t, encode(t, testHeader(), manyRecords(1500, 1000)))
	b := frames(t, encode(t, other, manyRecords(1500, 1000)))
	if len(a) < 6 || len(a) != len(b) {
		t.Fatalf("%d and %d frames, want the same number and several chunks", len(a), len(b))
	}
	try := func(what string, f [][]byte) {
		t.Helper()
		file := append([]byte(magic), bytes.Join(f, nil)...)
		if err := Verify(bytes.NewReader(file)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", what, err)
		}
	}
	for i := range a {
		f := append([][]byte(nil), a...)
		f[i] = b[i]
		if i < len(a) && !bytes.Equal(a[i], b[i]) {
			try(fmt.Sprintf("frame %d of another file", i), f)
		}
		try(fmt.Sprintf("without frame %d", i), append(append([][]byte(nil), a[:i]...), a[i+1:]...))
		try(fmt.Sprintf("frame %d twice", i), append(append(append([][]byte(nil), a[:i+1]...), a[i]), a[i+1:]...))
	}
	f := append([][]byte(nil), a...)
	f[1], f[2] = f[2], f[1]
	try("two chunks exchanged", f)
}

// TestHugeLengths has files that claim to be large: they are refused before
// memory is taken for them.
func TestHugeLengths(t *testing.T) {
	for _, head := range []frameHead{
		{frameHeader, 1 << 31, 1 << 31},
		{frameChunk, 1 << 31, 100},
		{frameChunk, 100, 1 << 31},
		{frameTrailer, 1 << 31, 1 << 31},
		{'?', 1, 1},
	} {
		b := head.encode()
		file := append([]byte(magic), b[:]...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := Verify(bytes.NewReader(file))
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%+v: %v, want ErrDamaged", head, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Errorf("%+v: %d bytes allocated", head, n)
		}
	}
}

func TestNotACheckpoint(t *testing.T) {
	for _, text := range []string{"", "BORG", "hello, world, this is a text file"} {
		if err := Verify(strings.NewReader(text)); !errors.Is(err, ErrNotCheckpoint) {
			t.Errorf("%q: %v, want ErrNotCheckpoint", text, err)
		}
	}
}

func TestNewerFile(t *testing.T) {
	var b bytes.Buffer
	w := &Writer{w: &b}
	w.whole = newWhole()
	h := testHeader()
	h.FileFormat = FileFormat + 1
	data, _ := proto.Marshal(h)
	w.write([]byte(magic))
	w.frame(frameHeader, len(data), data)
	var newer *NewerFormatError
	if err := Verify(&b); !errors.As(err, &newer) || newer.Found != FileFormat+1 {
		t.Errorf("a newer file: %v, want a NewerFormatError", err)
	}
}

func TestRecordTooLarge(t *testing.T) {
	w, err := NewWriter(io.Discard, testHeader())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add([]byte("k"), make([]byte, maxRecordBytes)); err == nil {
		t.Error("a record above the limit was taken")
	}
	if err := w.Close(); err == nil {
		t.Error("a file without one of its records was closed as if it were whole")
	}
}

// TestStoredSamples opens a file of each format that there ever was.
func TestStoredSamples(t *testing.T) {
	for format := 1; format <= FileFormat; format++ {
		path := filepath.Join("testdata", fmt.Sprintf("format-%d.ckpt", format))
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		h, records, err := decode(file)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		want := testHeader()
		want.FileFormat = uint32(format)
		if !proto.Equal(h, want) {
			t.Errorf("%s: header is %v, want %v", path, h, want)
		}
		for i, r := range manyRecords(6, 60) {
			if i >= len(records) || records[i] != r {
				t.Fatalf("%s: record %d is not what was written", path, i)
			}
		}
	}
}

// FuzzReader looks for input that makes a reader panic, take much memory, or
// accept what no writer wrote.
func FuzzReader(f *testing.F) {
	good := encode(f, testHeader(), manyRecords(6, 60))
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, file []byte) {
		if Verify(bytes.NewReader(file)) == nil && !bytes.Equal(file, good) {
			t.Errorf("a file of %d bytes that nobody wrote is accepted", len(file))
		}
	})
}
