package checkpoint

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

var rewrite = flag.Bool("rewrite", false, "write samples of formats that have none yet")

func logHeader(first uint64) *borgpb.ChangeLogHeader {
	return &borgpb.ChangeLogHeader{CellName: "cc", CellId: "cc-0001", Epoch: 1, FirstIndex: first, WallTimeNs: 1_800_000_000e9}
}

// pastEntries are n entries from first on, some without data.
func pastEntries(first uint64, n, dataBytes int) []PastEntry {
	rnd := rand.New(rand.NewPCG(first, uint64(n)))
	entries := make([]PastEntry, n)
	for i := range entries {
		e := PastEntry{Epoch: 1, Index: first + uint64(i), Term: 3 + uint64(i)/4, Data: []byte{}}
		for range rnd.IntN(dataBytes) {
			e.Data = append(e.Data, byte(rnd.Uint32()))
		}
		entries[i] = e
	}
	return entries
}

// segment is a file with these entries, a frame for each group.
func segment(t testing.TB, header *borgpb.ChangeLogHeader, seal bool, groups ...[]PastEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	enc, err := newSegmentEncoder()
	if err != nil {
		t.Fatal(err)
	}
	w, err := newSegmentWriter(&b, enc, header)
	for _, g := range groups {
		if err == nil {
			_, err = w.add(g)
		}
	}
	if err == nil && seal {
		err = w.seal()
	}
	if err != nil {
		t.Fatal(err)
	}
	if w.bytes != int64(b.Len()) {
		t.Fatalf("the writer counts %d bytes and wrote %d", w.bytes, b.Len())
	}
	return b.Bytes()
}

func readSegment(file []byte) (entries []PastEntry, sealed, torn bool, err error) {
	r, err := newSegmentReader(bytes.NewReader(file))
	if err != nil {
		return nil, false, false, err
	}
	for e := range r.entries() {
		entries = append(entries, e)
	}
	return entries, r.sealed, r.torn, r.err
}

func isPrefix(got, want []PastEntry) bool {
	return len(got) <= len(want) && (len(got) == 0 || reflect.DeepEqual(got, want[:len(got)]))
}

func TestSegmentRoundTrip(t *testing.T) {
	for _, want := range [][]PastEntry{nil, pastEntries(2, 1, 10), pastEntries(2, 100, 50), pastEntries(1000, 600, 4000), pastEntries(7, 2, maxEntryBytes)} {
		got, sealed, torn, err := readSegment(segment(t, logHeader(max(2, firstOf(want))), true, want))
		if err != nil || !sealed || torn || len(got) != len(want) || !isPrefix(got, want) {
			t.Errorf("%d entries: read %d, sealed %v, torn %v, %v", len(want), len(got), sealed, torn, err)
		}
	}
}

func firstOf(entries []PastEntry) uint64 {
	if len(entries) == 0 {
		return 0
	}
	return entries[0].Index
}

// TestEveryByteOfASegmentCounts flips each byte of a segment that was ended in
// order: all must be refused. Cut short, it may only be taken for one that a crash
// ended, with the entries that are whole.
func TestEveryByteOfASegmentCounts(t *testing.T) {
	want := pastEntries(2, 9, 40)
	file := segment(t, logHeader(2), true, want[:4], want[4:5], want[5:])
	for i := range file {
		for _, flip := range []byte{0x01, 0x10, 0x80, 0xff} {
			bad := bytes.Clone(file)
			bad[i] ^= flip
			if _, err := InspectSegment(bytes.NewReader(bad)); err == nil {
				t.Fatalf("byte %d of %d flipped by %#x: accepted", i, len(file), flip)
			}
		}
		got, sealed, _, err := readSegment(file[:i])
		if sealed || !isPrefix(got, want) {
			t.Fatalf("cut to %d of %d bytes: sealed %v, %d entries, %v", i, len(file), sealed, len(got), err)
		}
	}
	if _, err := InspectSegment(bytes.NewReader(append(bytes.Clone(file), 0))); !errors.Is(err, ErrDamaged) {
		t.Errorf("with a byte after the end: %v, want ErrDamaged", err)
	}
}

// TestTornTail has segments that nobody ended: wherever a crash cuts one, what is
// whole before it is read. A flipped byte is damage all the same, and not taken
// for a crash.
func TestTornTail(t *testing.T) {
	want := pastEntries(2, 9, 40)
	file := segment(t, logHeader(2), false, want[:4], want[4:5], want[5:])
	header := len(segment(t, logHeader(2), false))
	for i := header; i < len(file); i++ {
		for _, tail := range [][]byte{nil, make([]byte, 13), make([]byte, 5000)} {
			got, sealed, _, err := readSegment(append(bytes.Clone(file[:i]), tail...))
			if tail == nil && err != nil {
				t.Fatalf("cut to %d of %d bytes: %v", i, len(file), err)
			}
			if sealed || !isPrefix(got, want) {
				t.Fatalf("cut to %d of %d bytes, with %d zeros: sealed %v, %d entries, %v", i, len(file), len(tail), sealed, len(got), err)
			}
		}
		bad := bytes.Clone(file)
		bad[i] ^= 0x04
		if got, _, _, err := readSegment(bad); !errors.Is(err, ErrDamaged) || !isPrefix(got, want) {
			t.Fatalf("byte %d of %d flipped: %d entries, %v, want ErrDamaged", i, len(file), len(got), err)
		}
	}
	// What a file system adds before it writes: zeros after a whole frame.
	if got, _, torn, err := readSegment(append(bytes.Clone(file), make([]byte, 5000)...)); err != nil || !torn || len(got) != len(want) {
		t.Errorf("with zeros at its end: %d entries, torn %v, %v", len(got), torn, err)
	}
}

// TestSpliceOfSegments makes files of the frames of two good ones.
func TestSpliceOfSegments(t *testing.T) {
	one := pastEntries(2, 12, 40)
	two := pastEntries(2, 12, 41)
	groups := func(e []PastEntry) [][]PastEntry { return [][]PastEntry{e[:3], e[3:6], e[6:9], e[9:]} }
	a := segmentFrames(t, segment(t, logHeader(2), true, groups(one)...))
	b := segmentFrames(t, segment(t, logHeader(2), true, groups(two)...))
	try := func(what string, f [][]byte) {
		t.Helper()
		file := append([]byte(segmentMagic), bytes.Join(f, nil)...)
		if _, err := InspectSegment(bytes.NewReader(file)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", what, err)
		}
	}
	for i := range a {
		if f := append([][]byte(nil), a...); !bytes.Equal(a[i], b[i]) {
			f[i] = b[i]
			try(fmt.Sprintf("frame %d of another file", i), f)
		}
		if i < len(a)-1 {
			try(fmt.Sprintf("without frame %d", i), append(append([][]byte(nil), a[:i]...), a[i+1:]...))
		}
		try(fmt.Sprintf("frame %d twice", i), append(append(append([][]byte(nil), a[:i+1]...), a[i]), a[i+1:]...))
	}
}

func segmentFrames(t *testing.T, file []byte) [][]byte {
	t.Helper()
	var out [][]byte
	for rest := file[len(segmentMagic):]; len(rest) > 0; {
		head := decodeFrameHead([frameHeadBytes]byte(rest))
		n := frameHeadBytes + headSumBytes + int(head.storedBytes) + chainBytes
		out = append(out, rest[:n])
		rest = rest[n:]
	}
	return out
}

func TestNewerSegment(t *testing.T) {
	var b bytes.Buffer
	w := &segmentWriter{w: &b}
	h := logHeader(2)
	h.FileFormat = SegmentFormat + 1
	data, err := proto.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	w.out = append(w.out, segmentMagic...)
	if err := w.frame(frameHeader, len(data), data); err != nil {
		t.Fatal(err)
	}
	var newer *NewerFormatError
	if _, err := InspectSegment(&b); !errors.As(err, &newer) || newer.Found != SegmentFormat+1 {
		t.Errorf("a newer segment: %v, want a NewerFormatError", err)
	}
}

// sampleEntries are what is in the stored samples.
func sampleEntries() []PastEntry { return pastEntries(42, 10, 60) }

// TestStoredSegments opens a segment of each format that there ever was.
func TestStoredSegments(t *testing.T) {
	for format := 1; format <= SegmentFormat; format++ {
		path := filepath.Join("testdata", fmt.Sprintf("format-%d.log", format))
		file, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && *rewrite && format == SegmentFormat {
			want := sampleEntries()
			file = segment(t, logHeader(42), true, want[:5], want[5:])
			err = os.WriteFile(path, file, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		got, sealed, _, err := readSegment(file)
		if want := sampleEntries(); err != nil || !sealed || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d entries, sealed %v, %v; want %d", path, len(got), sealed, err, len(want))
		}
	}
}

// FuzzSegment looks for input that makes a reader panic or take what no writer
// wrote for a segment that was ended in order.
func FuzzSegment(f *testing.F) {
	want := pastEntries(2, 9, 40)
	good := segment(f, logHeader(2), true, want[:4], want[4:])
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(segmentMagic))
	f.Add(append(bytes.Clone(good[:len(good)/2]), make([]byte, 100)...))
	f.Fuzz(func(t *testing.T, file []byte) {
		got, sealed, _, err := readSegment(file)
		if err == nil && sealed && !bytes.Equal(file, good) {
			t.Errorf("a segment of %d bytes that nobody wrote is accepted", len(file))
		}
		if err == nil && len(got) > 0 && !isPrefix(got, want) {
			t.Errorf("%d entries that nobody wrote", len(got))
		}
	})
}
