package checkpoint

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/encoding/protojson"

	"borg/proto/borgpb"
)

// DiskFormat is the newest format of a replica's directory that this build
// writes and reads.
const DiskFormat = 1

const (
	identityFile     = "replica.json"
	maxIdentityBytes = 1 << 20
)

// ErrNotInitialised is returned for a directory without replica.json.
var ErrNotInitialised = errors.New("the directory belongs to no replica yet")

// WrongDirectoryError says that a directory belongs to somebody else.
type WrongDirectoryError struct {
	Dir string
	// What differs: "cell", "cell id", "replica".
	What        string
	Found, Want string
}

func (e *WrongDirectoryError) Error() string {
	return fmt.Sprintf("directory %s belongs to %s %s, not to %s; give the right --dir, or an empty one to `borgmaster init`", e.Dir, e.What, e.Found, e.Want)
}

// LostDatabaseError says that a directory has an owner and no database: what the
// replica had promised to the others is lost.
type LostDatabaseError struct{ Dir string }

func (e *LostDatabaseError) Error() string {
	return fmt.Sprintf("%s holds no database although %s names its owner: what this replica had promised to the others is lost; remove it from the cell and join with a new number", e.Dir, identityFile)
}

// ReadIdentity reads whose directory dir is, before anything else in it is
// opened. A nil fs is the real disk.
func ReadIdentity(fs vfs.FS, dir string) (*borgpb.ReplicaIdentity, error) {
	fs = orDisk(fs)
	path := fs.PathJoin(dir, identityFile)
	f, err := fs.Open(path)
	if isNotExist(err) {
		return nil, fmt.Errorf("%s: %w (no %s); run `borgmaster init` for it", dir, ErrNotInitialised, identityFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read whose directory %s is: %w", dir, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxIdentityBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	id := new(borgpb.ReplicaIdentity)
	// A newer build may know more of it; the format decides, not the field.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, id); err != nil {
		return nil, fmt.Errorf("read %s: %w; nothing in %s was changed", path, err, dir)
	}
	if id.GetDiskFormat() > DiskFormat {
		return nil, fmt.Errorf("%s: %w", dir, &NewerFormatError{What: "replica directory", Found: id.GetDiskFormat(), Known: DiskFormat})
	}
	if id.GetReplica() == 0 || id.GetCellId() == "" || id.GetDiskFormat() == 0 {
		return nil, fmt.Errorf("read %s: replica, cellId and diskFormat must be set; nothing in %s was changed", path, dir)
	}
	return id, nil
}

// CheckIdentity says whether found, read from dir, is what want asks for. What
// is zero in want is not compared.
func CheckIdentity(dir string, found, want *borgpb.ReplicaIdentity) error {
	wrong := func(what, found, want string) error {
		return &WrongDirectoryError{Dir: dir, What: what, Found: found, Want: want}
	}
	if w := want.GetCellName(); w != "" && w != found.GetCellName() {
		return wrong("cell", found.GetCellName(), w)
	}
	if w := want.GetCellId(); w != "" && w != found.GetCellId() {
		return wrong("cell id", found.GetCellId(), w)
	}
	if w := want.GetReplica(); w != 0 && w != found.GetReplica() {
		return wrong("replica", fmt.Sprint(found.GetReplica()), fmt.Sprint(w))
	}
	return nil
}

// writeIdentity writes replica.json, synced, by renaming a finished file.
func writeIdentity(fs vfs.FS, dir string, id *borgpb.ReplicaIdentity) error {
	data, err := protojson.MarshalOptions{Multiline: true, Indent: "  "}.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode %s: %w", identityFile, err)
	}
	path := fs.PathJoin(dir, identityFile)
	f, err := fs.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if _, err = f.Write(append(data, '\n')); err == nil {
		err = f.Sync()
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = fs.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDir(fs, dir)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if err2 := d.Close(); err == nil {
		err = err2
	}
	return err
}

func orDisk(fs vfs.FS) vfs.FS {
	if fs == nil {
		return vfs.Default
	}
	return fs
}
