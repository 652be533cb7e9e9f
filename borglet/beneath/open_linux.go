package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxTries bounds how often a lookup is repeated that something was renamed under.
const maxTries = 16

func open(dir, name string, flag int, perm fs.FileMode) (*os.File, error) {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(at)
	// A device may act when it is opened, so that it is looked at before; it is looked
	// at again when it is open.
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNotPlain
	}
	how := unix.OpenHow{
		// Without waiting for the other end of a pipe.
		Flags:   uint64(flag) | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_LARGEFILE,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flag&os.O_CREATE != 0 {
		how.Mode = uint64(perm.Perm())
	}
	fd, err := -1, error(unix.EAGAIN)
	for try := 0; try < maxTries && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); try++ {
		fd, err = unix.Openat2(at, name, &how)
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		// A kernel before 5.6, or a container around us that does not know the call. Of one
		// word there is only the last step, in which no link is followed.
		fd, err = unix.Openat(at, name, int(how.Flags), uint32(how.Mode))
	}
	if err != nil {
		return nil, err
	}
	// Whoever is given the file, such as a task its output, does not expect it.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir, name)), nil
}
