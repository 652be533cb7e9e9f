package replica

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"borg/borgmaster"
	"borg/checkpoint"
	"borg/proto/borgrpc"
	"borg/tell/hostpath"
)

// Kept implements borgmaster.Past.
func (r *Replica) Kept() (*borgrpc.ListCheckpointsResponse, error) {
	resp := &borgrpc.ListCheckpointsResponse{Replica: r.identity.GetReplica()}
	if r.archive == nil {
		resp.Off = true
		return resp, nil
	}
	a, err := r.openArchive()
	if err != nil {
		return nil, err
	}
	for _, k := range a.Checkpoints() {
		resp.Checkpoints = append(resp.Checkpoints, &borgrpc.KeptCheckpoint{
			Epoch: k.Header.GetEpoch(), Index: k.Header.GetIndex(), WallTimeNs: k.Header.GetWallTimeNs(), Bytes: uint64(k.Bytes),
		})
	}
	r.archive.mu.Lock()
	last := r.archive.last
	if err := r.archive.failing; err != nil {
		resp.Failing = hostpath.Text(err)
	}
	r.archive.mu.Unlock()
	for _, s := range a.Stretches(last) {
		resp.Logs = append(resp.Logs, &borgrpc.KeptLog{Epoch: s.Epoch, FirstIndex: s.First, LastIndex: s.Last, Bytes: uint64(s.Bytes), Gap: s.Gap})
	}
	return resp, nil
}

// openArchive opens the archive to read it; one that is not there yet is empty.
func (r *Replica) openArchive() (*checkpoint.Archive, error) {
	a, err := checkpoint.OpenArchive(r.archive.cfg.FS, r.archive.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return new(checkpoint.Archive), nil
	}
	return a, err
}

// OpenKept implements borgmaster.Past.
func (r *Replica) OpenKept(index uint64, wallNs int64) (io.ReadCloser, uint64, int64, error) {
	if r.archive == nil {
		return nil, 0, 0, fmt.Errorf("%w: replica %d keeps no past; it was started with --no-archive", borgmaster.ErrNotKept, r.identity.GetReplica())
	}
	a, err := r.openArchive()
	if err != nil {
		return nil, 0, 0, err
	}
	kept := a.Checkpoints()
	for _, k := range slices.Backward(kept) {
		if index != 0 && k.Header.GetIndex() > index || wallNs != 0 && k.Header.GetWallTimeNs() > wallNs {
			continue
		}
		f, err := a.OpenCheckpoint(k)
		return f, k.Header.GetIndex(), k.Bytes, err
	}
	if len(kept) == 0 {
		return nil, 0, 0, fmt.Errorf("%w: replica %d has kept no checkpoint yet", borgmaster.ErrNotKept, r.identity.GetReplica())
	}
	h := kept[0].Header
	return nil, 0, 0, fmt.Errorf("%w: the oldest checkpoint that replica %d has kept is of index %d, %s; another one may have an older one", borgmaster.ErrNotKept,
		r.identity.GetReplica(), h.GetIndex(), time.Unix(0, h.GetWallTimeNs()).UTC().Format(time.RFC3339))
}
