package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// maxDropsKept is how many callers it is remembered of that records of theirs were
// dropped; those of whom the oldest were dropped are counted together.
const maxDropsKept = 1_000

// isOver reports whether a pool holds more than it may, as far as is known.
func (j *journal) isOver() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := tally{}
	for _, f := range j.files {
		for s, n := range f.held {
			all[s] += n
		}
	}
	return all.sum(true) > j.limits.pool(true) || all.sum(false) > j.limits.pool(false)
}

// drop makes room: each share that holds more than its part drops its oldest records.
func (j *journal) drop() error {
	j.dropping.Lock()
	defer j.dropping.Unlock()
	j.mu.Lock()
	err := j.seal()
	before, files := j.total(), slices.Clone(j.files)
	j.mu.Unlock()
	if err != nil {
		return err
	}
	all := tally{}
	for _, f := range files {
		if err := j.weigh(f); err != nil {
			return err
		}
		for s, n := range f.held {
			all[s] += n
		}
	}
	over := all.excess(true, j.limits.pool(true)-j.limits.fileBytes/2)
	if over == nil {
		over = tally{}
	}
	maps.Copy(over, all.excess(false, j.limits.pool(false)-j.limits.fileBytes/2))
	for _, group := range j.groups(files, over) {
		if err := j.replace(group); err != nil {
			return err
		}
	}
	return j.ensureSmaller(before)
}

// ensureSmaller removes empty files, and, if no share was over its part, the oldest
// file: damaged ones and the heads of small ones are in no share.
func (j *journal) ensureSmaller(before int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.files) > 1 && j.files[0].bytes <= int64(headBytes+frameBytes) {
		if err := j.removeOldest(); err != nil {
			return err
		}
	}
	if len(j.files) < 2 || j.total() < before || j.total() <= j.limits.bytes-2*j.limits.fileBytes {
		return nil
	}
	oldest := j.files[0]
	drops := map[share]*borgpb.AuditRecord{}
	err := j.readClosed(oldest, func(b *borgpb.AuditBatch, _ *fileReader) error {
		noteDrop(drops, b)
		return nil
	})
	var bad *damagedError
	if err != nil && !errors.As(err, &bad) {
		return err
	}
	if err := j.keepDropped(drops); err != nil {
		return err
	}
	return j.removeOldest()
}

// readClosed calls f with each batch of a file that is not written.
func (j *journal) readClosed(file *journalFile, f func(*borgpb.AuditBatch, *fileReader) error) error {
	opened, err := os.Open(j.path(file))
	if err != nil {
		return fmt.Errorf("read the audit: %w", err)
	}
	defer opened.Close()
	r := &fileReader{r: io.NewSectionReader(opened, 0, file.bytes)}
	return r.each(func(b *borgpb.AuditBatch) error { return f(b, r) })
}

// weighAll finds out what is in the files of an earlier process.
func (j *journal) weighAll() error {
	j.dropping.Lock()
	defer j.dropping.Unlock()
	j.mu.Lock()
	files := slices.Clone(j.files)
	j.mu.Unlock()
	for _, f := range files {
		if err := j.weigh(f); err != nil {
			return err
		}
	}
	return nil
}

// weigh finds out what is in a file. The caller holds dropping.
func (j *journal) weigh(file *journalFile) error {
	if file.held != nil {
		return nil
	}
	held := tally{}
	err := j.readClosed(file, func(b *borgpb.AuditBatch, r *fileReader) error {
		held[shareOf(b.Records[0])] += r.frame
		return nil
	})
	var bad *damagedError
	if err != nil && !errors.As(err, &bad) {
		return j.unlessAged(err, file)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if file.held = held; err != nil {
		file.setDamaged()
	}
	return nil
}

// unlessAged returns nil instead of err if one of the files was too old meanwhile and is
// gone: dropAged does not wait for dropping, which takes long.
func (j *journal) unlessAged(err error, files ...*journalFile) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.find(files) < 0 {
		return nil
	}
	return err
}

// find returns where adjacent files begin in j.files, or -1 if not all of them are there.
// The caller holds mu.
func (j *journal) find(files []*journalFile) int {
	at := slices.Index(j.files, files[0])
	if at < 0 || at+len(files) > len(j.files) || !slices.Equal(j.files[at:at+len(files)], files) {
		return -1
	}
	return at
}

// setDamaged has a file left as it is until it is too old.
func (f *journalFile) setDamaged() { f.damaged, f.held = true, tally{ofHoles: f.bytes} }

// group is adjacent files that one takes the place of, and what it leaves out.
type group struct {
	files []*journalFile
	out   tally
	bytes int64
}

// groups plans which files are replaced, so that each share drops what it has over, its
// oldest first. What becomes small is joined with its neighbours.
func (j *journal) groups(files []*journalFile, over tally) []*group {
	var all []*group
	for _, f := range files {
		g := &group{files: []*journalFile{f}, out: tally{}, bytes: f.bytes}
		for s, n := range f.held {
			if cut := min(n, over[s]); cut > 0 && !f.damaged {
				g.out[s] = cut
				over[s] -= cut
				g.bytes -= cut
			}
		}
		if n := len(all); n > 0 && all[n-1].joins(g, j.limits.fileBytes) {
			all[n-1].join(g)
		} else {
			all = append(all, g)
		}
	}
	return slices.DeleteFunc(all, func(g *group) bool { return len(g.out) == 0 })
}

// joins reports whether the next file may be joined to a group. What is of several days
// is not, as it would be kept until the last of it is too old.
func (g *group) joins(next *group, most int64) bool {
	first, last := g.files[0], next.files[0]
	return len(g.out)+len(next.out) > 0 && !first.damaged && !last.damaged && g.bytes+next.bytes <= most && last.at.Sub(first.from) <= oneDay
}

func (g *group) join(next *group) {
	g.files = append(g.files, next.files...)
	g.bytes += next.bytes
	for s, n := range next.out {
		g.out[s] += n
	}
}

// errNoSequel says that a file does not begin where the one before it ends.
var errNoSequel = errors.New("a file does not follow the one before it")

// replace puts one file in the place of a group.
func (j *journal) replace(g *group) error {
	new := &journalFile{
		number: g.files[0].number, last: g.files[len(g.files)-1].last,
		from: g.files[0].from, at: g.files[len(g.files)-1].at, held: tally{},
	}
	tmp, drops, err := j.rewrite(g, new)
	var bad *damagedError
	switch {
	case (errors.Is(err, errNoSequel) || errors.As(err, &bad)) && len(g.files) > 1:
		// Each alone, so that the hole between them is still told.
		for _, f := range g.files {
			if err := j.replace(&group{files: []*journalFile{f}, out: g.out}); err != nil {
				return err
			}
		}
		return nil
	case errors.As(err, &bad):
		j.mu.Lock()
		defer j.mu.Unlock()
		g.files[0].setDamaged()
		return nil
	case err != nil:
		return j.unlessAged(err, g.files...)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	at := j.find(g.files)
	if at < 0 {
		// One of them is gone. The next drop plans anew.
		return nil
	}
	// If the process ends between the two, what was dropped is counted twice, and
	// never not at all.
	if err := j.keepDropped(drops); err != nil {
		return err
	}
	if err := errors.Join(os.Chtimes(tmp, new.at, new.at), os.Rename(tmp, j.path(new))); err != nil {
		return fmt.Errorf("replace a file of the audit: %w", err)
	}
	j.files = slices.Replace(j.files, at, at+len(g.files), new)
	for _, f := range g.files {
		if path := j.path(f); path != j.path(new) {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove a file of the audit that was replaced: %w", err)
			}
		}
	}
	return nil
}

// rewrite writes what a group keeps into a new file beside it.
func (j *journal) rewrite(g *group, new *journalFile) (path string, drops map[share]*borgpb.AuditRecord, err error) {
	path = j.tmpPath()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("rewrite a file of the audit: %w", err)
	}
	defer func() {
		if failed := f.Close(); err == nil && failed != nil {
			err = fmt.Errorf("rewrite a file of the audit: %w", failed)
		}
	}()
	// The group keeps what it leaves out until this is done: it may be tried again file by file.
	w := &rewriter{out: bufio.NewWriter(f), file: new, over: maps.Clone(g.out), drops: map[share]*borgpb.AuditRecord{}}
	for i, old := range g.files {
		if err := w.take(j.path(old), old.bytes, i == 0); err != nil {
			return "", nil, err
		}
	}
	if err := errors.Join(w.end(), w.out.Flush(), f.Sync()); err != nil {
		return "", nil, fmt.Errorf("rewrite a file of the audit: %w", err)
	}
	maps.Copy(g.out, w.over)
	return path, w.drops, nil
}

// rewriter copies files without what is over.
type rewriter struct {
	out  *bufio.Writer
	file *journalFile
	over tally
	// What was left out.
	drops map[share]*borgpb.AuditRecord
	// Hash of the last batch that was written, and of the last one that was read.
	chain, read [sha256.Size]byte
}

// take copies one file.
func (w *rewriter) take(path string, size int64, first bool) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("rewrite a file of the audit: %w", err)
	}
	defer f.Close()
	head := make([]byte, headBytes)
	if _, err := f.ReadAt(head, 0); err != nil {
		return &damagedError{"no head"}
	}
	if first {
		w.read = [sha256.Size]byte(head[len(fileMagic):])
		w.chain = w.read
		if err := w.write(head); err != nil {
			return err
		}
	} else if !bytes.Equal(head[len(fileMagic):], w.read[:]) {
		return errNoSequel
	}
	r := &fileReader{r: io.NewSectionReader(f, 0, size)}
	err = r.each(func(b *borgpb.AuditBatch) error { return w.batch(b, r) })
	w.read = r.chain
	return err
}

func (w *rewriter) batch(b *borgpb.AuditBatch, r *fileReader) error {
	s := shareOf(b.Records[0])
	if w.over[s] > 0 {
		w.over[s] -= r.frame
		noteDrop(w.drops, b)
		return nil
	}
	w.chain = chained(w.chain, r.data)
	frame := make([]byte, frameBytes, r.frame)
	putFrame(frame, uint32(len(r.data)), w.chain)
	frame = append(frame, r.data...)
	if b.Records[0].Refusal != nil {
		frame = r.counter.appendTo(frame)
	}
	w.file.held[s] += int64(len(frame))
	return w.write(frame)
}

// end has the next file follow, which knows the hash of what was read.
func (w *rewriter) end() error {
	if w.chain == w.read {
		return nil
	}
	frame := make([]byte, frameBytes)
	putFrame(frame, joinMark, w.read)
	return w.write(frame)
}

func (w *rewriter) write(b []byte) error {
	w.file.bytes += int64(len(b))
	if _, err := w.out.Write(b); err != nil {
		return fmt.Errorf("rewrite a file of the audit: %w", err)
	}
	return nil
}

// noteDrop counts a batch that is dropped.
func noteDrop(drops map[share]*borgpb.AuditRecord, b *borgpb.AuditBatch) {
	s := shareOf(b.Records[0])
	for _, r := range b.Records {
		addDrop(drops, s, &borgpb.AuditRecord{WallNs: r.WallNs, LastWallNs: max(r.LastWallNs, r.WallNs), Drop: &borgpb.AuditDrop{Records: 1, Times: max(r.Count, 1)}})
	}
}

func addDrop(drops map[share]*borgpb.AuditRecord, s share, more *borgpb.AuditRecord) {
	d := drops[s]
	if d == nil {
		role, who := s.role()
		d = &borgpb.AuditRecord{Role: role, Who: who, Admin: s.admin, WallNs: more.WallNs, Drop: new(borgpb.AuditDrop)}
		drops[s] = d
	}
	d.WallNs, d.LastWallNs = min(d.WallNs, more.WallNs), max(d.LastWallNs, more.LastWallNs)
	d.Drop.Records += more.Drop.Records
	d.Drop.Times += more.Drop.Times
}

// keepDropped adds to what was dropped, and writes it down. The caller holds mu.
func (j *journal) keepDropped(drops map[share]*borgpb.AuditRecord) error {
	for s, d := range drops {
		addDrop(j.dropped, s, d)
		j.drops += d.Drop.Records
	}
	j.forgetDropped()
	return WriteDrops(j.droppedPath(), sortedDrops(j.dropped))
}

// WriteDrops writes a file of what was dropped.
func WriteDrops(path string, drops []*borgpb.AuditRecord) error {
	data, err := proto.Marshal(&borgpb.AuditBatch{Records: drops})
	if err != nil {
		return fmt.Errorf("encode what was dropped: %w", err)
	}
	hash := sha256.Sum256(data)
	if err := errors.Join(os.WriteFile(path+".tmp", append(hash[:], data...), 0o600), os.Rename(path+".tmp", path)); err != nil {
		return fmt.Errorf("write down what was dropped: %w", err)
	}
	return nil
}

// forgetDropped forgets what would be too old to be kept, and bounds the rest. The
// caller holds mu.
func (j *journal) forgetDropped() {
	old := j.now().Add(-j.limits.age).UnixNano()
	all := sortedDrops(j.dropped)
	for i, d := range all {
		s := droppedShare(d)
		switch {
		case d.LastWallNs < old:
			delete(j.dropped, s)
		case i < len(all)-maxDropsKept && s != ofOthers:
			delete(j.dropped, s)
			addDrop(j.dropped, ofOthers, d)
		}
	}
}

// droppedShare is whose drop it is.
func droppedShare(d *borgpb.AuditRecord) share {
	if d.Role == borgpb.Role_ROLE_UNSPECIFIED {
		return share{d.Admin, ":" + d.Who}
	}
	return shareOf(d)
}

// told returns copies of what was dropped and is not too old.
func (j *journal) told() []*borgpb.AuditRecord {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forgetDropped()
	all := sortedDrops(j.dropped)
	for i, d := range all {
		all[i] = proto.CloneOf(d)
	}
	return all
}

// size returns the bytes of the files, and the records that were dropped since the
// process began.
func (j *journal) size() (bytes int64, drops uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.total(), j.drops
}

// ofOthers is whose drops are counted together.
var ofOthers = share{who: ":others"}

// sortedDrops returns what was dropped, by the time of the last.
func sortedDrops(drops map[share]*borgpb.AuditRecord) []*borgpb.AuditRecord {
	all := make([]*borgpb.AuditRecord, 0, len(drops))
	for _, d := range drops {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b *borgpb.AuditRecord) int {
		return cmp.Or(cmp.Compare(a.LastWallNs, b.LastWallNs), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Who, b.Who))
	})
	return all
}

func (j *journal) droppedPath() string { return filepath.Join(j.dir, j.name+".dropped") }

func (j *journal) tmpPath() string { return filepath.Join(j.dir, j.name+".tmp") }

// readDropped reads what was dropped so far; what cannot be read is not known.
func readDropped(path string) map[share]*borgpb.AuditRecord {
	drops := map[share]*borgpb.AuditRecord{}
	for _, d := range ReadDrops(path) {
		drops[droppedShare(d)] = d
	}
	return drops
}

// ReadDrops reads a file of what was dropped; nil if it is not there or cannot be read.
func ReadDrops(path string) []*borgpb.AuditRecord {
	data, err := os.ReadFile(path)
	batch := new(borgpb.AuditBatch)
	if err != nil || len(data) < sha256.Size || sha256.Sum256(data[sha256.Size:]) != [sha256.Size]byte(data) || proto.Unmarshal(data[sha256.Size:], batch) != nil {
		return nil
	}
	return batch.Records
}
