package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	ucli "github.com/urfave/cli/v2"
)

// ForceFlag is of commands that write files which somebody may need.
func ForceFlag() ucli.Flag {
	return &ucli.BoolFlag{DisableDefaultText: true, Name: "force", Usage: "also over a file that is there"}
}

// NewFile refuses to write over a file that is there, or into a directory that is not empty,
// unless forced. Devices and pipes are written to and keep nothing. It is a guard against mistakes: a file that somebody
// else makes meanwhile is not seen.
func NewFile(path string, force bool) error {
	if force {
		return nil
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return Errorf(Failed, "%w", err)
	case info.IsDir():
		if entries, err := os.ReadDir(path); err == nil && len(entries) == 0 {
			return nil
		}
	case !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0:
		return nil
	}
	return Errorf(Refused, "%s is there already, and nothing was written", path).Hint("give another name, or write over it: --force")
}

// NewFiles refuses to write into a directory that has files of such a name, as NewFile does.
func NewFiles(dir, pattern string, force bool) error {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) == 0 {
		return nil
	}
	return NewFile(found[0], force)
}
