package diskquota

import (
	"encoding/binary"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel is what is asked of it, with the bytes of its own structures.
type kernel interface {
	fileSystem(dir *os.File) (magic, blockBytes int64, err error)
	ioctl(dir *os.File, request uint32, arg []byte) error
	quotactl(dir *os.File, command uint32, project uint32, arg []byte) error
}

// Of linux/fs.h, linux/quota.h and linux/dqblk_xfs.h; TestHeaders compares.
const (
	iocGetAttr      = 0x801c581f // FS_IOC_FSGETXATTR
	iocSetAttr      = 0x401c5820 // FS_IOC_FSSETXATTR
	flagProjInherit = 0x200      // FS_XFLAG_PROJINHERIT

	prjQuota  = 2            // PRJQUOTA
	qGetQuota = 0x800007     // Q_GETQUOTA
	qSetQuota = 0x800008     // Q_SETQUOTA
	qxGetQuot = 'X'<<8 | 0x3 // Q_XGETQUOTA
	qxSetLim  = 'X'<<8 | 0x4 // Q_XSETQLIM
	qxGetStat = 'X'<<8 | 0x5 // Q_XGETQSTAT

	quotaAccounts = 1 << 4 // FS_QUOTA_PDQ_ACCT
	quotaEnforces = 1 << 5 // FS_QUOTA_PDQ_ENFD
	dquotVersion  = 1      // FS_DQUOT_VERSION
	projQuotaType = 1 << 1 // FS_PROJ_QUOTA
	fieldHard     = 1 << 3 // FS_DQ_BHARD
	fieldFiles    = 1 << 1 // FS_DQ_IHARD
	validLimits   = 1 << 0 // QIF_BLIMITS
	validFiles    = 1 << 2 // QIF_ILIMITS
	basicBlock    = 512    // unit of fs_disk_quota
	limitBlock    = 1 << 10

	// fileBytes is for how much of a limit there may be one file, and leastFiles how many
	// there may be in any case. Those in which nothing is take room of the file system too.
	fileBytes  = 4 << 10
	leastFiles = 16
)

// filesOf is how many files a limit allows; zero: no limit.
func filesOf(bytes int64) uint64 {
	if bytes <= 0 {
		return 0
	}
	return uint64(max(bytes/fileBytes, leastFiles))
}

// attr is struct fsxattr.
type attr struct {
	Flags, ExtSize, Extents, Project, CowExtSize uint32
	Pad                                          [8]byte
}

// xfsDquot is struct fs_disk_quota.
type xfsDquot struct {
	Version, Flags                                         int8
	Fields                                                 uint16
	ID                                                     uint32
	HardBlocks, SoftBlocks, HardFiles, SoftFiles           uint64
	Blocks, Files                                          uint64
	FilesTimer, BlocksTimer                                int32
	FilesWarnings, BlocksWarnings                          uint16
	FilesTimerHigh, BlocksTimerHigh, RealTimerHigh, Unused int8
	RealHard, RealSoft, RealBlocks                         uint64
	RealTimer                                              int32
	RealWarnings                                           uint16
	Pad                                                    [10]byte
}

// extDquot is struct if_dqblk with the padding that C has at its end.
type extDquot struct {
	HardBlocks, SoftBlocks, Bytes, HardFiles, SoftFiles, Files, BlocksTime, FilesTime uint64
	Valid, Pad                                                                        uint32
}

// xfsStat is struct fs_quota_stat as far as it is needed.
type xfsStat struct {
	Version, Pad int8
	Flags        uint16
	Rest         [76]byte
}

func getAttr(k kernel, dir *os.File) (a attr, err error) {
	buf := encode(a)
	if err := k.ioctl(dir, iocGetAttr, buf); err != nil {
		return attr{}, err
	}
	decode(buf, &a)
	return a, nil
}

func setAttr(k kernel, dir *os.File, a attr) error { return k.ioctl(dir, iocSetAttr, encode(a)) }

// enforces: writes beyond limits of projects are refused. The kernel answers this for
// ext4 too.
func enforces(k kernel, dir *os.File) (bool, error) {
	var s xfsStat
	buf := encode(s)
	if err := k.quotactl(dir, commandOf(qxGetStat), 0, buf); err != nil {
		return false, err
	}
	decode(buf, &s)
	const both = quotaAccounts | quotaEnforces
	return s.Flags&both == both, nil
}

// usage is what is known of a project. All of it is zero of one that nobody has.
type usage struct {
	bytes, files, limitBytes int64
}

// limits are those of projects, as one kind of file system has them.
type limits interface {
	// set takes the place of the limit that was; zero: none.
	set(dir *os.File, project uint32, bytes int64) error
	get(dir *os.File, project uint32) (usage, error)
}

type xfsLimits struct{ kernel }

func (x xfsLimits) set(dir *os.File, project uint32, bytes int64) error {
	return x.quotactl(dir, commandOf(qxSetLim), project, encode(xfsDquot{
		Version: dquotVersion, Flags: projQuotaType, Fields: fieldHard | fieldFiles, ID: project, HardBlocks: uint64(bytes / basicBlock), HardFiles: filesOf(bytes),
	}))
}

func (x xfsLimits) get(dir *os.File, project uint32) (usage, error) {
	var d xfsDquot
	buf := encode(d)
	err := x.quotactl(dir, commandOf(qxGetQuot), project, buf)
	if errors.Is(err, unix.ENOENT) { // nothing was ever counted for it
		return usage{}, nil
	}
	if err != nil {
		return usage{}, err
	}
	decode(buf, &d)
	return usage{bytes: int64(d.Blocks) * basicBlock, files: int64(d.Files), limitBytes: int64(d.HardBlocks) * basicBlock}, nil
}

type extLimits struct{ kernel }

func (e extLimits) set(dir *os.File, project uint32, bytes int64) error {
	return e.quotactl(dir, commandOf(qSetQuota), project, encode(extDquot{HardBlocks: uint64(bytes / limitBlock), HardFiles: filesOf(bytes), Valid: validLimits | validFiles}))
}

func (e extLimits) get(dir *os.File, project uint32) (usage, error) {
	var d extDquot
	buf := encode(d)
	if err := e.quotactl(dir, commandOf(qGetQuota), project, buf); err != nil {
		return usage{}, err
	}
	decode(buf, &d)
	return usage{bytes: int64(d.Bytes), files: int64(d.Files), limitBytes: int64(d.HardBlocks) * limitBlock}, nil
}

// commandOf is QCMD for projects.
func commandOf(command uint32) uint32 { return command<<8 | prjQuota }

func encode(s any) []byte {
	buf, err := binary.Append(nil, binary.NativeEndian, s)
	if err != nil {
		panic(err) // all of them have a fixed size
	}
	return buf
}

func decode(buf []byte, s any) {
	if _, err := binary.Decode(buf, binary.NativeEndian, s); err != nil {
		panic(err)
	}
}

// calls are the real ones.
type calls struct{}

func (calls) fileSystem(dir *os.File) (magic, blockBytes int64, err error) {
	var fs unix.Statfs_t
	err = unix.Fstatfs(int(dir.Fd()), &fs)
	return int64(fs.Type), int64(fs.Bsize), err
}

func (calls) ioctl(dir *os.File, request uint32, arg []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), uintptr(request), uintptr(unsafe.Pointer(&arg[0])))
	return errnoOf(errno)
}

// quotactl names the file system by a directory in it (Linux 5.14), so that nobody has to
// find its device.
func (calls) quotactl(dir *os.File, command uint32, project uint32, arg []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, dir.Fd(), uintptr(command), uintptr(project), uintptr(unsafe.Pointer(&arg[0])), 0, 0)
	return errnoOf(errno)
}

func errnoOf(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
