package diskquota

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// field is one of a structure of the kernel's, as C lays it out.
type field struct {
	offset, bytes int
}

var cSizes = map[string]int{
	"__s8": 1, "__u16": 2, "__s16": 2, "__u32": 4, "__s32": 4, "__u64": 8, "char": 1, "unsigned char": 1, "fs_qfilestat_t": 24,
}

var (
	memberLine = regexp.MustCompile(`(?m)^\s*(unsigned char|\w+)\s+(\w+)(?:\[(\d+)\])?;`)
	comment    = regexp.MustCompile(`(?s)/\*.*?\*/`)
)

// layout reads a structure in a header: where its fields are, and how long it is.
func layout(t *testing.T, header, name string) (fields map[string]field, size int) {
	t.Helper()
	text := comment.ReplaceAllString(readHeader(t, header), "")
	_, body, ok := strings.Cut(text, "struct "+name+" {")
	if !ok {
		t.Fatalf("%s has no structure %s", header, name)
	}
	body, _, _ = strings.Cut(body, "}")
	fields, widest := map[string]field{}, 1
	for _, m := range memberLine.FindAllStringSubmatch(body, -1) {
		bytes, ok := cSizes[m[1]]
		if !ok {
			t.Fatalf("%s: the type %q of %s is not known", header, m[1], m[2])
		}
		align := min(bytes, 8)
		widest = max(widest, align)
		size = (size + align - 1) / align * align
		if n, err := strconv.Atoi(m[3]); err == nil {
			bytes *= n
		}
		fields[m[2]] = field{size, bytes}
		size += bytes
	}
	return fields, (size + widest - 1) / widest * widest
}

func readHeader(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/usr/include/linux", name))
	if err != nil {
		t.Skipf("the kernel's headers are not here (apt-get install linux-libc-dev): %v", err)
	}
	return string(text)
}

// TestHeaders compares what this package says of the kernel's structures with its headers.
func TestHeaders(t *testing.T) {
	for _, tt := range []struct {
		header, name string
		ours         any
		fields       map[string]int
	}{
		{"fs.h", "fsxattr", attr{}, map[string]int{"fsx_xflags": 0, "fsx_extsize": 4, "fsx_projid": 12}},
		{"dqblk_xfs.h", "fs_disk_quota", xfsDquot{}, map[string]int{
			"d_version": 0, "d_flags": 1, "d_fieldmask": 2, "d_id": 4, "d_blk_hardlimit": 8, "d_ino_hardlimit": 24, "d_bcount": 40, "d_icount": 48, "d_rtbtimer": 96,
		}},
		{"dqblk_xfs.h", "fs_quota_stat", xfsStat{}, map[string]int{"qs_flags": 2}},
		{"quota.h", "if_dqblk", extDquot{}, map[string]int{"dqb_bhardlimit": 0, "dqb_curspace": 16, "dqb_ihardlimit": 24, "dqb_curinodes": 40, "dqb_valid": 64}},
	} {
		fields, size := layout(t, tt.header, tt.name)
		if got := binary.Size(tt.ours); got != size {
			t.Errorf("%s has %d bytes, want %d", tt.name, got, size)
		}
		for name, want := range tt.fields {
			if got, ok := fields[name]; !ok || got.offset != want {
				t.Errorf("%s.%s is at %d (%v), the fake kernel has it at %d", tt.name, name, got.offset, ok, want)
			}
		}
	}
	for _, tt := range []struct{ header, line string }{
		{"fs.h", `#define FS_IOC_FSGETXATTR _IOR('X', 31, struct fsxattr)`},
		{"fs.h", `#define FS_IOC_FSSETXATTR _IOW('X', 32, struct fsxattr)`},
		{"fs.h", `#define FS_XFLAG_PROJINHERIT 0x00000200`},
		{"quota.h", `#define PRJQUOTA 2`},
		{"quota.h", `#define SUBCMDSHIFT 8`},
		{"quota.h", `#define Q_GETQUOTA 0x800007`},
		{"quota.h", `#define Q_SETQUOTA 0x800008`},
		{"quota.h", `#define QIF_DQBLKSIZE_BITS 10`},
		{"dqblk_xfs.h", `#define XQM_CMD(x) (('X'<<8)+(x))`},
		{"dqblk_xfs.h", `#define Q_XGETQUOTA XQM_CMD(3)`},
		{"dqblk_xfs.h", `#define Q_XSETQLIM XQM_CMD(4)`},
		{"dqblk_xfs.h", `#define Q_XGETQSTAT XQM_CMD(5)`},
		{"dqblk_xfs.h", `#define FS_QUOTA_PDQ_ACCT (1<<4)`},
		{"dqblk_xfs.h", `#define FS_QUOTA_PDQ_ENFD (1<<5)`},
		{"dqblk_xfs.h", `#define FS_DQUOT_VERSION 1`},
		{"dqblk_xfs.h", `#define FS_PROJ_QUOTA (1<<1)`},
		{"dqblk_xfs.h", `#define FS_DQ_BHARD (1<<3)`},
		{"dqblk_xfs.h", `#define FS_DQ_IHARD (1<<1)`},
		{"quota.h", `#define QIF_ILIMITS (1 << QIF_ILIMITS_B)`},
	} {
		if text := strings.Join(strings.Fields(readHeader(t, tt.header)), " "); !strings.Contains(text, tt.line) {
			t.Errorf("%s does not say %q", tt.header, tt.line)
		}
	}
	for what, is := range map[string][2]uint32{
		"FS_IOC_FSGETXATTR": {iocGetAttr, 2<<30 | 28<<16 | 'X'<<8 | 31}, "FS_IOC_FSSETXATTR": {iocSetAttr, 1<<30 | 28<<16 | 'X'<<8 | 32},
		"Q_XGETQUOTA": {qxGetQuot, 'X'<<8 + 3}, "Q_XSETQLIM": {qxSetLim, 'X'<<8 + 4}, "Q_XGETQSTAT": {qxGetStat, 'X'<<8 + 5},
		"Q_SETQUOTA of projects": {commandOf(qSetQuota), 0x80000802},
	} {
		if is[0] != is[1] {
			t.Errorf("%s is %#x, want %#x", what, is[0], is[1])
		}
	}
}
