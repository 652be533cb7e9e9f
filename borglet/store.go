package borglet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"

	"borg/borglet/beneath"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Store is the borglet's directory:
//
//	fence.json                      whom it obeys
//	tasks/<copy>/spec.json          what the master wants, a Desired
//	tasks/<copy>/intent             what the borglet is about to do, and did
//	tasks/<copy>/task/              the task's own directory
//	tasks/<copy>/...                files of the runtime
//	networks/                       those of tasks' own, see borglet/network
//	allocs/<alloc>/                 shared by the tasks of an alloc
//	volumes/<volume>/               what outlives its tasks, see volumeStore
//	kept/<copy>/                    what forgotten copies wrote, bounded
//	trash/                          forgotten copies on their way out
//	reserve                         room for stops and ends on a full disk
//
// Every file is replaced whole and synced. Its methods may be called from
// several goroutines, for different copies at once.
type Store struct {
	dir     string
	kept    *keptOutput
	volumes *volumeStore
	reserve *reserve
	// unlimit hears of a directory with a limit of its own before it is removed. Set
	// before first use; nil: nobody does.
	unlimit func(dir string)

	mu sync.Mutex
	// saved is which spec and labels are on disk, per copy. Guarded by mu.
	saved map[ID]savedSpec
	// trashed counts names in trash. Guarded by mu.
	trashed int
}

// savedSpec tells what is in a copy's spec.json from what was there before.
type savedSpec struct{ version, labelMark uint64 }

// intentFormat is the first field of intent; a reader refuses a higher one.
const intentFormat = 1

// intentFile is a Record without its Desired, as JSON.
type intentFile struct {
	Format        int        `json:"format"`
	Boot          string     `json:"boot,omitempty"`
	Run           uint32     `json:"run"`
	RunEnded      bool       `json:"run_ended,omitempty"`
	RunVersion    uint64     `json:"run_version,omitempty"`
	Clear         bool       `json:"clear,omitempty"`
	Restarts      uint32     `json:"restarts,omitempty"`
	Failures      uint32     `json:"failures,omitempty"`
	StartedWallNs int64      `json:"started_wall_ns,omitempty"`
	Passed        bool       `json:"passed,omitempty"`
	Ready         bool       `json:"ready,omitempty"`
	Quarantined   bool       `json:"quarantined,omitempty"`
	Stop          *StopOrder `json:"stop,omitempty"`
	Ended         string     `json:"ended,omitempty"`
	Exit          *ExitFile  `json:"exit,omitempty"`
	Text          string     `json:"text,omitempty"`
	ShimLost      bool       `json:"shim_lost,omitempty"`
	HeldPorts     []HeldPort `json:"held_ports,omitempty"`
}

// OpenStore opens or makes a borglet's directory.
func OpenStore(dir string) (*Store, error) {
	for _, sub := range []string{"tasks", "allocs", "trash"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o711); err != nil {
			return nil, fmt.Errorf("open borglet directory: %w", err)
		}
	}
	kept, err := openKept(filepath.Join(dir, "kept"))
	if err != nil {
		return nil, err
	}
	volumes, err := openVolumes(filepath.Join(dir, "volumes"), filepath.Join(dir, "trash"))
	if err != nil {
		return nil, err
	}
	room, err := openReserve(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, kept: kept, volumes: volumes, reserve: room, saved: map[ID]savedSpec{}}
	left, err := os.ReadDir(filepath.Join(dir, "trash"))
	if err != nil {
		return nil, fmt.Errorf("open borglet directory: %w", err)
	}
	for _, e := range left {
		if err := beneath.RemoveAll(filepath.Join(dir, "trash", e.Name())); err != nil {
			return nil, fmt.Errorf("remove what a forgotten copy left: %w", err)
		}
	}
	return s, nil
}

// TaskDir is the directory of a copy.
func (s *Store) TaskDir(id ID) string { return filepath.Join(s.dir, "tasks", id.String()) }

// AllocDir is the directory shared by the tasks of an alloc.
func (s *Store) AllocDir(alloc string) string {
	return filepath.Join(s.dir, "allocs", AllocName(alloc))
}

// SaveFence writes the fence, synced; also on a full disk.
func (s *Store) SaveFence(f Fence) error {
	return s.reserve.spend(func() error { return f.Save(s.dir) })
}

// Save writes a record, synced. That a copy is to stop, or has ended, is written
// on a full disk too.
func (s *Store) Save(r Record) error {
	if r.Stop == nil && r.Ended == 0 {
		return s.save(r)
	}
	return s.reserve.spend(func() error { return s.save(r) })
}

func (s *Store) save(r Record) error {
	dir := s.TaskDir(r.ID)
	if err := s.make(r, dir); err != nil {
		return err
	}
	s.mu.Lock()
	saved, known := s.saved[r.ID]
	s.mu.Unlock()
	if now := (savedSpec{r.Desired.GetVersion(), r.Desired.GetLabelMark()}); r.Desired != nil && (!known || saved != now) {
		text, err := protojson.MarshalOptions{Multiline: true}.Marshal(r.Desired)
		if err != nil {
			return fmt.Errorf("encode spec of copy %s: %w", r.ID, err)
		}
		if err := WriteSynced(filepath.Join(dir, "spec.json"), text); err != nil {
			return err
		}
		s.mu.Lock()
		s.saved[r.ID] = now
		s.mu.Unlock()
	}
	text, err := json.Marshal(intentFile{
		Format: intentFormat, Boot: r.Boot, Run: r.Run, RunEnded: r.RunEnded, RunVersion: r.RunVersion, Clear: r.Clear,
		Restarts: r.Restarts, Failures: r.Failures, StartedWallNs: r.StartedWallNs, Passed: r.Passed, Ready: r.Ready, Quarantined: r.Quarantined, Stop: r.Stop,
		Ended: endedName(r.Ended), Exit: ExitToFile(r.Run, r.Exit), Text: r.Text, ShimLost: r.ShimLost, HeldPorts: r.HeldPorts,
	})
	if err != nil {
		return fmt.Errorf("encode intent of copy %s: %w", r.ID, err)
	}
	return WriteSynced(filepath.Join(dir, "intent"), text)
}

// make creates the directories of a copy. The task's own is a place of its own
// inside, so that it cannot touch the files that tell how it ended. Others of the
// machine have no way in: a program with a set-user-id bit that the task leaves
// there would run as the machine's root.
func (s *Store) make(r Record, dir string) error {
	err := os.MkdirAll(dir, 0o711)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, taskSubdir), 0o700)
	}
	if err != nil {
		return fmt.Errorf("make directory of copy %s: %w", r.ID, err)
	}
	if alloc := r.Desired.GetAlloc(); alloc != "" {
		if err := os.MkdirAll(s.AllocDir(alloc), 0o700); err != nil {
			return fmt.Errorf("make directory of alloc %s: %w", alloc, err)
		}
	}
	return nil
}

// errNewer: what is there is a newer borglet's business.
var errNewer = errors.New("the directory was written by a newer borglet; start that one")

// Load reads all records, in the order of their copies. What cannot be read is
// said in bad, and is in the way of no other, unless a newer borglet wrote it:
// an older one might do harm.
func (s *Store) Load() (records []Record, bad []error, err error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "tasks"))
	if err != nil {
		return nil, nil, fmt.Errorf("read borglet directory: %w", err)
	}
	for _, e := range entries {
		id, err := ParseID(e.Name())
		if err != nil {
			bad = append(bad, fmt.Errorf("directory in tasks: %w", err))
			continue
		}
		r, err := s.load(id)
		if errors.Is(err, errNewer) {
			return nil, nil, err
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b Record) int { return compareIDs(a.ID, b.ID) })
	return records, bad, nil
}

func (s *Store) load(id ID) (Record, error) {
	dir := s.TaskDir(id)
	r := Record{ID: id}
	text, err := beneath.ReadFile(dir, "spec.json")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// A copy that was stopped before it was ever wanted here has none.
	case err != nil:
		return Record{}, fmt.Errorf("read copy %s: %w", id, err)
	default:
		r.Desired = &borgrpc.Desired{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, r.Desired); err != nil {
			return Record{}, fmt.Errorf("read spec.json of copy %s: %w", id, err)
		}
		s.saved[id] = savedSpec{r.Desired.GetVersion(), r.Desired.GetLabelMark()}
	}
	text, err = beneath.ReadFile(dir, "intent")
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return Record{}, fmt.Errorf("read copy %s: %w", id, err)
	}
	var f intentFile
	if err := json.Unmarshal(text, &f); err != nil {
		return Record{}, fmt.Errorf("read intent of copy %s: %w", id, err)
	}
	if f.Format > intentFormat {
		return Record{}, fmt.Errorf("intent of copy %s has format %d and this borglet knows up to %d: %w", id, f.Format, intentFormat, errNewer)
	}
	r.Boot, r.Run, r.RunEnded, r.RunVersion, r.Clear = f.Boot, f.Run, f.RunEnded, f.RunVersion, f.Clear
	r.Restarts, r.Failures, r.StartedWallNs, r.Stop = f.Restarts, f.Failures, f.StartedWallNs, f.Stop
	r.Passed, r.Ready, r.Quarantined, r.Ended = f.Passed, f.Ready, f.Quarantined, endedState(f.Ended)
	r.Exit = f.Exit.Exit()
	r.Text, r.ShimLost, r.HeldPorts = f.Text, f.ShimLost, f.HeldPorts
	return r, nil
}

// Remove takes a forgotten copy's directory away, after what it wrote. It goes
// from its place in one step, so that half of it is never taken for a copy.
func (s *Store) Remove(id ID) error {
	return errors.Join(s.kept.take(id, s.TaskDir(id)), s.remove(id))
}

func (s *Store) remove(id ID) error {
	s.mu.Lock()
	delete(s.saved, id)
	s.mu.Unlock()
	s.lift(filepath.Join(s.TaskDir(id), taskSubdir))
	if err := s.discard(s.TaskDir(id)); err != nil {
		return fmt.Errorf("remove directory of copy %s: %w", id, err)
	}
	return nil
}

// Clear empties what a task may write to of its own: what it leaves is a place as
// it was before its first run.
func (s *Store) Clear(id ID) error {
	for _, sub := range []string{taskSubdir, UpperSubdir} {
		if err := beneath.Clear(filepath.Join(s.TaskDir(id), sub)); err != nil {
			return fmt.Errorf("empty the directory of copy %s: %w", id, err)
		}
	}
	return nil
}

// lift says that a directory is about to be removed.
func (s *Store) lift(dir string) {
	if s.unlimit != nil {
		s.unlimit(dir)
	}
}

// discard removes a directory by way of the trash; one that is not there is
// removed.
func (s *Store) discard(dir string) error {
	s.mu.Lock()
	s.trashed++
	trash := filepath.Join(s.dir, "trash", fmt.Sprintf("%s.%d", filepath.Base(dir), s.trashed))
	s.mu.Unlock()
	err := os.Rename(dir, trash)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return beneath.RemoveAll(trash)
}

const endedPrefix = "ATTEMPT_STATE_"

func endedName(s borgpb.AttemptState) string {
	if s == 0 {
		return ""
	}
	return strings.TrimPrefix(s.String(), endedPrefix)
}

func endedState(name string) borgpb.AttemptState {
	if name == "" {
		return 0
	}
	if s := borgpb.AttemptState(borgpb.AttemptState_value[endedPrefix+name]); s != 0 {
		return s
	}
	// A word of a newer borglet: ended, and more is not known.
	return borgpb.AttemptState_ATTEMPT_STATE_LOST
}

// WriteSynced replaces the file at path as a whole: after a crash at any
// moment either the old or the new contents are there.
func WriteSynced(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// SyncDir keeps what was made or removed in a directory.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
