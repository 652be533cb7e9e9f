package fauxmaster

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
)

// Moment is one in the past of a cell. The zero value is the last one there is.
type Moment struct {
	// Epoch and Index of the last entry that has been applied. Epoch 0: the last
	// one.
	Epoch, Index uint64
	// Not zero, instead of an index: the last entry stamped at or before it.
	Wall time.Time
}

// ParseMoment reads an index, EPOCH:INDEX, or a time; empty is the last moment.
func ParseMoment(text string) (m Moment, err error) {
	if text == "" {
		return m, nil
	}
	index := text
	if epoch, rest, ok := strings.Cut(text, ":"); ok && !strings.Contains(text, "-") {
		if m.Epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil {
			return m, fmt.Errorf("%q is no moment: want INDEX, EPOCH:INDEX, or a time such as 2026-11-21T22:00:00Z", text)
		}
		index = rest
	}
	if m.Index, err = strconv.ParseUint(index, 10, 64); err == nil && m.Index > 0 {
		return m, nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, time.DateOnly} {
		if m.Wall, err = time.Parse(layout, text); err == nil {
			return Moment{Wall: m.Wall}, nil
		}
	}
	return m, fmt.Errorf("%q is no moment: want INDEX, EPOCH:INDEX, or a time such as 2026-11-21T22:00:00Z", text)
}

func (m Moment) String() string {
	switch {
	case !m.Wall.IsZero():
		return m.Wall.UTC().Format(time.RFC3339Nano)
	case m.Epoch != 0:
		return fmt.Sprintf("index %d of epoch %d", m.Index, m.Epoch)
	}
	return fmt.Sprintf("index %d", m.Index)
}

// OutOfReachError says that an archive does not lead to a moment.
type OutOfReachError struct {
	Moment Moment
	// Why not, and what there is.
	Why string
}

func (e *OutOfReachError) Error() string {
	return fmt.Sprintf("the archive does not lead to %v: %s", e.Moment, e.Why)
}

// Past is what an archive tells of a cell.
type Past struct {
	dir     string
	archive *checkpoint.Archive
	kept    []checkpoint.Kept
}

// OpenPast opens the archive in a directory, or a replica's directory that has
// one.
func OpenPast(dir string) (*Past, error) {
	if info, err := os.Stat(dir + "/" + checkpoint.ArchiveDir); err == nil && info.IsDir() {
		dir += "/" + checkpoint.ArchiveDir
	}
	archive, err := checkpoint.OpenArchive(nil, dir)
	if err != nil {
		return nil, err
	}
	p := &Past{dir: dir, archive: archive, kept: archive.Checkpoints()}
	if len(p.kept) == 0 {
		return nil, &DamagedError{dir, errors.New("no checkpoint is in it")}
	}
	return p, nil
}

// First is the moment of the first checkpoint.
func (p *Past) First() Moment {
	h := p.kept[0].Header
	return Moment{Epoch: h.GetEpoch(), Index: h.GetIndex()}
}

// CellName is what the cell is called.
func (p *Past) CellName() string { return p.kept[0].Header.GetCellName() }

// At goes to a moment: to the nearest checkpoint before it, and from there by the
// change log. The caller closes the tape.
func (p *Past) At(m Moment) (*Tape, error) {
	k, err := p.before(m)
	if err != nil {
		return nil, err
	}
	t, err := p.play(k)
	if err != nil {
		return nil, err
	}
	if err := t.to(m); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// before is the last checkpoint that is not after a moment.
func (p *Past) before(m Moment) (k checkpoint.Kept, err error) {
	last := p.kept[len(p.kept)-1]
	if m == (Moment{}) {
		return last, nil
	}
	if m.Wall.IsZero() && m.Epoch == 0 {
		m.Epoch = last.Header.GetEpoch()
	}
	found := false
	for _, k2 := range p.kept {
		h := k2.Header
		if !m.Wall.IsZero() && h.GetWallTimeNs() <= m.Wall.UnixNano() || m.Wall.IsZero() && h.GetEpoch() == m.Epoch && h.GetIndex() <= m.Index {
			k, found = k2, true
		}
	}
	if !found {
		first := p.kept[0].Header
		return k, &OutOfReachError{m, fmt.Sprintf("its first checkpoint is of epoch %d, index %d, %s", first.GetEpoch(), first.GetIndex(), wallText(first.GetWallTimeNs()))}
	}
	return k, nil
}

func wallText(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) }

// play begins at a checkpoint.
func (p *Past) play(k checkpoint.Kept) (*Tape, error) {
	f, err := p.archive.OpenCheckpoint(k)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	picture, err := Load(f)
	if err != nil {
		return nil, &DamagedError{p.dir + "/" + k.Name, err}
	}
	t := &Tape{first: picture.Header, Cell: picture.Cell}
	t.next, t.stop = iter.Pull2(p.archive.Entries(k.Header.GetEpoch(), k.Header.GetIndex()))
	return t, nil
}

// Tape is a cell that goes on entry by entry, as it once did. It belongs to one
// goroutine.
type Tape struct {
	Cell *cell.Cell
	// The header of the checkpoint that it began with.
	first *borgpb.CheckpointHeader
	next  func() (checkpoint.PastEntry, error, bool)
	stop  func()
	// Read and not applied yet, or why there is nothing.
	ahead *Entry
	end   error
	// Makes decisions again; nil: nobody does.
	decider *decider
}

// Entry is an entry of the change log.
type Entry struct {
	Index, Term uint64
	Data        []byte
	// What is in Data; nil when raft made the entry for itself, or it cannot be
	// read.
	Entry *borgpb.Entry
}

// Step is an entry that was applied, and what came of it.
type Step struct {
	Entry
	Results []*borgpb.Result
	Events  []cell.Event
}

// Close ends the reading.
func (t *Tape) Close() { t.stop() }

// Peek returns the next entry; io.EOF when there is none.
func (t *Tape) Peek() (*Entry, error) {
	if t.ahead == nil && t.end == nil {
		e, err, ok := t.next()
		switch {
		case !ok:
			t.end = io.EOF
		case err != nil:
			t.end = err
		default:
			t.ahead = &Entry{Index: e.Index, Term: e.Term, Data: e.Data}
			if entry := new(borgpb.Entry); len(e.Data) > 0 && proto.Unmarshal(e.Data, entry) == nil {
				t.ahead.Entry = entry
			}
		}
	}
	return t.ahead, t.end
}

// Step applies the next entry; io.EOF when there is none.
func (t *Tape) Step() (*Step, error) {
	e, err := t.Peek()
	if err != nil {
		return nil, err
	}
	t.ahead = nil
	if t.decider != nil {
		t.decider.before(t.Cell)
	}
	s := &Step{Entry: *e}
	s.Results, s.Events = t.Cell.Apply(e.Index, e.Term, e.Data)
	if t.decider != nil {
		t.decider.after(t.Cell, s)
	}
	// Nobody writes the records down; without this the list of the changed ones
	// would grow for ever.
	t.Cell.Flush(nil)
	return s, nil
}

// follow has decisions made again from here on.
func (t *Tape) follow(d *decider) { t.decider = d }

// to goes on to a moment.
func (t *Tape) to(m Moment) error { return t.Until(m, func(*Step) error { return nil }) }

// Until goes on to a moment and shows every step on the way; an error of show ends
// it.
func (t *Tape) Until(m Moment, show func(*Step) error) error {
	index, wallNs := m.Index, int64(math.MaxInt64)
	switch {
	case !m.Wall.IsZero():
		index, wallNs = math.MaxUint64, m.Wall.UnixNano()
	case m == Moment{}:
		index = math.MaxUint64
	}
	for t.Cell.Index() < index {
		e, err := t.Peek()
		if err == nil && e.Entry.GetWallTimeNs() > wallNs {
			return nil
		}
		if errors.Is(err, io.EOF) && index == math.MaxUint64 {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return &OutOfReachError{m, fmt.Sprintf("its change log ends at index %d", t.Cell.Index())}
		}
		var gap *checkpoint.GapError
		if errors.As(err, &gap) {
			return &OutOfReachError{m, err.Error()}
		}
		if err != nil {
			return err
		}
		s, err := t.Step()
		if err == nil {
			err = show(s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Picture is the cell at this moment. The tape must not go on after that.
func (t *Tape) Picture() *Picture {
	h, c := proto.CloneOf(t.first), t.Cell
	digest := c.Digest()
	h.CellFormat, h.Index, h.Term, h.Digest = c.Format(), c.Index(), c.Term(), digest[:]
	h.CellTimeNs, h.WallTimeNs = c.TimeNs(), c.WallNs()
	return &Picture{h, c}
}

// OpenAt opens a checkpoint file, or an archive at a moment.
func OpenAt(path string, m Moment) (*Picture, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open the past: %w", err)
	}
	if !info.IsDir() {
		p, err := Open(path)
		if err == nil && !m.is(p.Header) {
			return nil, &OutOfReachError{m, fmt.Sprintf("%s is one checkpoint, of index %d; an archive has more than one moment", path, p.Header.GetIndex())}
		}
		return p, err
	}
	past, err := OpenPast(path)
	if err != nil {
		return nil, err
	}
	t, err := past.At(m)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return t.Picture(), nil
}

// is tells whether a checkpoint is of that moment.
func (m Moment) is(h *borgpb.CheckpointHeader) bool {
	return m == Moment{} || m.Wall.IsZero() && m.Index == h.GetIndex() && (m.Epoch == 0 || m.Epoch == h.GetEpoch())
}
