package borglet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

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
}

// readLog sends what a copy wrote: of both streams, stdout first; while it is
// followed, as it comes. It ends when all is sent, and when followed not
// before the copy has ended.
func (a *Agent) readLog(ctx context.Context, id ID, req *borgrpc.ReadLogRequest, send func(*borgrpc.ReadLogResponse) error) error {
	var readers []*logReader
	defer func() {
		for _, r := range readers {
			r.file.Close()
		}
	}()
	root, err := a.store.openOutput(id)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer root.Close()
	streams := []borgrpc.LogStream{borgrpc.LogStream_LOG_STREAM_STDOUT, borgrpc.LogStream_LOG_STREAM_STDERR}
	if req.GetStream() != borgrpc.LogStream_LOG_STREAM_UNSPECIFIED {
		streams = []borgrpc.LogStream{req.GetStream()}
	}
	pending := streams
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		// Looked at before reading, so that what it wrote last is not missed.
		over := !req.GetFollow() || a.over(id)
		if pending, err = openLogs(root, pending, req.GetTailBytes(), &readers); err != nil {
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
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// openLogs opens those streams that are there by now and returns the others: a
// copy that has not started has written nothing yet.
func openLogs(root *os.Root, streams []borgrpc.LogStream, tailBytes int64, readers *[]*logReader) (missing []borgrpc.LogStream, err error) {
	for _, stream := range streams {
		r, err := openLog(root, stream, tailBytes)
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

// openLog opens one stream. What is not a plain file in the copy's own
// directory is not read, whoever put it there.
func openLog(root *os.Root, stream borgrpc.LogStream, tailBytes int64) (*logReader, error) {
	name := stdoutFile
	if stream == borgrpc.LogStream_LOG_STREAM_STDERR {
		name = stderrFile
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open log: %s is not a plain file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	r := &logReader{file: f, stream: stream, buf: make([]byte, logChunkBytes)}
	start := int64(0)
	if tailBytes > 0 {
		start = max(info.Size()-tailBytes, 0)
	}
	if err := r.skipTo(start); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// seekData is SEEK_DATA of lseek(2).
const seekData = 3

// skipTo goes to start, or to the first data behind it: the oldest part of a
// long log is a hole.
func (r *logReader) skipTo(start int64) error {
	at, err := r.file.Seek(start, seekData)
	if err == nil && at >= start {
		return nil
	}
	// No data behind start, or a file system that knows no holes.
	if _, err := r.file.Seek(start, io.SeekStart); err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	return nil
}

// drain sends all that is there now.
func (r *logReader) drain(ctx context.Context, send func(*borgrpc.ReadLogResponse) error) error {
	for ctx.Err() == nil {
		n, err := r.file.Read(r.buf)
		if n > 0 {
			if err := send(&borgrpc.ReadLogResponse{Data: r.buf[:n:n], Stream: r.stream}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
	return ctx.Err()
}
