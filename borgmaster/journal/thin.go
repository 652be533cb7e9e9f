package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"borg/proto/borgpb"
)

const (
	thinName = "thin.tmp"
	// How often a file is looked at ahead.
	weighPeriod = 10 * time.Second
)

// thin makes room before the oldest files go: each user who has more than his part loses
// his oldest events and rows. It reads and writes whole files, and holds nobody up who
// writes or reads.
func (s *store) thin() error {
	s.thinning.Lock()
	defer s.thinning.Unlock()
	s.mu.Lock()
	total := int64(0)
	for _, f := range s.files {
		total += f.bytes
	}
	files := slices.Clone(s.files)
	if n := len(files); s.open != nil && n > 0 {
		// The last one is written.
		files = files[:n-1]
	}
	s.mu.Unlock()
	if total <= s.bytes-2*s.fileBytes || len(files) == 0 {
		return s.weighOne(files, total)
	}
	all, known := shares{}, int64(0)
	for _, f := range files {
		if err := s.weigh(f); err != nil {
			return err
		}
		for user, n := range f.held {
			all[user] += n
			known += n
		}
	}
	over := all.over(known - (total - (s.bytes - 3*s.fileBytes)))
	var before *file
	for _, f := range files {
		cut := shares{}
		for user, n := range f.held {
			if n = min(n, over[user]); n > 0 {
				cut[user] = n
				over[user] -= n
			}
		}
		if len(cut) == 0 {
			before = f
			continue
		}
		kept, err := s.replace(before, f, cut)
		if err != nil {
			return err
		}
		before = kept
	}
	return nil
}

// weighOne finds out ahead what is in a file, as that takes long of all of them. The
// caller holds thinning.
func (s *store) weighOne(files []*file, total int64) error {
	if total <= s.bytes/2 || s.now().Sub(s.weighed) < weighPeriod {
		return nil
	}
	for _, f := range files {
		if f.held == nil {
			s.weighed = s.now()
			return s.weigh(f)
		}
	}
	return nil
}

// countAll adds up what is dropped with a whole file.
func (s *store) countAll(f *file) (map[string]*borgpb.AuditRecord, error) {
	held := shares{}
	if err := s.blocks(f, func(b *borgpb.JournalBlock, _ blockHead) error {
		held.add(b)
		return nil
	}); err != nil {
		return nil, err
	}
	all := everything(held)
	err := s.blocks(f, func(b *borgpb.JournalBlock, _ blockHead) error {
		all.block(b)
		return nil
	})
	return all.drops, err
}

// weigh finds out what is in a file. The caller holds thinning.
func (s *store) weigh(f *file) error {
	if f.held != nil {
		return nil
	}
	held := shares{}
	err := s.blocks(f, func(b *borgpb.JournalBlock, _ blockHead) error {
		held.add(b)
		return nil
	})
	if err != nil {
		return s.unlessDropped(err, f)
	}
	held.bound()
	s.mu.Lock()
	defer s.mu.Unlock()
	f.held = held
	return nil
}

// unlessDropped returns nil instead of err if one of the files was dropped meanwhile: dropOld
// does not wait for thinning, which takes long.
func (s *store) unlessDropped(err error, files ...*file) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		if f != nil && !slices.Contains(s.files, f) {
			return nil
		}
	}
	return err
}

// blocks calls f with each whole block of a file that is not written.
func (s *store) blocks(f *file, each func(*borgpb.JournalBlock, blockHead) error) error {
	opened, err := os.Open(s.path(f.number))
	if err != nil {
		return fmt.Errorf("read the events: %w", err)
	}
	defer opened.Close()
	scan := &scanner{r: opened, size: f.bytes, at: int64(len(fileMagic))}
	for scan.next() {
		b, ok, err := scan.body()
		if err == nil && ok {
			err = each(b, scan.head)
		}
		if err != nil {
			return err
		}
	}
	if scan.err != nil {
		return fmt.Errorf("read the events: %w", scan.err)
	}
	return nil
}

// replace writes a file again without what is cut, together with the one before it if
// both are small and of one day, and puts it in their place. If the process ends between
// the two, what is in both is told once: readers go by indexes.
func (s *store) replace(before, f *file, cut shares) (*file, error) {
	kept := &file{number: f.number, from: f.from, at: f.at, bytes: int64(len(fileMagic)), held: shares{}}
	tmp := filepath.Join(s.dir, thinName)
	out, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("rewrite a file of events: %w", err)
	}
	w := &thinned{out: out, file: kept, sieve: &sieve{over: cut, drops: map[string]*borgpb.AuditRecord{}}}
	_, err = out.WriteString(fileMagic)
	gone := int64(0)
	for _, n := range cut {
		gone += n
	}
	joined := before != nil && before.bytes+f.bytes-gone <= s.fileBytes && f.at.Sub(before.from) <= oneDay
	if joined {
		kept.from = before.from
		err = errors.Join(err, s.blocks(before, w.whole))
	}
	if err == nil {
		err = s.blocks(f, w.block)
	}
	if err = errors.Join(err, out.Sync(), out.Close(), os.Chtimes(tmp, kept.at, kept.at)); err != nil {
		return nil, s.unlessDropped(fmt.Errorf("rewrite a file of events: %w", err), f, before)
	}
	kept.held.bound()
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.files, f)
	if at < 0 || joined && (at == 0 || s.files[at-1] != before) {
		// One of them was dropped meanwhile.
		return nil, nil
	}
	if err := s.keepDropped(w.sieve.drops); err != nil {
		return nil, err
	}
	// Without an index a file is read as a whole.
	index := s.path(f.number) + indexSuffix
	if err := os.Remove(index); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("rewrite a file of events: %w", err)
	}
	if err := errors.Join(os.Rename(tmp, s.path(f.number)), os.WriteFile(index, putMarks(kept.marks), 0o600)); err != nil {
		return nil, fmt.Errorf("rewrite a file of events: %w", err)
	}
	kept.marks = nil
	s.files[at] = kept
	if joined {
		s.files = slices.Delete(s.files, at-1, at)
		return kept, errors.Join(remove(s.path(before.number)), remove(s.path(before.number)+indexSuffix))
	}
	return kept, nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a file of events: %w", err)
	}
	return nil
}

// thinned writes a file again.
type thinned struct {
	out   io.Writer
	file  *file
	sieve *sieve
}

// whole writes a block as it is.
func (w *thinned) whole(b *borgpb.JournalBlock, was blockHead) error {
	data, _, err := encode(nil, b, was.span.lastNs)
	if err != nil {
		return err
	}
	h, _ := parseHead(data)
	// What was in it when it was written says which times and indexes it stands for.
	h.span, h.firstIndex, h.lastIndex = was.span, was.firstIndex, was.lastIndex
	h.put(data[:headBytes])
	if _, err := w.out.Write(data); err != nil {
		return fmt.Errorf("rewrite a file of events: %w", err)
	}
	w.file.add(w.file.bytes, w.file.bytes+int64(len(data)), h.span)
	w.file.bytes += int64(len(data))
	w.file.held.add(b)
	return nil
}

// block writes what is left of a block.
func (w *thinned) block(b *borgpb.JournalBlock, was blockHead) error {
	w.sieve.block(b)
	if len(b.Entries)+len(b.Usage)+len(b.Gaps)+len(b.Picture) == 0 {
		return nil
	}
	return w.whole(b, was)
}
