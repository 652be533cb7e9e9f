package borglet

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
)

// maxFilesCounted bounds the walk over one task's directory; one with more
// files is reported with what the first ones take.
const maxFilesCounted = 20_000

var errEnough = errors.New("enough files counted")

// measureDisk adds up what copies have in their directories, and trims their
// logs.
func (a *Agent) measureDisk(ctx context.Context, ids []ID) map[ID]int64 {
	disk := make(map[ID]int64, len(ids))
	for _, id := range ids {
		if ctx.Err() != nil {
			break
		}
		dir := a.store.TaskDir(id)
		if a.cfg.Trim != nil && a.cfg.LogKeepBytes > 0 {
			for _, name := range []string{stdoutFile, stderrFile} {
				if err := a.cfg.Trim(filepath.Join(dir, name), a.cfg.LogKeepBytes); err != nil {
					a.cfg.Log.Warn("a log cannot be trimmed", "machine", a.cfg.Name, "err", err)
				}
			}
		}
		disk[id] = treeBytes(filepath.Join(dir, taskSubdir))
	}
	return disk
}

func treeBytes(dir string) int64 {
	var sum int64
	files := 0
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			// Files come and go while a task works.
			return nil
		}
		if files++; files > maxFilesCounted {
			return errEnough
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return 0
	}
	return sum
}
