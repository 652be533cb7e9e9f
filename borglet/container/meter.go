package container

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

const (
	// slowEvery is how often is read what hardly anybody needs each second: peaks and
	// what disks did.
	slowEvery = 30 * time.Second
	// maxMeters bounds the cgroups whose files are kept open; those of others are
	// opened for each sample.
	maxMeters = 1000
	// meterBuf holds the longest of these files; what is cut off is not needed.
	meterBuf = 16 << 10
)

// meters reads what the cgroups of runs and of allocs say of their use, from files that
// are kept open: to find and open them anew takes most of the time.
type meters struct {
	mu sync.Mutex
	// Guarded by mu, and so is all in them.
	open map[borglet.ID]*meter
	// By AllocName.
	allocs map[string]*meter
	buf    []byte
}

// meter has the open files of one cgroup, and counts what is in those below it. A file
// that is not there is nil, and says zero.
type meter struct {
	// Zero in that of an alloc.
	run proc
	v2  bool
	// cpu is cpuacct.usage, and nil in version 2, where throttling has it too.
	cpu, throttling, mem, memStat, memPeak, io *os.File
	// slow is what was last read of memPeak and io, at the time at.
	slow   borglet.Stats
	slowAt time.Time
}

func newMeters() *meters {
	return &meters{open: map[borglet.ID]*meter{}, allocs: map[string]*meter{}, buf: make([]byte, meterBuf)}
}

// openMeter opens the files of a cgroup.
func openMeter(run proc, p paths) *meter {
	m := &meter{run: run, v2: p.v2()}
	open := func(controller, file string) *os.File {
		if p[controller] == "" {
			return nil
		}
		f, err := os.OpenFile(filepath.Join(p[controller], file), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil
		}
		return f
	}
	if m.v2 {
		m.throttling, m.mem, m.memStat = open("", "cpu.stat"), open("", "memory.current"), open("", "memory.stat")
		m.memPeak, m.io = open("", "memory.peak"), open("", "io.stat")
		return m
	}
	m.cpu, m.throttling = open("cpuacct", "cpuacct.usage"), open("cpu", "cpu.stat")
	m.mem, m.memStat, m.memPeak = open("memory", "memory.usage_in_bytes"), open("memory", "memory.stat"), open("memory", "memory.max_usage_in_bytes")
	m.io = open("blkio", "blkio.throttle.io_service_bytes_recursive")
	return m
}

func (m *meter) close() {
	for _, f := range []*os.File{m.cpu, m.throttling, m.mem, m.memStat, m.memPeak, m.io} {
		if f != nil {
			f.Close()
		}
	}
}

// read takes a sample. gone: the cgroup is no more.
func (m *meter) read(buf []byte, now time.Time) (s borglet.Stats, gone bool) {
	text := func(f *os.File) []byte {
		if f == nil {
			return nil
		}
		n, err := f.ReadAt(buf, 0)
		if errors.Is(err, unix.ENODEV) {
			gone = true
		}
		return buf[:n]
	}
	if m.slowAt.IsZero() || now.Sub(m.slowAt) >= slowEvery {
		m.slowAt = now
		m.slow.MemPeakBytes, _ = leadingNumber(text(m.memPeak))
		m.slow.ReadBytes, m.slow.WriteBytes = ioBytes(text(m.io), m.v2)
	}
	s = m.slow
	s.At = now
	used, _ := leadingNumber(text(m.mem))
	if m.v2 {
		stat := text(m.throttling)
		s.CPUNs, s.ThrottledNs = lineNumber(stat, "usage_usec")*1000, lineNumber(stat, "throttled_usec")*1000
		stat = text(m.memStat)
		s.RSSBytes, s.CacheBytes = lineNumber(stat, "anon"), lineNumber(stat, "file")
		s.MemBytes = max(used-lineNumber(stat, "inactive_file"), 0)
		return s, gone
	}
	s.CPUNs, _ = leadingNumber(text(m.cpu))
	s.ThrottledNs = lineNumber(text(m.throttling), "throttled_time")
	stat := text(m.memStat)
	s.RSSBytes, s.CacheBytes = lineNumber(stat, "total_rss"), lineNumber(stat, "total_cache")
	s.MemBytes = max(used-lineNumber(stat, "total_inactive_file"), 0)
	return s, gone
}

// sample reads the meters of all runs that are given, and closes those of others.
func (m *meters) sample(runs map[borglet.ID]proc) (map[borglet.ID]borglet.Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[borglet.ID]borglet.Stats, len(runs))
	for id, open := range m.open {
		if runs[id] != open.run {
			m.drop(id, open)
		}
	}
	var list []hierarchy
	for id, run := range runs {
		open := m.open[id]
		if open == nil {
			if list == nil {
				var err error
				if list, err = hierarchies(); err != nil {
					return out, err
				}
			}
			p, err := pathsOf(list, run.Pid)
			if err != nil {
				continue
			}
			open = openMeter(run, p)
			m.open[id] = open
		}
		s, gone := open.read(m.buf, time.Now())
		if !gone {
			out[id] = s
		}
		if gone || len(m.open) > maxMeters {
			m.drop(id, open)
		}
	}
	return out, nil
}

// sampleAllocs reads the meters of allocs below a borglet's cgroup, and closes those of
// others. An alloc has a cgroup while something is in it.
func (m *meters) sampleAllocs(parent string, allocs []string) (map[string]borglet.Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]borglet.Stats, len(allocs))
	for alloc, open := range m.allocs {
		if !slices.Contains(allocs, alloc) {
			m.dropAlloc(alloc, open)
		}
	}
	var list []hierarchy
	for _, alloc := range allocs {
		open := m.allocs[alloc]
		if open == nil {
			if list == nil {
				var err error
				if list, err = hierarchies(); err != nil {
					return out, err
				}
			}
			open = openMeter(proc{}, pathsIn(list, allocPath(parent, alloc)))
			m.allocs[alloc] = open
		}
		s, gone := open.read(m.buf, time.Now())
		gone = gone || open.mem == nil
		if !gone {
			out[alloc] = s
		}
		if gone || len(m.allocs) > maxMeters {
			m.dropAlloc(alloc, open)
		}
	}
	return out, nil
}

func (m *meters) drop(id borglet.ID, open *meter) {
	open.close()
	delete(m.open, id)
}

func (m *meters) dropAlloc(alloc string, open *meter) {
	open.close()
	delete(m.allocs, alloc)
}

func (m *meters) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, open := range m.open {
		m.drop(id, open)
	}
	for alloc, open := range m.allocs {
		m.dropAlloc(alloc, open)
	}
}

// leadingNumber reads the digits that a text begins with.
func leadingNumber(text []byte) (n int64, rest []byte) {
	for len(text) > 0 && text[0] >= '0' && text[0] <= '9' {
		n, text = n*10+int64(text[0]-'0'), text[1:]
	}
	return n, text
}

// lineNumber finds the line "name number"; zero if it is not there.
func lineNumber(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		if len(line) > len(name) && line[len(name)] == ' ' && string(line[:len(name)]) == name {
			n, _ := leadingNumber(line[len(name)+1:])
			return n
		}
	}
	return 0
}

// ioBytes adds up all devices: "8:0 Read 4096" in version 1, "8:0 rbytes=4096
// wbytes=0 ..." in version 2.
func ioBytes(text []byte, v2 bool) (read, written int64) {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if !v2 {
			if len(fields) == 3 {
				n, _ := leadingNumber(fields[2])
				switch string(fields[1]) {
				case "Read":
					read += n
				case "Write":
					written += n
				}
			}
			continue
		}
		for _, field := range fields {
			name, value, _ := bytes.Cut(field, []byte("="))
			n, _ := leadingNumber(value)
			switch string(name) {
			case "rbytes":
				read += n
			case "wbytes":
				written += n
			}
		}
	}
	return read, written
}
