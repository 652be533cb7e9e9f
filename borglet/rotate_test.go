package borglet

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"borg/proto/borgrpc"
)

var rotateSeed = flag.Uint64("rotate-seed", 0, "seed of TestRotationLosesNothing; 0: one of its own")

// punchHole is what the borglet does on Linux.
func punchHole(f *os.File, end int64) error {
	const keepSize, punchHole = 1, 2
	return syscall.Fallocate(int(f.Fd()), keepSize|punchHole, 0, end)
}

// newRotated is a copy whose output is bounded; its rounds are the test's.
func newRotated(t *testing.T, keepBytes int64) *logCopy {
	t.Helper()
	c := newLogCopy(t)
	c.keepBytes = keepBytes
	c.restart()
	path := filepath.Join(c.agent.store.TaskDir(c.id), stdoutFile)
	if err := os.WriteFile(path, make([]byte, pieceAlign), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := punchHole(f, pieceAlign); err != nil {
		t.Skipf("the file system of %s cannot give back the start of a file: %v", path, err)
	}
	return c
}

// round is what is done each second.
func (c *logCopy) round(budgetBytes int64) {
	c.agent.rotator.round(map[ID]bool{c.id: true}, budgetBytes)
}

// lines makes n bytes whose place in the stream can be told from what they are.
func lines(at, n int64) []byte {
	var b bytes.Buffer
	for line := at / 16; line*16 < at+n; line++ {
		fmt.Fprintf(&b, "line %10d\n", line)
	}
	from := at - at/16*16
	return b.Bytes()[from : from+n]
}

// heard is what a reader was sent of lines: each byte at its place.
type heard struct {
	t           *testing.T
	at          int64
	bytes, lost int64
}

func (o *heard) take(r *borgrpc.ReadLogResponse) error {
	o.at += r.GetLostBytes()
	o.lost += r.GetLostBytes()
	if r.GetOffset() != o.at {
		o.t.Fatalf("a piece at %d, after what ended at %d", r.GetOffset(), o.at)
	}
	if want := lines(o.at, int64(len(r.GetData()))); !bytes.Equal(want, r.GetData()) {
		o.t.Fatalf("at %d: %.40q, want %.40q", o.at, r.GetData(), want)
	}
	o.at += int64(len(r.GetData()))
	o.bytes += int64(len(r.GetData()))
	return nil
}

func (c *logCopy) pieces() (list []logPiece, onDisk int64) {
	c.t.Helper()
	dir, err := c.agent.store.outputDir(c.id)
	if err != nil {
		c.t.Fatal(err)
	}
	if list, err = piecesOf(dir, stdoutFile); err != nil {
		c.t.Fatal(err)
	}
	return list, outputBytes(dir)
}

// Whatever is killed when: what is within the bounds is read as one stream, byte by
// byte as it was written, also after the copy was forgotten.
func TestRotationLosesNothing(t *testing.T) {
	seed := *rotateSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with: go test ./borglet -run RotationLosesNothing -rotate-seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const keep = 1 << 20
	c := newRotated(t, keep)
	piece, written := c.agent.rotator.pieceBytes(), int64(0)
	errKilled, first := errors.New("killed"), int64(0)
	write := func(n int64) {
		c.write(stdoutFile, string(lines(written, n)), time.Now())
		written += n
	}
	read := func(req *borgrpc.ReadLogRequest) *heard {
		t.Helper()
		req.Times, req.Stream = true, borgrpc.LogStream_LOG_STREAM_STDOUT
		o := &heard{t: t, at: req.GetFromOffset()}
		if err := c.agent.readLog(t.Context(), c.id, req, o.take); err != nil {
			t.Fatal(err)
		}
		if o.at != max(written, req.GetFromOffset()) {
			t.Fatalf("read up to %d of %d", o.at, written)
		}
		return o
	}
	for range 60 {
		write(rng.Int64N(2 * piece))
		switch rng.IntN(5) {
		case 0:
			c.restart()
		case 1:
			// Killed before it gave back what it had packed.
			warned := 0
			c.agent.rotator.punch = func(*os.File, int64) error { return errKilled }
			c.agent.rotator.warn = func(error) { warned++ }
			c.round(packBytes)
			c.restart()
		case 2:
			// Killed while it packed.
			p := newPiece(stdoutFile, written, written+pieceAlign)
			if err := os.WriteFile(filepath.Join(c.agent.store.TaskDir(c.id), p.name+pieceSuffix), []byte("torn"), 0o600); err != nil {
				t.Fatal(err)
			}
			c.restart()
		}
		c.round(packBytes)
		pieces, onDisk := c.pieces()
		if onDisk > keep+keep/8 {
			t.Fatalf("%d bytes on disk in %d pieces, want %d", onDisk, len(pieces), keep)
		}
		// What the oldest piece begins with is all that may be missing.
		first = 0
		if len(pieces) > 0 {
			first = pieces[0].from
		}
		if o := read(&borgrpc.ReadLogRequest{}); o.lost != first {
			t.Fatalf("%d bytes of %d are lost, want %d", o.lost, written, first)
		}
		read(&borgrpc.ReadLogRequest{FromOffset: rng.Int64N(written + 1)})
	}
	if pieces, _ := c.pieces(); len(pieces) < 10 {
		t.Fatalf("%d pieces of %d bytes", len(pieces), written)
	}
	if first > written*3/4 {
		t.Errorf("of %d bytes, %d are lost", written, first)
	}
	if left, err := filepath.Glob(filepath.Join(c.agent.store.TaskDir(c.id), "*"+pieceSuffix)); err != nil || len(left) > 0 {
		t.Errorf("left of what was torn: %v, %v", left, err)
	}
	if err := c.agent.store.Remove(c.id); err != nil {
		t.Fatal(err)
	}
	if o := read(&borgrpc.ReadLogRequest{}); o.lost != first {
		t.Errorf("forgotten, %d bytes of %d are lost, want %d", o.lost, written, first)
	}
}

// What cannot be compressed has its bound too: the oldest pieces go, and readers are
// told how much is missing.
func TestOldestPiecesGo(t *testing.T) {
	const keep = 1 << 20
	c := newRotated(t, keep)
	rng, written := rand.NewChaCha8([32]byte{}), []byte(nil)
	for range 40 {
		noise := make([]byte, 100_000)
		rng.Read(noise)
		c.write(stdoutFile, string(noise), time.Now())
		written = append(written, noise...)
		c.round(packBytes)
		if _, onDisk := c.pieces(); onDisk > keep+keep/8 {
			t.Fatalf("%d bytes on disk, want %d", onDisk, keep)
		}
	}
	pieces, _ := c.pieces()
	if len(pieces) == 0 || pieces[0].from == 0 {
		t.Fatalf("pieces %v, want the oldest gone", pieces)
	}
	got, err := c.read(&borgrpc.ReadLogRequest{})
	if want := fmt.Sprintf("(%d lost)%s", pieces[0].from, written[pieces[0].from:]); err != nil || got != want {
		t.Errorf("read %.40q, %d bytes, %v, want %.40q, %d bytes", got, len(got), err, want, len(want))
	}
	// A piece that is torn is missing, and those behind it are not.
	dir := c.agent.store.TaskDir(c.id)
	if err := os.Truncate(filepath.Join(dir, pieces[1].name), 100); err != nil {
		t.Fatal(err)
	}
	got, err = c.read(&borgrpc.ReadLogRequest{FromOffset: pieces[1].from})
	if want := fmt.Sprintf("(%d lost)%s", pieces[1].to-pieces[1].from, written[pieces[1].to:]); err != nil || got != want {
		t.Errorf("with a torn piece: read %.40q, %d bytes, %v, want %.40q, %d bytes", got, len(got), err, want, len(want))
	}
}

// A flood is more than is compressed: the newest part of it is kept, and no piece of
// what was before is lost for it.
func TestFloodIsCut(t *testing.T) {
	const keep = 1 << 20
	c := newRotated(t, keep)
	piece := c.agent.rotator.pieceBytes()
	c.write(stdoutFile, string(lines(0, 3*piece)), time.Now())
	c.round(packBytes)
	size := 3*piece + 50*piece
	c.write(stdoutFile, string(lines(3*piece, 50*piece)), time.Now())
	c.round(1)
	o := &heard{t: t}
	req := &borgrpc.ReadLogRequest{Times: true, Stream: borgrpc.LogStream_LOG_STREAM_STDOUT}
	if err := c.agent.readLog(t.Context(), c.id, req, o.take); err != nil {
		t.Fatal(err)
	}
	// Two pieces of before, and as much as the file may hold.
	if want := 2*piece + filePieces*piece; o.bytes < want-2*pieceAlign || o.bytes > want || o.at != size {
		t.Errorf("%d bytes of %d were read, %d are lost; want %d", o.bytes, o.at, o.lost, want)
	}
	// With the budget of a round all that may be taken out is.
	c.round(packBytes)
	if _, onDisk := c.pieces(); onDisk > 2*piece+piece/2 {
		t.Errorf("%d bytes on disk", onDisk)
	}
}

// Of a stream that its task has cut, nothing of before is told.
func TestCutStream(t *testing.T) {
	c := newRotated(t, 1<<20)
	c.write(stdoutFile, strings.Repeat("old\n", 200_000), time.Now())
	c.round(packBytes)
	if err := os.Truncate(filepath.Join(c.agent.store.TaskDir(c.id), stdoutFile), 0); err != nil {
		t.Fatal(err)
	}
	c.write(stdoutFile, "new\n", time.Now())
	c.round(packBytes)
	if pieces, _ := c.pieces(); len(pieces) != 0 {
		t.Errorf("pieces %v", pieces)
	}
	if got, err := c.read(&borgrpc.ReadLogRequest{}); err != nil || got != "new\n" {
		t.Errorf("read %.40q, %v", got, err)
	}
}

// Where a file system cannot give back the start of a file, the file is emptied when
// it is as long as may be.
func TestRotateWithoutHoles(t *testing.T) {
	const keep = 1 << 20
	c := newRotated(t, keep)
	c.agent.rotator.punch = func(*os.File, int64) error { return errors.ErrUnsupported }
	for range 30 {
		c.write(stdoutFile, strings.Repeat("x", 100_000), time.Now())
		c.round(packBytes)
		if pieces, onDisk := c.pieces(); len(pieces) > 0 || onDisk > keep+200_000 {
			t.Fatalf("%d bytes on disk, pieces %v", onDisk, pieces)
		}
	}
}

// A copy that ends between two rounds has its bound too, and is then no longer looked at.
func TestRotatorForgets(t *testing.T) {
	c := newRotated(t, 1<<20)
	r := c.agent.rotator
	c.write(stdoutFile, strings.Repeat("x", 8<<20), time.Now())
	r.begin(c.id)
	r.round(nil, packBytes)
	if _, onDisk := c.pieces(); onDisk > 1<<20 {
		t.Errorf("%d bytes on disk", onDisk)
	}
	if len(r.copies)+len(r.lengths) > 0 {
		t.Errorf("remembered: %v, %v", r.copies, r.lengths)
	}
}

func TestParsePiece(t *testing.T) {
	p := newPiece(stderrFile, 65536, 131072)
	if stream, got, ok := parsePiece(p.name); !ok || stream != stderrFile || got != p {
		t.Errorf("%s: %s, %v, %v", p.name, stream, got, ok)
	}
	for _, name := range []string{"stdout", "stdout.1.gz", p.name + pieceSuffix, newPiece(stdoutFile, 5, 5).name, newPiece("status", 0, 5).name, "stdout.99999999999999999999-99999999999999999999.gz"} {
		if _, _, ok := parsePiece(name); ok {
			t.Errorf("%s is taken for a piece", name)
		}
	}
	if !slices.Equal(streamFiles, []string{stdoutFile, stderrFile}) || streamAt(borgrpc.LogStream_LOG_STREAM_STDERR) != 1 {
		t.Error("streams are not in the order of marks")
	}
}

// TestWhatIsWrittenIsNoHole: while a task writes, its reader at the end of the file never
// takes what was just written for a hole, and so for lost.
func TestWhatIsWrittenIsNoHole(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const pages = 20_000
	page := bytes.Repeat([]byte{'x'}, 4096)
	written := make(chan error, 1)
	go func() {
		for i := range pages {
			if _, err := f.WriteAt(page, int64(i*len(page))); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	read, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	for at := int64(0); at < int64(pages*len(page)); {
		if got, err := dataFrom(read, at); err != nil || got != at {
			t.Errorf("dataFrom(%d) = %d, %v; the file has no holes", at, got, err)
			break
		}
		// To its end, where the race is.
		info, err := read.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if at = info.Size(); len(written) > 0 {
			break
		}
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}
