package container

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	kernelLog = "/dev/kmsg"
	// maxKernelRecords bounds how much of the kernel's log is read. Its default buffer
	// holds a few thousand records.
	maxKernelRecords = 1 << 17
	// maxRecordBytes is more than the kernel writes in one record.
	maxRecordBytes = 8 << 10
	// maxProcessNameBytes bounds the name of a process, of which the kernel keeps 15.
	maxProcessNameBytes = 64
)

// oomKills is what the kernel killed of a copy for want of memory.
type oomKills struct {
	count int64
	// The first process of them and the memory that it held, from the kernel's log; empty
	// and zero where that cannot be read or has been overwritten.
	process string
	bytes   int64
}

// kills is how often the kernel killed a process of the cgroup, and the first of them.
func (p paths) kills() oomKills {
	k := oomKills{count: p.oomKills()}
	if k.count == 0 {
		return k
	}
	group := p["memory"]
	if p.v2() {
		group = p[""]
	}
	killed := killedOf(readKernelLog(), copyOfGroup(group))
	if len(killed) == 0 {
		return k
	}
	// Earlier runs of the copy had a cgroup of the same name.
	first := killed[max(len(killed)-int(min(k.count, maxKernelRecords)), 0)]
	k.process, k.bytes = first.process, first.bytes
	return k
}

// readKernelLog returns what is in the kernel's buffer, oldest first; nil where that is
// not allowed.
func readKernelLog() (records []string) {
	fd, err := unix.Open(kernelLog, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), kernelLog)
	defer f.Close()
	buf := make([]byte, maxRecordBytes)
	for range maxKernelRecords {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR) {
			continue // the record was overwritten meanwhile
		}
		if err != nil || n <= 0 {
			break
		}
		if text := string(buf[:n]); strings.Contains(text, oomRecord) || strings.Contains(text, killRecord) {
			records = append(records, text)
		}
	}
	return records
}

// What begins the two records that the kernel writes of a kill.
const (
	oomRecord  = "oom-kill:constraint="
	killRecord = "Killed process "
)

// killedOf lists the processes of one cgroup that were killed, by the kernel's records.
// The name of a process is its own choice, so fields are read from both ends around it.
func killedOf(records []string, group string) (list []oomKills) {
	pid := ""
	for _, r := range records {
		if _, fields, ok := strings.Cut(r, oomRecord); ok {
			pid = ""
			_, after, _ := strings.Cut(fields, ",task_memcg=")
			if at, _, ok := strings.Cut(after, ",task="); ok && strings.HasSuffix(at, group) {
				fields, _, _ = strings.Cut(fields, "\n")
				if at := strings.LastIndex(fields, ",pid="); at >= 0 {
					pid, _, _ = strings.Cut(fields[at+len(",pid="):], ",")
				}
			}
			continue
		}
		_, killed, ok := strings.Cut(r, killRecord+pid+" (")
		if pid == "" || !ok {
			continue
		}
		pid = ""
		end := strings.LastIndex(killed, ") total-vm:")
		if end < 0 {
			continue
		}
		list = append(list, oomKills{process: plainName(killed[:end]), bytes: residentBytes(killed[end:])})
	}
	return list
}

// residentBytes adds up what a process had in memory, as the kernel's record says it.
func residentBytes(text string) (bytes int64) {
	for _, kind := range []string{" anon-rss:", " file-rss:", " shmem-rss:"} {
		_, after, _ := strings.Cut(text, kind)
		number, _, ok := strings.Cut(after, "kB")
		if n, err := strconv.ParseInt(number, 10, 40); ok && err == nil && n > 0 {
			bytes += n << 10
		}
	}
	return bytes
}

// plainName is the name of a process without what would be no plain text.
func plainName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, name)
	return name[:min(len(name), maxProcessNameBytes)]
}
