package borglet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"borg/borglet/beneath"
	"borg/proto/borgrpc"
)

const (
	stdoutFile = "stdout"
	stderrFile = "stderr"
	// logChunkBytes is how much is sent in one message.
	logChunkBytes = 64 << 10
	// followEvery is how often a followed log is looked at.
	followEvery = 200 * time.Millisecond
)

// logReader reads one stream of a copy from where it stands.
type logReader struct {
	file   *os.File
	stream borgrpc.LogStream
	buf    []byte
	// dir is where its pieces are by now: they move when the copy is forgotten.
	dir func() (string, error)
	// piece is the one that was read last; nil: none was.
	piece *unpacker
	// size is how long the file was seen to be.
	size int64
	// at is the offset of what is read next, and end where that ends; negative:
	// open.
	at, end int64
	// lost bytes before at were asked for, and are no longer there.
	lost int64
	// Nil: nobody asked when it was seen.
	times logTimes
	timed bool
}

// unknownRun: the output of a run was asked for that a copy has not had, as far
// as is known.
type unknownRun struct{ known int }

func (e *unknownRun) Error() string {
	if e.known < 2 {
		return "the copy has had one run only"
	}
	return fmt.Sprintf("of the copy, %d runs are known", e.known)
}

// readLog sends what a copy wrote: of both streams, stdout first; while it is
// followed, as it comes. It ends when all is sent, and when followed not
// before the copy has ended.
func (a *Agent) readLog(ctx context.Context, id ID, req *borgrpc.ReadLogRequest, send func(*borgrpc.ReadLogResponse) error) error {
	var readers []*logReader
	defer func() {
		for _, r := range readers {
			r.close()
		}
	}()
	dir := func() (string, error) { return a.store.outputDir(id) }
	if _, err := dir(); err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	streams := []borgrpc.LogStream{borgrpc.LogStream_LOG_STREAM_STDOUT, borgrpc.LogStream_LOG_STREAM_STDERR}
	if req.GetStream() != borgrpc.LogStream_LOG_STREAM_UNSPECIFIED {
		streams = []borgrpc.LogStream{req.GetStream()}
	}
	pending := streams
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for first := true; ; first = false {
		// Looked at before reading, so that what it wrote last is not missed.
		over := !req.GetFollow() || a.over(id)
		var err error
		if pending, err = openLogs(dir, pending, req, &readers); err != nil {
			return err
		}
		for _, r := range readers {
			if err := r.drain(ctx, send); err != nil {
				return err
			}
		}
		if over {
			return nil
		}
		if first && req.GetTimes() {
			if err := send(&borgrpc.ReadLogResponse{AtEnd: true, Stream: streams[0]}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// openLogs opens those streams that are there by now and returns the others: a
// copy that has not started has written nothing yet.
func openLogs(dir func() (string, error), streams []borgrpc.LogStream, req *borgrpc.ReadLogRequest, readers *[]*logReader) (missing []borgrpc.LogStream, err error) {
	for _, stream := range streams {
		r, err := openLog(dir, stream, req)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, stream)
		case err != nil:
			return nil, err
		default:
			*readers = append(*readers, r)
		}
	}
	return missing, nil
}

// maxLogOffset bounds the offsets that a reader may ask for: the kernel refuses to read near
// the end of what its type holds.
const maxLogOffset = 1 << 62

// checkRange says what no log can have of what a request asks for.
func checkRange(req *borgrpc.ReadLogRequest) error {
	for _, f := range []struct {
		name  string
		value int64
	}{{"from_offset", req.GetFromOffset()}, {"tail_bytes", req.GetTailBytes()}, {"since_wall_ns", req.GetSinceWallNs()}} {
		if f.value < 0 || f.name == "from_offset" && f.value > maxLogOffset {
			return fmt.Errorf("%s %d: no log has that; 0 is all of it", f.name, f.value)
		}
	}
	return nil
}

// openLog opens one stream where the request wants it read from. What is not a
// plain file in the copy's own directory is not read, whoever put it there.
func openLog(dir func() (string, error), stream borgrpc.LogStream, req *borgrpc.ReadLogRequest) (*logReader, error) {
	now, err := dir()
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	f, err := beneath.Open(now, streamFiles[streamAt(stream)], os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	r := &logReader{file: f, stream: stream, buf: make([]byte, logChunkBytes), dir: dir, end: -1, timed: req.GetTimes()}
	if err := r.place(now, req); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *logReader) close() {
	r.piece.close()
	r.file.Close()
}

// place finds the part of the stream that a request wants.
func (r *logReader) place(dir string, req *borgrpc.ReadLogRequest) error {
	info, err := r.file.Stat()
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	at, size := streamAt(r.stream), info.Size()
	r.size = size
	if r.timed || req.GetSinceWallNs() > 0 || req.GetRun() > 0 {
		if err := r.loadTimes(dir); err != nil {
			return err
		}
	}
	if nth := req.GetRun(); nth > 0 {
		start, end, known, ok := r.times.run(at, nth)
		switch {
		case ok:
			r.at, r.end = start, end
		case nth > 1:
			return &unknownRun{known: known}
		}
	}
	limit := size
	if r.end >= 0 {
		limit = min(r.end, size)
	}
	if tail := req.GetTailBytes(); tail > 0 && limit-tail > r.at {
		from, err := r.lineStart(limit - tail)
		if err != nil {
			return err
		}
		r.at = max(r.at, from)
	}
	r.at = max(r.at, req.GetFromOffset())
	since := req.GetSinceWallNs()
	if since <= 0 {
		return nil
	}
	if from := r.times.since(at, since, info.ModTime().UnixNano(), size); from > r.at {
		from, err := r.lineStart(from)
		if err != nil {
			return err
		}
		r.at = max(r.at, from)
	}
	// What is gone is not said to be missing: it is older for all that is known.
	r.at, _, err = r.next(r.at)
	return err
}

// loadTimes reads when the streams were seen to grow; without an index nothing is
// known of that.
func (r *logReader) loadTimes(dir string) error {
	f, err := beneath.Open(dir, timesFile, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	r.times, err = readTimes(f)
	return err
}

// lineStart is the start of the line that goes on at offset: a look may have come
// in the midst of one. Of a line that is very long it is offset itself.
func (r *logReader) lineStart(offset int64) (int64, error) {
	from := max(offset-int64(len(r.buf)), 0)
	for start, at := from, from; at < offset; {
		n, where, err := r.readAt(r.buf[at-start:offset-start], at)
		switch {
		case err != nil:
			return 0, err
		case where != at:
			// What is before it is lost.
			start, at, from = where, where, where
			continue
		case n == 0:
			return offset, nil
		}
		if at += int64(n); at < offset {
			continue
		}
		if end := bytes.LastIndexByte(r.buf[:offset-start], '\n'); end >= 0 {
			return start + int64(end) + 1, nil
		}
	}
	if from == 0 {
		return 0, nil
	}
	return offset, nil
}

// seekData is SEEK_DATA of lseek(2).
const seekData = 3

// dataFrom returns offset or, if a hole is there, where the first data behind it begins: what
// rotation took out of a long log is a hole.
func dataFrom(f *os.File, offset int64) (int64, error) {
	// The length is read first. If the file grew after the seek and the length was read then,
	// what was just written would pass for a hole.
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("read log: %w", err)
	}
	at, err := f.Seek(offset, seekData)
	switch {
	case err == nil && at >= offset:
		return at, nil
	case errors.Is(err, syscall.ENXIO):
		return max(offset, info.Size()), nil
	}
	// A file system that knows no holes.
	return offset, nil
}

// next is offset, or where what is kept of the stream goes on behind it; p is the
// piece that it lies in, nil if that is the file.
func (r *logReader) next(offset int64) (at int64, p *logPiece, err error) {
	at, err = dataFrom(r.file, offset)
	if err != nil || at == offset {
		return at, nil, err
	}
	dir, err := r.dir()
	if err != nil {
		// All of it was removed meanwhile; the file is open.
		return at, nil, nil
	}
	pieces, err := piecesOf(dir, streamFiles[streamAt(r.stream)])
	if err != nil {
		return 0, nil, err
	}
	for _, p := range pieces {
		if p.to > offset && p.from < at {
			return max(offset, p.from), &p, nil
		}
	}
	return at, nil, nil
}

// readAt reads at an offset or, where nothing is kept, behind it: where says. At the
// end of what there is, n is zero.
func (r *logReader) readAt(buf []byte, offset int64) (n int, where int64, err error) {
	for {
		n, err := r.file.ReadAt(buf, offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, fmt.Errorf("read log: %w", err)
		}
		// Looked at after reading: what was given back meanwhile was read as zeros.
		at, p, err := r.next(offset)
		switch {
		case err != nil:
			return 0, 0, err
		case p == nil && at == offset:
			return n, offset, nil
		case p == nil:
			offset = at
			continue
		}
		if n, err = r.readPiece(*p, buf, at); err == nil {
			return n, at, nil
		}
		// It is torn, or was removed meanwhile to make room for others: lost.
		offset = p.to
	}
}

func (r *logReader) readPiece(p logPiece, buf []byte, at int64) (int, error) {
	if r.piece == nil || r.piece.piece != p || r.piece.at > at {
		r.piece.close()
		r.piece = nil
		dir, err := r.dir()
		if err != nil {
			return 0, err
		}
		if r.piece, err = unpack(dir, p); err != nil {
			return 0, err
		}
	}
	return r.piece.readAt(buf, at)
}

// drain sends all that is there now.
func (r *logReader) drain(ctx context.Context, send func(*borgrpc.ReadLogResponse) error) error {
	info, err := r.file.Stat()
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	if info.Size() < r.size {
		// It was cut, and what is written now begins at its start.
		r.at = 0
	}
	r.size = info.Size()
	for ctx.Err() == nil {
		want := r.buf
		if r.end >= 0 {
			want = want[:min(int64(len(want)), max(r.end-r.at, 0))]
		}
		if len(want) == 0 {
			return nil
		}
		n, where, err := r.readAt(want, r.at)
		if err != nil {
			return err
		}
		if r.end >= 0 {
			where = min(where, r.end)
			n = int(min(int64(n), r.end-where))
		}
		r.lost, r.at = r.lost+where-r.at, where
		if n == 0 {
			return nil
		}
		if err := r.send(want[:n], send); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// send sends what was read at r.at, in pieces by the time at which they were
// seen, if somebody wants to know that.
func (r *logReader) send(data []byte, send func(*borgrpc.ReadLogResponse) error) error {
	for len(data) > 0 {
		piece := data
		resp := &borgrpc.ReadLogResponse{Stream: r.stream, LostBytes: r.lost}
		if r.timed {
			wallNs, end, ok := r.times.next(streamAt(r.stream), r.at)
			if ok {
				piece = piece[:min(int64(len(piece)), end-r.at)]
			} else if info, err := r.file.Stat(); err == nil {
				// Behind the last mark; nobody can have written after now.
				wallNs = min(info.ModTime().UnixNano(), time.Now().UnixNano())
			}
			if len(r.times) > 0 {
				wallNs = max(wallNs, r.times[0].wallNs)
			}
			resp.WallNs, resp.Offset = wallNs, r.at
		}
		resp.Data = piece[:len(piece):len(piece)]
		if err := send(resp); err != nil {
			return err
		}
		r.lost, r.at, data = 0, r.at+int64(len(piece)), data[len(piece):]
	}
	return nil
}
