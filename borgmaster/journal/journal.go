package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

const (
	// DefaultKeep and DefaultBytes bound a journal.
	DefaultKeep  = 30 * 24 * time.Hour
	DefaultBytes = 20 << 30
	// DefaultWindow is what usage is added up over.
	DefaultWindow = 5 * time.Minute
	// DefaultSilent is after what silence of a replica its drafts become rows.
	DefaultSilent = 15 * time.Second
	// maxQueued and maxQueuedBytes bound the entries that wait to be written; what
	// comes beyond is not kept, and told as a gap.
	maxQueued      = 16_384
	maxQueuedBytes = 64 << 20
	// Entries in one block, and about what they weigh: one more may be in it.
	maxBlockEntries = 512
	maxBlockWeight  = 512 << 10
	// Objects that are looked at between two entries of the log.
	maxLook = 200
	// writePeriod is how often what waits is written.
	writePeriod = time.Second
	// settlePeriod is how long what is written may be without a sync. Each sync of a file that
	// has grown holds up those of the log on the same disk for some milliseconds.
	settlePeriod = 5 * time.Second
	// A disk that takes nothing is told of so often.
	complainPeriod = time.Minute
	// About what an event weighs in the queue.
	eventBytes  = 400
	throughName = "through"
)

// Config says where a Journal is and how much it keeps.
type Config struct {
	// Made when it is not there.
	Dir string
	// Who keeps it.
	Replica uint64
	// How long, and how many bytes in all; 0: DefaultKeep and DefaultBytes.
	Keep  time.Duration
	Bytes int64
	// What usage is added up over; 0: DefaultWindow.
	Window time.Duration
	// After what silence of a replica its drafts become rows; 0: DefaultSilent.
	Silent time.Duration
	// The wall clock; nil: the machine's.
	Now func() time.Time
	// Nil: silent.
	Logger *slog.Logger
}

// Journal is the events of a replica. It may be used by many goroutines.
type Journal struct {
	cfg   Config
	store *store
	// Up to where what is written outlives the machine, written down. Only Run and Close
	// touch it.
	mark   *os.File
	marked uint64
	// Wakes the writer.
	wake chan struct{}

	mu sync.Mutex
	// Entries that wait to be written. Guarded by mu.
	queue []applied
	// About what they weigh. Guarded by mu.
	queuedBytes int
	// Up to here the log was put into the queue, or is told as a gap. Guarded by mu.
	seen uint64
	// Gaps that are not written yet. Guarded by mu.
	gaps []*borgpb.AuditHole

	// Held while something is written.
	writing sync.Mutex
	// Entries and gaps up to here are written. Guarded by writing.
	through    uint64
	complained time.Time
	pictured   bool
	make       maker

	usageMu sync.Mutex
	// Guarded by usageMu.
	windows *Windows

	draftsMu sync.Mutex
	// Guarded by draftsMu.
	drafts *Drafts

	written, dropped, failed, rescued atomic.Int64
}

// applied is an entry of the log as it was handed over.
type applied struct {
	index  uint64
	asked  []*borgpb.AuditRecord
	events []cell.Event
	// What it counts in the queue's bytes.
	weight int
}

// Stats is what a journal has done and holds.
type Stats struct {
	// Entries that were written and that did not fit into the queue, and writes
	// that came to nothing.
	Written, Dropped, Failed int64
	// Drafts of other replicas that are held, and rows that were made of such.
	Drafts, Rescued int64
	// Usage that was told and is in no window, and drafts that are not held: there were
	// too many.
	Unkept, Unheld int64
	Bytes          int64
	Files          int
	// Events, requests and rows that were dropped since the process began because their
	// user passed his share.
	Displaced int64
}

// Viewer shows the cell between two entries of the log.
type Viewer interface{ View(f func(c *cell.Cell)) }

// Open opens the journal of a replica.
func Open(config Config) (*Journal, error) {
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Keep == 0 {
		config.Keep = DefaultKeep
	}
	if config.Bytes == 0 {
		config.Bytes = DefaultBytes
	}
	if config.Window == 0 {
		config.Window = DefaultWindow
	}
	if config.Silent == 0 {
		config.Silent = DefaultSilent
	}
	// The log of a new cell begins after index 1.
	j := &Journal{
		cfg: config, wake: make(chan struct{}, 1), through: 1, marked: 1,
		windows: NewWindows(config.Replica, int64(config.Window)), drafts: NewDrafts(maxDrafts, int64(config.Silent)),
	}
	var err error
	j.store, err = openStore(config.Dir, config.Keep, config.Bytes, config.Now, func(b *borgpb.JournalBlock) {
		for _, e := range b.Entries {
			j.through = max(j.through, e.Index)
		}
		for _, g := range b.Gaps {
			j.through = max(j.through, g.To)
		}
	})
	if err != nil {
		return nil, err
	}
	if j.store.cutBytes > 0 {
		config.Logger.Warn("a torn block of events was cut off", "bytes", j.store.cutBytes)
	}
	path := filepath.Join(config.Dir, throughName)
	if j.mark, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("open the events: %w", err), j.store.close())
	}
	data := make([]byte, throughBytes)
	if _, err := j.mark.ReadAt(data, 0); err != nil && err != io.EOF {
		return nil, errors.Join(fmt.Errorf("read %s: %w", path, err), j.store.close(), j.mark.Close())
	}
	if index := binary.BigEndian.Uint64(data); bytes.Equal(data, throughOf(index)) {
		j.marked = index
		j.through = max(j.through, index)
	}
	j.seen = j.through
	return j, nil
}

// Applied hears of an entry. It must be called for each one, in order; one that was
// seen before is passed over. It writes nothing and never waits for the disk. What
// somebody asked for in it (audit.Records) is the journal's from then on, and events
// must not be changed afterwards.
func (j *Journal) Applied(index uint64, data []byte, asked []*borgpb.AuditRecord, events []cell.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if index <= j.seen {
		return
	}
	if index > j.seen+1 {
		j.gap(j.seen+1, index-1, "this replica kept none at that time")
	}
	j.seen = index
	if len(data) == 0 {
		return
	}
	weight := len(data) + len(events)*eventBytes
	if len(j.queue) >= maxQueued || j.queuedBytes+weight > maxQueuedBytes {
		j.dropped.Add(1)
		j.gap(index, index, "more happened at once than could be written")
		return
	}
	for _, r := range asked {
		r.Op, r.OpHash = nil, nil
	}
	j.queue = append(j.queue, applied{index, asked, events, weight})
	j.queuedBytes += weight
	if len(j.queue) == maxBlockEntries {
		j.nudge()
	}
}

// Restored hears that a checkpoint was put in the place of the log up to index.
func (j *Journal) Restored(index uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if index <= j.seen {
		return
	}
	j.gap(j.seen+1, index, "this replica was given a checkpoint instead of the log")
	j.seen = index
	j.nudge()
}

func (j *Journal) nudge() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Run writes what is handed over, until ctx ends. The cell is asked for what is
// known of objects.
func (j *Journal) Run(ctx context.Context, log Viewer) {
	tick := time.NewTicker(writePeriod)
	defer tick.Stop()
	for settled := time.Now(); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-j.wake:
		case <-tick.C:
		}
		j.Flush(log)
		if ctx.Err() == nil && time.Since(settled) < settlePeriod {
			continue
		}
		settled = time.Now()
		if err := j.settle(); err != nil {
			j.complain(err)
		}
	}
}

// Thin makes room, now and then until ctx ends, before the oldest files go.
func (j *Journal) Thin(ctx context.Context) {
	tick := time.NewTicker(writePeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := j.store.thin(); err != nil {
			j.complain(err)
		}
	}
}

// Dropped is what was dropped of users who passed their share.
func (j *Journal) Dropped() []*borgpb.AuditRecord { return j.store.told() }

// Flush writes all that waits.
func (j *Journal) Flush(log Viewer) {
	j.writing.Lock()
	defer j.writing.Unlock()
	for j.flushSome(log) {
	}
}

// flushSome writes one block, and says whether more waits. The caller holds writing.
func (j *Journal) flushSome(log Viewer) bool {
	j.mu.Lock()
	n := 0
	for weight := 0; n < min(len(j.queue), maxBlockEntries) && weight < maxBlockWeight; n++ {
		weight += j.queue[n].weight
	}
	batch := j.queue[:n:n]
	through, gaps := j.seen, j.gaps
	if n < len(j.queue) {
		// A gap may lie behind what is left.
		through = batch[n-1].index
		cut, _ := slices.BinarySearchFunc(gaps, through, func(g *borgpb.AuditHole, index uint64) int {
			if g.From <= index {
				return -1
			}
			return 1
		})
		gaps = gaps[:cut:cut]
	}
	j.queue, j.gaps = j.queue[n:], j.gaps[len(gaps):]
	if len(j.queue) == 0 {
		j.queue = nil
	}
	more := len(j.queue) > 0
	for _, a := range batch {
		j.queuedBytes -= a.weight
	}
	j.mu.Unlock()
	if through == j.through && len(gaps) == 0 {
		return more
	}
	if !j.pictured && !j.picture(log) {
		j.lose(gaps, through, errors.New("no picture of the cell could be written"))
		return more
	}
	b := &borgpb.JournalBlock{Gaps: gaps, Entries: j.make.entriesOf(batch, log)}
	if len(b.Gaps)+len(b.Entries) > 0 {
		begun, err := j.store.append(b)
		j.make.again()
		if err != nil {
			j.lose(gaps, through, err)
			return more
		}
		j.written.Add(int64(len(b.Entries)))
		if begun {
			j.pictured = false
		}
	}
	j.through = through
	return more
}

func (j *Journal) complain(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if now := j.cfg.Now(); now.Sub(j.complained) >= complainPeriod {
		j.complained = now
		j.cfg.Logger.Error("events are not kept; what is missing will be told as a gap", "err", err)
	}
}

// picture writes what lives in the cell, at the beginning of each file: what is
// dropped before it is not missed. The cell is looked at in parts, so that the log
// goes on between them. The caller holds writing.
func (j *Journal) picture(log Viewer) bool {
	var all Objects
	log.View(func(c *cell.Cell) { all = AllObjects(c) })
	for len(all.UIDs)+len(all.Machines) > 0 {
		uids, machines := min(len(all.UIDs), maxLook), min(len(all.Machines), maxLook)
		part := Objects{UIDs: all.UIDs[:uids], Machines: all.Machines[:machines]}
		all.UIDs, all.Machines = all.UIDs[uids:], all.Machines[machines:]
		b := new(borgpb.JournalBlock)
		log.View(func(c *cell.Cell) { b.Picture = j.make.picture(c, part) })
		if len(b.Picture) == 0 {
			continue
		}
		_, err := j.store.append(b)
		j.make.again()
		if err != nil {
			j.complain(err)
			return false
		}
	}
	j.pictured = true
	return true
}

// entriesOf makes records of entries.
func (m *maker) entriesOf(batch []applied, log Viewer) (entries []*borgpb.JournalEntry) {
	for _, a := range batch {
		if len(a.events)+len(a.asked) == 0 {
			continue
		}
		e := m.entries.next()
		e.Index, e.Asked, e.Events = a.index, a.asked, make([]*borgpb.Event, len(a.events))
		for _, r := range e.Asked {
			e.WallNs = r.WallNs
		}
		for i := range a.events {
			p := m.events.next()
			a.events[i].Put(p)
			e.WallNs, e.Events[i] = p.WallNs, p
		}
		m.objects = changed(a.events, Objects{m.objects.UIDs[:0], m.objects.Machines[:0]})
		if len(m.objects.UIDs)+len(m.objects.Machines) > 0 {
			log.View(func(c *cell.Cell) { e.Facts = m.of(c, m.objects) })
		}
		entries = append(entries, e)
	}
	return entries
}

// changed adds the objects whose facts may be others after these events.
func changed(events []cell.Event, o Objects) Objects {
	for i := range events {
		ev := &events[i]
		switch ev.ObjectKind {
		case borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET:
			if !slices.Contains(o.UIDs, ev.UID) {
				o.UIDs = append(o.UIDs, ev.UID)
			}
		case borgpb.ObjectKind_OBJECT_KIND_MACHINE:
			if !slices.Contains(o.Machines, ev.Machine) {
				o.Machines = append(o.Machines, ev.Machine)
			}
		}
	}
	return o
}

// Keep writes rows of usage, this replica's or another one's.
func (j *Journal) Keep(rows []*borgpb.UsageRow) error {
	const most = 5_000
	for len(rows) > 0 {
		n := min(len(rows), most)
		b := &borgpb.JournalBlock{Usage: rows[:n]}
		rows = rows[n:]
		j.writing.Lock()
		begun, err := j.store.append(b)
		if begun {
			j.pictured = false
		}
		j.writing.Unlock()
		if err != nil {
			j.failed.Add(1)
			j.complain(err)
			return err
		}
	}
	return nil
}

// Read calls f with each block in which something may be in [since, until), as they
// were written; zeros are no bounds. pick leaves out what need not be decoded. What is damaged is a gap without indexes. Before each
// block it calls step, and ends if that returns an error.
func (j *Journal) Read(since, until int64, pick Pick, step func() error, f func(*borgpb.JournalBlock) error) error {
	return j.store.read(since, until, pick, step, f)
}

// Stats tells what it has done and holds.
func (j *Journal) Stats() Stats {
	s := Stats{Written: j.written.Load(), Dropped: j.dropped.Load(), Failed: j.failed.Load(), Rescued: j.rescued.Load()}
	j.draftsMu.Lock()
	s.Drafts, s.Unheld = int64(j.drafts.held), j.drafts.lost
	j.draftsMu.Unlock()
	j.usageMu.Lock()
	s.Unkept = j.windows.lost
	j.usageMu.Unlock()
	s.Bytes, s.Files, s.Displaced = j.store.size()
	return s
}

// Close ends it, after Run. What waits is not written: see Flush.
func (j *Journal) Close() error {
	return errors.Join(j.settle(), j.store.close(), j.mark.Close())
}
