package checkpoint

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// DamagedError says that a database does not hold any more what was written and
// synced: the replica has told others what is not there. It must not go on as if the
// log had ended before.
type DamagedError struct {
	// Directory of the replica, and the file; empty: it is not known which.
	Dir, File string
	// Where the damage begins, and up to where the file was synced later than that;
	// both 0: not known.
	At, SyncedTo int64
	// What the database says, if it is it that found it.
	Err error
}

func (e *DamagedError) Error() string {
	const next = "it is not cut off, because others may rely on it; put another replica in the place of this one"
	if e.Err != nil {
		return fmt.Sprintf("the database %s is damaged: %v; %s", e.File, e.Err, next)
	}
	return fmt.Sprintf("the write-ahead log %s is damaged at byte %d, and was synced up to byte %d: what is missing was acknowledged; %s", e.File, e.At, e.SyncedTo, next)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// orDamaged makes a corruption that the database reports a DamagedError.
func orDamaged(replicaDir, dir string, err error) error {
	if err == nil || !pebble.IsCorruptionError(err) {
		return err
	}
	return &DamagedError{Dir: replicaDir, File: dir, Err: err}
}

// The write-ahead log is blocks of chunks that do not straddle them. A chunk begins
// with a checksum of all that follows in it, the length of its data, its type, the
// number of its file, and up to where the file was synced when it was written.
const (
	walBlockBytes     = 32 << 10
	walHeaderBytes    = 19
	walFirst, walLast = 9, 12
	// Added to the turned checksum, so that data that holds checksums has others.
	walMask = 0xa282ead8
)

var walTable = crc32.MakeTable(crc32.Castagnoli)

// checkWALs tells a torn tail from damage. The database cuts a log where it becomes
// unreadable, unless a chunk of a later block says that the file was synced beyond:
// it does not look at the rest of the same block. So a few flipped bits near the end
// would cut off what was acknowledged.
func checkWALs(fs vfs.FS, replicaDir, dir string) error {
	names, err := fs.List(dir)
	if isNotExist(err) {
		// It is made.
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	slices.Sort(names)
	for _, name := range names {
		number, ok := strings.CutSuffix(name, ".log")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			continue
		}
		path := fs.PathJoin(dir, name)
		data, err := readAll(fs, path)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if at, synced := walDamage(data, uint32(n)); synced > 0 {
			return &DamagedError{Dir: replicaDir, File: path, At: at, SyncedTo: synced}
		}
	}
	return nil
}

func readAll(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	return data, closeWith(f, err)
}

// walDamage returns where a log becomes unreadable, and up to where chunks after that
// say that it was synced; zero: none says that it was synced beyond.
func walDamage(data []byte, number uint32) (at, synced int64) {
	for at < int64(len(data)) {
		left := walBlockBytes - at%walBlockBytes
		if left < walHeaderBytes {
			at += left
			continue
		}
		n, _, ok := walChunk(data, at, number)
		if !ok {
			break
		}
		at += n
	}
	for i := at + 1; i+walHeaderBytes <= int64(len(data)); i++ {
		// The quick tests come first in walChunk.
		if _, to, ok := walChunk(data, i, number); ok && to > at {
			synced = max(synced, to)
		}
	}
	return at, synced
}

// walChunk reads the chunk at an offset: its length, and up to where the file was
// synced when it was written.
func walChunk(data []byte, at int64, number uint32) (bytes, synced int64, ok bool) {
	if at+walHeaderBytes > int64(len(data)) || at%walBlockBytes+walHeaderBytes > walBlockBytes {
		return 0, 0, false
	}
	h := data[at : at+walHeaderBytes]
	if h[6] < walFirst || h[6] > walLast || binary.LittleEndian.Uint32(h[7:]) != number {
		return 0, 0, false
	}
	bytes = walHeaderBytes + int64(binary.LittleEndian.Uint16(h[4:]))
	if at%walBlockBytes+bytes > walBlockBytes || at+bytes > int64(len(data)) {
		return 0, 0, false
	}
	c := crc32.Checksum(data[at+6:at+bytes], walTable)
	if (c>>15|c<<17)+walMask != binary.LittleEndian.Uint32(h) {
		return 0, 0, false
	}
	return bytes, int64(binary.LittleEndian.Uint64(h[11:])), true
}
