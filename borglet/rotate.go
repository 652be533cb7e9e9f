package borglet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"

	"borg/borglet/beneath"
)

const (
	// Of what is kept of a stream, a piece holds this part before it is compressed, and
	// the file at most filePieces times as much. The rest is for pieces.
	piecePart  = 8
	filePieces = 4
	// pieceAlign is what offsets of pieces are multiples of: disks give back whole blocks.
	pieceAlign = 64 << 10
	maxPiece   = 8 << 20
	// maxPieces bounds how many pieces of a stream are kept, however small.
	maxPieces = 256
	// packBytes is how much is compressed in one round, for each processor: what tasks
	// write must not become work of the borglet without bound. What is more than that is
	// lost in its oldest part, and readers are told.
	packBytes = int64(8 << 20)
)

var streamFiles = []string{stdoutFile, stderrFile}

// rotator keeps the output of copies within its bounds: of each stream, the oldest
// part of the file becomes a piece when the file has grown, and the oldest piece goes
// when there is too much. A task writes on into the same file and notices nothing.
//
// Whatever is killed when, nothing is lost by it: a piece is whole and on the disk
// before its part of the file is given back. What lies in both is read from the file,
// and given back in the next round; a piece that is not whole is thrown away.
type rotator struct {
	store *Store
	// keepBytes is what is kept of a stream; zero: all.
	keepBytes int64
	punch     func(file *os.File, end int64) error
	warn      func(error)
	// hoarded hears of a copy whose output took disk for nothing that it wrote.
	hoarded func(Hoarded)

	mu sync.Mutex
	// copies whose output may have grown since the last round. Guarded by mu.
	copies map[ID]bool

	// The rest belongs to who calls round.
	gz *gzip.Writer
	// lengths of the files, as last seen, by their paths; of copies that are tidied.
	lengths map[string]int64
	// first is the copy that has the first turn.
	first int
}

func newRotator(s *Store, cfg Config) *rotator {
	r := &rotator{store: s, keepBytes: cfg.LogKeepBytes, punch: cfg.Punch, copies: map[ID]bool{}, lengths: map[string]int64{}}
	r.hoarded = func(Hoarded) {}
	r.warn = func(err error) {
		cfg.Log.Warn("a log cannot be kept within its bounds", "machine", cfg.Name, "err", err)
	}
	// The level is one that there is.
	r.gz, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed)
	return r
}

func (r *rotator) pieceBytes() int64 {
	return min(max(r.keepBytes/piecePart/pieceAlign*pieceAlign, pieceAlign), maxPiece)
}

// begin has the output of a copy looked at, also if it ends before the next round.
func (r *rotator) begin(id ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.copies[id] = true
}

// run makes a round each second until ctx ends: what a task can write in between is
// all that it can take of the disk beyond its bound.
func (r *rotator) run(ctx context.Context, begun func() map[ID]bool) {
	if r.punch == nil || r.keepBytes <= 0 {
		return
	}
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		r.round(begun(), packBytes*int64(runtime.NumCPU()))
	}
}

// round looks at the copies that have begun, and for the last time at those that
// have ended since.
func (r *rotator) round(begun map[ID]bool, budgetBytes int64) {
	r.mu.Lock()
	for id := range begun {
		r.copies[id] = true
	}
	ids := make([]ID, 0, len(r.copies))
	for id := range r.copies {
		ids = append(ids, id)
		if !begun[id] {
			delete(r.copies, id)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(ids, compareIDs)
	if r.first++; r.first >= len(ids) {
		r.first = 0
	}
	for _, id := range slices.Concat(ids[r.first:], ids[:r.first]) {
		for _, stream := range streamFiles {
			if err := r.rotate(id, stream, &budgetBytes); err != nil && !errors.Is(err, fs.ErrNotExist) {
				r.warn(err)
			}
			if !begun[id] {
				delete(r.lengths, filepath.Join(r.store.TaskDir(id), stream))
			}
		}
	}
}

// rotate brings one stream within its bounds. Most of the time there is nothing to do,
// and that costs a look at the file.
func (r *rotator) rotate(id ID, stream string, budgetBytes *int64) error {
	dir := r.store.TaskDir(id)
	path := filepath.Join(dir, stream)
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return nil
	}
	was, seen := r.lengths[path]
	r.lengths[path] = info.Size()
	if !seen {
		if err := dropTorn(dir, stream); err != nil {
			return err
		}
	}
	if cut := seen && info.Size() < was; seen && !cut && st.Blocks*512 < 2*r.pieceBytes() {
		return nil
	}
	f, err := beneath.Open(dir, stream, os.O_RDWR, 0)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		// Only the owner of a file can have a lease on it: a task with the borglet's own ids.
		r.hoarded(Hoarded{ID: id, Why: "it has a lease on its output, which then cannot be kept within its bound"})
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if held := st.Blocks * 512; held > r.keepBytes {
		r.judge(id, held, dataBytes(f, info.Size()))
	}
	pieces, err := piecesOf(dir, stream)
	if err != nil {
		return err
	}
	if pieces, err = dropCut(dir, pieces, info.Size()); err != nil {
		return err
	}
	if pieces, err = r.takeOut(dir, stream, f, info.Size(), pieces, budgetBytes); err != nil {
		return err
	}
	if err := r.cutBack(f, path, pieces); err != nil {
		return err
	}
	return r.dropOldest(dir, pieces)
}

// takeOut makes pieces of the oldest part of a file until it is short enough, or the
// budget is spent.
func (r *rotator) takeOut(dir, stream string, f *os.File, size int64, pieces []logPiece, budgetBytes *int64) ([]logPiece, error) {
	start := int64(0)
	if len(pieces) > 0 {
		// A borglet before this one was killed before it had given this back.
		start = pieces[len(pieces)-1].to
		if at, err := dataFrom(f, 0); err == nil && at < start {
			if err := r.punch(f, start); err != nil {
				return pieces, err
			}
		}
	}
	start, err := dataFrom(f, start)
	if err != nil {
		return pieces, err
	}
	piece := r.pieceBytes()
	if size-start > filePieces*piece {
		start = (size - filePieces*piece + pieceAlign) / pieceAlign * pieceAlign
		err := r.punch(f, start)
		if errors.Is(err, errors.ErrUnsupported) {
			return pieces, r.cut(f, size)
		}
		if err != nil {
			return pieces, err
		}
	}
	for size-start >= 2*piece && *budgetBytes > 0 {
		p := newPiece(stream, start, (start+piece)/pieceAlign*pieceAlign)
		err := pack(r.gz, dir, p, f, func(made, as string) error {
			// A copy that is forgotten now takes its output elsewhere, the piece too.
			r.store.kept.mu.Lock()
			defer r.store.kept.mu.Unlock()
			if err := os.Rename(made, as); err != nil {
				return err
			}
			if err := SyncDir(dir); err != nil {
				return err
			}
			return r.punch(f, p.to)
		})
		if errors.Is(err, errors.ErrUnsupported) {
			// It lies in the file still, for good.
			return pieces, errors.Join(os.Remove(filepath.Join(dir, p.name)), r.cut(f, size))
		}
		if err != nil {
			return pieces, err
		}
		pieces, start = append(pieces, p), p.to
		*budgetBytes -= p.to - p.from
	}
	return pieces, nil
}

// cut is what is done on a file system that cannot make holes: the file is emptied
// when it is as long as may be. What was in it is lost, and offsets begin anew.
func (r *rotator) cut(f *os.File, size int64) error {
	if size < r.keepBytes {
		return nil
	}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("empty a log: %w", err)
	}
	return nil
}

// dropOldest keeps of the pieces what there is room for beside the file.
func (r *rotator) dropOldest(dir string, pieces []logPiece) error {
	room, first := r.keepBytes-filePieces*r.pieceBytes(), len(pieces)
	for first > 0 && len(pieces)-first < maxPieces {
		info, err := os.Lstat(filepath.Join(dir, pieces[first-1].name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look at a piece of a log: %w", err)
		}
		if err == nil {
			room -= info.Size()
		}
		if room < 0 {
			break
		}
		first--
	}
	return removePieces(dir, pieces[:first])
}

// dropCut throws away pieces of a stream that its task has cut since: what it wrote then
// begins at its start.
func dropCut(dir string, pieces []logPiece, size int64) ([]logPiece, error) {
	if len(pieces) == 0 || pieces[len(pieces)-1].to <= size {
		return pieces, nil
	}
	return nil, removePieces(dir, pieces)
}

func removePieces(dir string, pieces []logPiece) error {
	for _, p := range pieces {
		if err := os.Remove(filepath.Join(dir, p.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a piece of a log: %w", err)
		}
	}
	return nil
}

// dropTorn throws away what a borglet before this one did not bring to an end.
func dropTorn(dir, stream string) error {
	names, err := fileNames(dir)
	for _, name := range names {
		if filepath.Ext(name) != pieceSuffix {
			continue
		}
		if of, _, ok := parsePiece(name[:len(name)-len(pieceSuffix)]); ok && of == stream {
			err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
		}
	}
	return err
}
