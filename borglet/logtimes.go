package borglet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"borg/borglet/beneath"
	"borg/proto/borgrpc"
)

// timesFile is the index of a copy's streams by time. What a task writes goes
// past the borglet straight into its files, so that what can be known is when
// they were seen to have grown:
//
//	0     8  "borgtm01"
//	8+32n 8  wall time, ns          little endian, as all
//	      8  length of stdout then
//	      8  length of stderr then
//	      4  number of the run that wrote
//	      4  CRC-32C of the 28 bytes before
//
// A mark is added when a run begins and at each look after a stream has grown. The
// file is never synced: what a crash of the machine takes of it costs times, and no
// output. A mark that is torn ends it.
const timesFile = "log.times"

const (
	timesMagic = "borgtm01"
	markBytes  = 32
	// maxMarks bounds the index of a copy; at that, old marks are thinned out.
	maxMarks = 8192
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// logMark says how long the streams of a copy were at a time.
type logMark struct {
	wallNs int64
	// Of standard output and standard error.
	lengths [2]int64
	run     uint32
}

// streamAt is the place of a stream in logMark.lengths.
func streamAt(s borgrpc.LogStream) int {
	if s == borgrpc.LogStream_LOG_STREAM_STDERR {
		return 1
	}
	return 0
}

func (m logMark) append(b []byte) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.wallNs))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.lengths[0]))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.lengths[1]))
	b = binary.LittleEndian.AppendUint32(b, m.run)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// logTimes is the marks of a copy by time; lengths never go down.
type logTimes []logMark

// parseTimes takes the marks up to the first that is torn.
func parseTimes(b []byte) logTimes {
	if len(b) < len(timesMagic) || string(b[:len(timesMagic)]) != timesMagic {
		return nil
	}
	var marks logTimes
	for b = b[len(timesMagic):]; len(b) >= markBytes; b = b[markBytes:] {
		if binary.LittleEndian.Uint32(b[28:]) != crc32.Checksum(b[:28], castagnoli) {
			break
		}
		marks = append(marks, logMark{
			wallNs:  int64(binary.LittleEndian.Uint64(b)),
			lengths: [2]int64{int64(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:]))},
			run:     binary.LittleEndian.Uint32(b[24:]),
		})
	}
	// A task may cut its own output: what was longer before is no longer so.
	for i := len(marks) - 2; i >= 0; i-- {
		for s := range marks[i].lengths {
			marks[i].lengths[s] = min(marks[i].lengths[s], marks[i+1].lengths[s])
		}
	}
	return marks
}

func (t logTimes) encode() []byte {
	b := append(make([]byte, 0, len(timesMagic)+len(t)*markBytes), timesMagic...)
	for _, m := range t {
		b = m.append(b)
	}
	return b
}

// since is from where on a stream has what was seen at wallNs or later; the last
// of it, behind all marks, was written at tailNs and ends at size.
func (t logTimes) since(stream int, wallNs, tailNs, size int64) int64 {
	at, _ := slices.BinarySearchFunc(t, wallNs, func(m logMark, ns int64) int {
		if m.wallNs < ns {
			return -1
		}
		return 1
	})
	switch {
	case at == len(t) && tailNs < wallNs:
		return size
	case at == 0:
		return 0
	}
	return min(t[at-1].lengths[stream], size)
}

// next is when the byte at offset was seen and up to where that holds; ok is
// false behind the last mark.
func (t logTimes) next(stream int, offset int64) (wallNs, end int64, ok bool) {
	at, _ := slices.BinarySearchFunc(t, offset, func(m logMark, offset int64) int {
		if m.lengths[stream] <= offset {
			return -1
		}
		return 1
	})
	if at == len(t) {
		return 0, 0, false
	}
	return t[at].wallNs, t[at].lengths[stream], true
}

// run is the part of a stream that the nth run from the end wrote: 1 is the last
// one. end is negative where it is open. known is how many runs there are.
func (t logTimes) run(stream int, nth uint32) (start, end int64, known int, ok bool) {
	end = -1
	for i := len(t) - 1; i >= 0; i-- {
		if i > 0 && t[i-1].run == t[i].run {
			continue
		}
		known++
		if i == 0 {
			// What is before the first mark is of the same run, or was before
			// there were marks.
			start = 0
		} else {
			start = t[i].lengths[stream]
		}
		if known == int(nth) {
			ok = true
			break
		}
		end = start
	}
	if ok {
		return start, end, known, true
	}
	return 0, 0, known, false
}

// thin takes away what the index can do without: marks of what is no longer kept
// before floor, then every other mark of the older half, so that times become
// the coarser the older they are. Where a run begins stays as long as there is
// room.
func (t logTimes) thin(floor [2]int64) logTimes {
	for len(t) > 1 && t[1].lengths[0] <= floor[0] && t[1].lengths[1] <= floor[1] {
		t = t[1:]
	}
	if len(t) <= maxMarks/2 {
		return slices.Clone(t)
	}
	half := len(t) / 2
	kept := make(logTimes, 0, len(t))
	for i, m := range t {
		begins := i == 0 || t[i-1].run != m.run
		if i >= half || begins || i%2 == 0 {
			kept = append(kept, m)
		}
	}
	if len(kept) > maxMarks*7/8 {
		kept = kept[len(kept)-maxMarks/2:]
	}
	return kept
}

// logClock keeps the indexes of the copies that live.
type logClock struct {
	// keepBytes is what is kept of each stream; zero: all.
	keepBytes int64

	mu sync.Mutex
	// Guarded by mu.
	copies map[ID]*copyClock
}

// copyClock is what is last written in the index of a copy.
type copyClock struct {
	mu sync.Mutex
	// loaded: the rest is as on disk. All are guarded by mu.
	loaded bool
	last   logMark
	marks  int64
}

func newLogClock(keepBytes int64) *logClock {
	return &logClock{keepBytes: keepBytes, copies: map[ID]*copyClock{}}
}

// of returns what is known of a copy.
func (k *logClock) of(id ID) *copyClock {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.copies[id]
	if c == nil {
		c = &copyClock{}
		k.copies[id] = c
	}
	return c
}

// look marks what the copies have written that have begun, and for the last time
// those that have ended since.
func (k *logClock) look(s *Store, begun map[ID]bool, warn func(error)) {
	k.mu.Lock()
	ids := make(map[ID]bool, len(begun))
	for id := range k.copies {
		ids[id] = true
	}
	k.mu.Unlock()
	for id := range begun {
		ids[id] = true
	}
	for id := range ids {
		if err := k.of(id).mark(s.TaskDir(id), 0, k.keepBytes); err != nil {
			warn(err)
		}
		if !begun[id] {
			k.mu.Lock()
			delete(k.copies, id)
			k.mu.Unlock()
		}
	}
}

// begin marks where the output of a run begins.
func (k *logClock) begin(s *Store, id ID, run uint32) error {
	return k.of(id).mark(s.TaskDir(id), run, k.keepBytes)
}

// mark adds a mark if a stream has grown or, with its number, a run begins. A
// copy whose directory is gone has none to add.
func (c *copyClock) mark(dir string, run uint32, keepBytes int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, wrote, err := lengthsOf(dir)
	if err != nil {
		return err
	}
	if c.loaded && m.lengths == c.last.lengths && (run == 0 || run == c.last.run) {
		return nil
	}
	f, err := openTimes(dir, m.lengths != [2]int64{} || run != 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if !c.loaded {
		if err := c.load(f); err != nil {
			return err
		}
	}
	begins := run != 0 && run != c.last.run
	if c.marks > 0 && m.lengths == c.last.lengths && !begins {
		return nil
	}
	m.run = c.last.run
	now := time.Now().UnixNano()
	if begins && m.lengths != c.last.lengths {
		// What the run before wrote last is seen apart from the new one's.
		m.wallNs = max(min(wrote, now), c.last.wallNs)
		if err := c.add(f, m); err != nil {
			return err
		}
	}
	m.wallNs = max(min(wrote, now), c.last.wallNs)
	if begins {
		m.run, m.wallNs = run, max(now, c.last.wallNs)
	}
	if err := c.add(f, m); err != nil {
		return err
	}
	if c.marks > maxMarks {
		return c.compact(dir, f, keepBytes)
	}
	return nil
}

// lengthsOf is how long the streams are, and when the last of them was written.
func lengthsOf(dir string) (m logMark, wroteNs int64, err error) {
	for at, name := range streamFiles {
		info, err := os.Lstat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return m, 0, fmt.Errorf("look at the output: %w", err)
		}
		if info.Mode().IsRegular() {
			m.lengths[at] = info.Size()
			wroteNs = max(wroteNs, info.ModTime().UnixNano())
		}
	}
	return m, wroteNs, nil
}

// openTimes opens the index of a copy to be written.
func openTimes(dir string, create bool) (*os.File, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	f, err := beneath.Open(dir, timesFile, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the index of the output: %w", err)
	}
	return f, nil
}

// load takes over what an earlier borglet wrote.
func (c *copyClock) load(f *os.File) error {
	marks, err := readTimes(f)
	if err != nil {
		return err
	}
	// What is behind a torn mark would be believed once that is written anew.
	size := 0
	if len(marks) > 0 {
		size = len(timesMagic) + len(marks)*markBytes
	}
	if err := f.Truncate(int64(size)); err != nil {
		return fmt.Errorf("mend the index of the output: %w", err)
	}
	c.loaded, c.marks = true, int64(len(marks))
	if len(marks) > 0 {
		c.last = marks[len(marks)-1]
	}
	return nil
}

func readTimes(f *os.File) (logTimes, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, int64(len(timesMagic)+2*maxMarks*markBytes)))
	if err != nil {
		return nil, fmt.Errorf("read the index of the output: %w", err)
	}
	return parseTimes(b), nil
}

// add writes a mark behind the last whole one.
func (c *copyClock) add(f *os.File, m logMark) error {
	b, at := m.append(nil), int64(len(timesMagic))+c.marks*markBytes
	if c.marks == 0 {
		b, at = logTimes{m}.encode(), 0
	}
	if _, err := f.WriteAt(b, at); err != nil {
		return fmt.Errorf("write the index of the output: %w", err)
	}
	c.marks, c.last = c.marks+1, m
	return nil
}

// compact replaces the index by a thinner one.
func (c *copyClock) compact(dir string, f *os.File, keepBytes int64) error {
	marks, err := readTimes(f)
	if err != nil {
		return err
	}
	floor, err := c.floor(dir, keepBytes)
	if err != nil {
		return err
	}
	marks = marks.thin(floor)
	if err := beneath.WriteFile(dir, timesFile, marks.encode(), 0o600); err != nil {
		return fmt.Errorf("thin the index of the output: %w", err)
	}
	c.marks = int64(len(marks))
	return nil
}

// floor is from where on the streams are kept, as far as is easily known.
func (c *copyClock) floor(dir string, keepBytes int64) (floor [2]int64, err error) {
	if keepBytes <= 0 {
		return floor, nil
	}
	for s, length := range c.last.lengths {
		pieces, err := piecesOf(dir, streamFiles[s])
		if err != nil {
			return floor, err
		}
		// The file may be longer than is kept at a moment, but never twice as long for
		// long.
		floor[s] = max(length-2*keepBytes, 0)
		if len(pieces) > 0 {
			floor[s] = min(floor[s], pieces[0].from)
		}
	}
	return floor, nil
}

// recordLogLengths records the current length of each copy's output, for logs by time.
func (a *Agent) recordLogLengths() {
	v := a.view.Load()
	if v == nil {
		return
	}
	a.clock.look(a.store, v.begun, func(err error) {
		a.cfg.Log.Warn("the times of a log cannot be kept", "machine", a.cfg.Name, "err", err)
	})
}
