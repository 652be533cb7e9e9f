package borglet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"borg/borglet/beneath"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// VolumeID names a volume on a machine: whose it is, and its name.
type VolumeID struct {
	User, Job string
	Index     uint32
	Name      string
}

// String is the name of its directory. None of its parts has a dot.
func (v VolumeID) String() string {
	return v.User + "." + v.Job + "." + strconv.FormatUint(uint64(v.Index), 10) + "." + v.Name
}

// parseVolumeID reads what String writes.
func parseVolumeID(text string) (VolumeID, bool) {
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return VolumeID{}, false
	}
	index, err := strconv.ParseUint(parts[2], 10, 32)
	v := VolumeID{parts[0], parts[1], uint32(index), parts[3]}
	return v, err == nil && v.valid() && v.String() == text
}

// words are how people write it.
func (v VolumeID) words() string { return fmt.Sprintf("%s/%s/%d/%s", v.User, v.Job, v.Index, v.Name) }

// valid: it becomes part of paths, so nothing but names is let in.
func (v VolumeID) valid() bool { return isUID(v.User) && isUID(v.Job) && isUID(v.Name) }

// Compare orders volumes by the names of their directories.
func (v VolumeID) Compare(o VolumeID) int { return strings.Compare(v.String(), o.String()) }

func volumeIDOf(n *borgpb.VolumeName) VolumeID {
	return VolumeID{n.GetUser(), n.GetJob(), n.GetIndex(), n.GetVolume()}
}

func (v VolumeID) wire() *borgpb.VolumeName {
	return &borgpb.VolumeName{User: v.User, Job: v.Job, Index: v.Index, Volume: v.Name}
}

// TaskVolume is a volume as one task sees it.
type TaskVolume struct {
	ID   VolumeID
	Path string
	// What may be kept in it; zero: not said.
	DiskBytes int64
}

// VolumesOf are those that a copy works in: of its alloc, or its own.
func VolumesOf(d *borgrpc.Desired) (all []TaskVolume) {
	named := d.GetSpec().GetVolumes()
	if len(named) == 0 {
		return nil
	}
	of := VolumeID{User: d.GetUser(), Job: d.GetJob(), Index: d.GetCopy().GetIndex()}
	if parts := strings.Split(d.GetAlloc(), "/"); len(parts) == 3 {
		index, _ := strconv.ParseUint(parts[2], 10, 32)
		of = VolumeID{User: parts[0], Job: parts[1], Index: uint32(index)}
	}
	for _, v := range named {
		of.Name = v.GetName()
		one := TaskVolume{ID: of, Path: v.GetPath(), DiskBytes: v.GetDiskBytes()}
		for _, a := range d.GetAllocVolumes() {
			if a.GetName() == v.GetName() {
				one.DiskBytes = a.GetDiskBytes()
			}
		}
		all = append(all, one)
	}
	return all
}

// worksIn are the volumes of copies that have not ended.
func (c *Core) worksIn() map[VolumeID]bool {
	used := map[VolumeID]bool{}
	for _, t := range c.copies {
		if t.phase == ended {
			continue
		}
		for _, v := range VolumesOf(t.Desired) {
			used[v.ID] = true
		}
	}
	return used
}

// Volumes is what a machine remembers of those on its disk, by the disk that each may
// take.
type Volumes map[VolumeID]int64

// Open has those there in which a copy is about to work.
func (v Volumes) Open(d *borgrpc.Desired) {
	for _, one := range VolumesOf(d) {
		v[one.ID] = one.DiskBytes
	}
}

// Obey takes in what a poll says of volumes, and answers it. drop removes one; what it
// fails with is tried again with the next poll. Nothing is removed that a copy of the
// core works in, or that the poll does not name.
func (v Volumes) Obey(core *Core, req *borgrpc.PollRequest, resp *borgrpc.PollResponse, drop func(VolumeID) error) {
	named := make(map[VolumeID]bool, len(req.GetKeepVolumes())+len(req.GetDeleteVolumes()))
	for _, n := range req.GetKeepVolumes() {
		named[volumeIDOf(n)] = true
	}
	var used map[VolumeID]bool
	for _, n := range req.GetDeleteVolumes() {
		id := volumeIDOf(n)
		named[id] = true
		if _, here := v[id]; here {
			if used == nil {
				used = core.worksIn()
			}
			if used[id] || drop(id) != nil {
				continue
			}
			delete(v, id)
		}
		resp.VolumesGone = append(resp.VolumesGone, n)
	}
	for id, bytes := range v {
		if !named[id] {
			resp.VolumesFound = append(resp.VolumesFound, &borgpb.FoundVolume{Name: id.wire(), DiskBytes: bytes})
		}
	}
	slices.SortFunc(resp.VolumesFound, func(a, b *borgpb.FoundVolume) int { return volumeIDOf(a.Name).Compare(volumeIDOf(b.Name)) })
}

// volumeStore is the directory of volumes:
//
//	volumes/<user>.<job>.<index>.<name>/volume.json  what may be kept in it
//	volumes/<user>.<job>.<index>.<name>/data/        what tasks see
type volumeStore struct {
	dir string
	// trash takes what is on its way out.
	trash string
	// unlimit is that of Store.
	unlimit func(dir string)

	mu sync.Mutex
	// here are those on disk. Guarded by mu.
	here Volumes
	// dropped counts names in trash. Guarded by mu.
	dropped int
	// removing is the queue of volumes in trash, whose first is being removed. What a borglet
	// leaves there when it ends, the next one removes. Guarded by mu.
	removing []removal
}

// removal is a volume that has left its place and takes disk until it is removed.
type removal struct {
	id   VolumeID
	path string
}

// volumeFile is volume.json.
type volumeFile struct {
	DiskBytes int64 `json:"disk_bytes"`
}

// openVolumes reads which volumes are there. What is no volume is left alone.
func openVolumes(dir, trash string) (*volumeStore, error) {
	s := &volumeStore{dir: dir, trash: trash, here: Volumes{}}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	for _, e := range entries {
		id, ok := parseVolumeID(e.Name())
		if !ok || !e.IsDir() {
			continue
		}
		var f volumeFile
		text, err := beneath.ReadFile(filepath.Join(dir, e.Name()), "volume.json")
		if err == nil {
			err = json.Unmarshal(text, &f)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open volume %s: %w", e.Name(), err)
		}
		s.here[id] = f.DiskBytes
	}
	return s, nil
}

// path is what tasks see of a volume.
func (s *volumeStore) path(id VolumeID) string { return filepath.Join(s.dir, id.String(), "data") }

// before makes what a copy works in and is not there yet.
func (s *volumeStore) before(d *borgrpc.Desired) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range VolumesOf(d) {
		if !v.ID.valid() {
			return fmt.Errorf("volume %q: it is not the name of one", v.ID.String())
		}
		was, here := s.here[v.ID]
		if here && was == v.DiskBytes {
			continue
		}
		dir := filepath.Join(s.dir, v.ID.String())
		text, err := json.Marshal(volumeFile{v.DiskBytes})
		if err == nil {
			err = os.MkdirAll(dir, 0o711)
		}
		if err == nil {
			// Others of the machine have no way in, as in the directory of a task.
			err = os.MkdirAll(filepath.Join(dir, "data"), 0o700)
		}
		if err == nil {
			err = WriteSynced(filepath.Join(dir, "volume.json"), text)
		}
		if err == nil {
			err = SyncDir(s.dir)
		}
		if err != nil {
			return fmt.Errorf("make volume %s: %w", v.ID, err)
		}
		s.here[v.ID] = v.DiskBytes
	}
	return nil
}

// obey is Volumes.Obey on the disk. A volume leaves its place in one step; what was in
// it is removed afterwards, which may take long.
func (s *volumeStore) obey(core *Core, req *borgrpc.PollRequest, resp *borgrpc.PollResponse, failed func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.here.Obey(core, req, resp, func(id VolumeID) error {
		if s.unlimit != nil {
			s.unlimit(s.path(id))
		}
		s.dropped++
		to := filepath.Join(s.trash, fmt.Sprintf("volume.%s.%d", id, s.dropped))
		err := os.Rename(filepath.Join(s.dir, id.String()), to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed(fmt.Errorf("delete volume %s: %w", id, err))
			return err
		}
		if s.removing = append(s.removing, removal{id, to}); len(s.removing) == 1 {
			go s.remove(failed)
		}
		return nil
	})
}

// remove empties the queue of removals. One at a time: a master may delete thousands at once, and
// each would take a thread.
func (s *volumeStore) remove(failed func(error)) {
	for {
		s.mu.Lock()
		next := s.removing[0]
		s.mu.Unlock()
		if err := beneath.RemoveAll(next.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed(fmt.Errorf("delete volume %s: %w", next.id, err))
		}
		s.mu.Lock()
		s.removing = s.removing[1:]
		done := len(s.removing) == 0
		s.mu.Unlock()
		if done {
			return
		}
	}
}

// all are the volumes on disk.
func (s *volumeStore) all() (ids []VolumeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.here {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, VolumeID.Compare)
	return ids
}

// limits are what may be kept in each; zero: not said.
func (s *volumeStore) limits() Volumes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.here)
}
