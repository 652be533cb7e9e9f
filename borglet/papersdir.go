package borglet

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// sharedMemory is memory on every Linux machine.
const sharedMemory = "/dev/shm"

// PapersDir is where a borglet keeps the papers of its tasks: below its run-time
// directory if that is in memory, otherwise in a directory of its own in
// /dev/shm. It is the same for each start.
func PapersDir(runDir string) string {
	if inMemory(runDir) {
		return filepath.Join(runDir, "papers")
	}
	sum := sha256.Sum256([]byte(runDir))
	return filepath.Join(sharedMemory, "borg-"+strconv.Itoa(os.Geteuid())+"-"+hex.EncodeToString(sum[:8]))
}

// MakePapersDir makes that directory. Anybody may make one in /dev/shm: whose it
// is, is looked at.
func MakePapersDir(runDir string) (string, error) {
	dir := PapersDir(runDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("make a directory for papers: %w", err)
	}
	var is unix.Stat_t
	if err := unix.Lstat(dir, &is); err != nil {
		return "", fmt.Errorf("look at directory %s: %w", dir, err)
	}
	if is.Mode&unix.S_IFMT != unix.S_IFDIR || int(is.Uid) != os.Geteuid() || is.Mode&0o077 != 0 {
		return "", fmt.Errorf("%s is not a directory of this user's alone; remove it", dir)
	}
	if !inMemory(dir) {
		return "", fmt.Errorf("%s is on a disk, and neither %s nor %s is memory", dir, runDir, sharedMemory)
	}
	return dir, nil
}

func inMemory(dir string) bool {
	var is unix.Statfs_t
	if err := unix.Statfs(dir, &is); err != nil {
		return false
	}
	return int64(is.Type) == unix.TMPFS_MAGIC || int64(is.Type) == unix.RAMFS_MAGIC
}
