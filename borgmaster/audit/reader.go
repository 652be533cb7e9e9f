package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// each calls f with every batch, oldest first. What is appended meanwhile may be
// missing. A damaged file is told as a hole.
func (j *journal) each(pick Pick, f func(*borgpb.AuditBatch) error) error {
	opened, err := j.reading()
	defer func() {
		for _, o := range opened {
			o.f.Close()
		}
	}()
	if err != nil {
		return err
	}
	for i, o := range opened {
		r := j.reader(o)
		r.pick = pick
		err := r.each(f)
		var bad *damagedError
		if errors.As(err, &bad) {
			why := fmt.Sprintf("%s is damaged from byte %d on", filepath.Base(o.f.Name()), r.good)
			err = f(&borgpb.AuditBatch{Records: []*borgpb.AuditRecord{{Hole: &borgpb.AuditHole{Why: why}}}})
		}
		if err == nil && i+1 < len(opened) && !opened[i+1].follows(r.chain) {
			why := fmt.Sprintf("%s does not follow %s: something between them is gone", filepath.Base(opened[i+1].f.Name()), filepath.Base(o.f.Name()))
			err = f(&borgpb.AuditBatch{Records: []*borgpb.AuditRecord{{Hole: &borgpb.AuditHole{Why: why}}}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type openFile struct {
	f     *os.File
	bytes int64
}

// follows says whether a file begins where the chain stood.
func (o openFile) follows(chain [sha256.Size]byte) bool {
	head := make([]byte, headBytes)
	_, err := o.f.ReadAt(head, 0)
	return err == nil && bytes.Equal(head[len(fileMagic):], chain[:])
}

// reading opens all files, so that none is dropped while it is read.
func (j *journal) reading() ([]openFile, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var opened []openFile
	for _, file := range j.files {
		f, err := os.Open(j.path(file))
		if err != nil {
			return opened, fmt.Errorf("read the audit: %w", err)
		}
		opened = append(opened, openFile{f, file.bytes})
	}
	return opened, nil
}

// damagedError says that a file does not go on as it was written.
type damagedError struct{ why string }

func (e *damagedError) Error() string { return e.why }

// counter is how often a refusal happened, and when last.
type counter struct {
	count  uint64
	lastNs int64
}

// appendTo appends the frame of a counter: the mark, the two numbers, and half of the
// hash of those.
func (c counter) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, countMark)
	at := len(b)
	b = binary.BigEndian.AppendUint64(b, c.count)
	b = binary.BigEndian.AppendUint64(b, uint64(c.lastNs))
	sum := sha256.Sum256(b[at:])
	return append(b, sum[:16]...)
}

// take reads a counter off its frame, and reports whether it is whole.
func (c *counter) take(frame []byte) bool {
	*c = counter{binary.BigEndian.Uint64(frame[4:]), int64(binary.BigEndian.Uint64(frame[12:]))}
	return bytes.Equal(frame, c.appendTo(nil))
}

// fileReader reads one file.
type fileReader struct {
	r io.Reader
	// Reads a counter again that was changed meanwhile; nil: none is.
	again func(frame []byte, offset int64)
	// pick leaves out batches that need not be decoded.
	pick Pick
	// How far it was right, and the hash there.
	good  int64
	chain [sha256.Size]byte
	// Of the last batch: its data, its counter if it has one, and the bytes of its
	// frames.
	data    []byte
	counter counter
	frame   int64
}

func (j *journal) reader(o openFile) *fileReader {
	return &fileReader{r: io.NewSectionReader(o.f, 0, o.bytes), again: func(frame []byte, offset int64) {
		j.mu.Lock()
		defer j.mu.Unlock()
		// What cannot be read is not whole.
		_, _ = o.f.ReadAt(frame, offset)
	}}
}

// each calls f with each batch.
func (r *fileReader) each(f func(*borgpb.AuditBatch) error) error {
	buffered := bufio.NewReader(r.r)
	head := make([]byte, headBytes)
	if _, err := io.ReadFull(buffered, head); err != nil || string(head[:len(fileMagic)]) != fileMagic {
		return &damagedError{"no head"}
	}
	copy(r.chain[:], head[len(fileMagic):])
	r.good = int64(headBytes)
	frame := make([]byte, frameBytes)
	for {
		if err := r.pick.step(); err != nil {
			return err
		}
		if _, err := io.ReadFull(buffered, frame); err == io.EOF {
			return nil
		} else if err != nil {
			return &damagedError{"half a frame"}
		}
		if binary.BigEndian.Uint32(frame) == joinMark {
			copy(r.chain[:], frame[4:])
			r.good += int64(frameBytes)
			continue
		}
		batch, err := r.batch(buffered, frame)
		if err != nil {
			return err
		}
		r.good += r.frame
		if batch == nil {
			continue
		}
		if err := f(batch); err != nil {
			return err
		}
	}
}

// batch reads a batch after the head of its frame, and the counter after it. It is nil if it need not be decoded.
func (r *fileReader) batch(buffered *bufio.Reader, frame []byte) (*borgpb.AuditBatch, error) {
	size := binary.BigEndian.Uint32(frame)
	if size > maxBatchBytes {
		return nil, &damagedError{"a frame that is too long"}
	}
	r.data = slices.Grow(r.data[:0], int(size))[:size]
	if _, err := io.ReadFull(buffered, r.data); err != nil {
		return nil, &damagedError{"half a batch"}
	}
	hash := chained(r.chain, r.data)
	if bytes.Equal(hash[:], frame[4:]) && !r.pick.wants(r.data) {
		r.frame, r.counter, r.chain = int64(frameBytes)+int64(size), counter{}, hash
		return nil, nil
	}
	batch := new(borgpb.AuditBatch)
	if !bytes.Equal(hash[:], frame[4:]) || proto.Unmarshal(r.data, batch) != nil || len(batch.Records) == 0 {
		return nil, &damagedError{"a batch that was not written so"}
	}
	r.frame, r.counter = int64(frameBytes)+int64(size), counter{}
	if refused := batch.Records[0]; refused.Refusal != nil {
		count := make([]byte, frameBytes)
		if _, err := io.ReadFull(buffered, count); err != nil {
			return nil, &damagedError{"half a counter"}
		}
		whole := r.counter.take(count)
		if !whole && r.again != nil {
			r.again(count, r.good+r.frame)
			whole = r.counter.take(count)
		}
		if !whole {
			return nil, &damagedError{"a counter that was not written so"}
		}
		r.frame += int64(frameBytes)
		refused.Count, refused.LastWallNs = r.counter.count, r.counter.lastNs
	}
	r.chain = hash
	return batch, nil
}

func chained(before [sha256.Size]byte, data []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(before[:])
	h.Write(data)
	return [sha256.Size]byte(h.Sum(nil))
}
