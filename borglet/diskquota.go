package borglet

import (
	"errors"
	"path/filepath"
	"sync"
)

// DiskQuotas have the file system itself refuse what is written beyond the limit of a
// directory. Its methods may be called from several goroutines.
type DiskQuotas interface {
	// Limit takes the place of the limit that the directory had; zero: none. What was
	// written before it had one may be a reason that it cannot have any.
	Limit(dir string, bytes int64) error
	// Used is what counts against the limit of a directory; ok is false of one that
	// never had one.
	Used(dir string) (bytes int64, ok bool)
	// Drop is for a directory that is to have no limit and not to be counted any more.
	Drop(dir string) error
}

// unlimited are directories of which it was told that their limits are measured only.
type unlimited struct{ told sync.Map }

// first: it was not told of this one.
func (u *unlimited) first(dir string) bool {
	_, told := u.told.LoadOrStore(dir, true)
	return !told
}

func (u *unlimited) forget(dir string) { u.told.Delete(dir) }

// limitDisk has the file system hold a copy to its disk limits, where it can. Where it
// cannot the copy runs all the same: what it keeps is measured. Nor does it for a copy
// with the machine's user ids, which could take files out of what is counted; an alloc and
// volumes in which such a one works are measured besides, as all are.
func (a *Agent) limitDisk(r Record) {
	q, spec := a.cfg.DiskQuotas, r.Desired.GetSpec()
	if q == nil {
		return
	}
	limit := func(dir string, bytes int64) {
		if err := q.Limit(dir, bytes); err != nil && a.unlimited.first(dir) {
			a.cfg.Log.Warn("what is written beyond a disk limit is measured and not refused", "machine", a.cfg.Name, "task", a.taskName(r), "err", err)
		}
	}
	if dir := filepath.Join(a.store.TaskDir(r.ID), taskSubdir); spec.GetRelax().GetUserIds() {
		a.unlimitDisk(dir)
	} else {
		limit(dir, spec.GetResources().GetDiskBytes())
	}
	if alloc := r.Desired.GetAlloc(); alloc != "" {
		limit(a.store.AllocDir(alloc), r.Desired.GetAllocResources().GetDiskBytes())
	}
	for _, v := range VolumesOf(r.Desired) {
		limit(a.store.volumes.path(v.ID), v.DiskBytes)
	}
}

// unlimitDisk is for a directory that is about to be removed, or to be measured. A limit
// that is left is in nobody's way: its number is not given out again.
func (a *Agent) unlimitDisk(dir string) {
	a.unlimited.forget(dir)
	if a.cfg.DiskQuotas == nil {
		return
	}
	if err := a.cfg.DiskQuotas.Drop(dir); err != nil {
		a.cfg.Log.Warn("the disk limit of a directory is left", "machine", a.cfg.Name, "dir", dir, "err", err)
	}
}

// keeps is what a copy keeps on disk: as the file system counts it, or else added up, with
// what it holds open of files that are in no directory. What its output takes beyond its
// bound counts in any case.
func (a *Agent) keeps(id ID, held HeldOpen) (sum int64, err error) {
	dir := a.store.TaskDir(id)
	sum = outputBeyond(dir, a.cfg.LogKeepBytes)
	if q := a.cfg.DiskQuotas; q != nil {
		if bytes, ok := q.Used(filepath.Join(dir, taskSubdir)); ok {
			return sum + bytes, nil
		}
	}
	sum += held.Bytes[""]
	if held.Unmeasured != "" {
		err = errors.New(held.Unmeasured)
	}
	for _, sub := range []string{taskSubdir, UpperSubdir} {
		bytes, subErr := a.cfg.TreeBytes(filepath.Join(dir, sub))
		sum += bytes
		if subErr != nil {
			err = subErr
		}
	}
	return sum, err
}

func diskLimitText(mode string) string {
	if mode == "refused" {
		return "refused by the file system"
	}
	return "measured: who wrote them is ended within half a minute"
}
