package container

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"borg/borglet"
)

// tree writes the files of a cgroup, as both versions of the kernel's have them.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestMeter reads both versions alike.
func TestMeter(t *testing.T) {
	v1 := tree(t, map[string]string{
		"cpuacct/cpuacct.usage":                           "5000000000\n",
		"cpu/cpu.stat":                                    "nr_periods 10\nnr_throttled 3\nthrottled_time 70000\n",
		"memory/memory.usage_in_bytes":                    "1000000\n",
		"memory/memory.stat":                              "cache 1\nrss 2\ntotal_cache 400000\ntotal_rss 600000\ntotal_rss_huge 7\ntotal_inactive_file 300000\n",
		"memory/memory.max_usage_in_bytes":                "1500000\n",
		"blkio/blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096\n8:0 Write 100\n8:0 Sync 4096\n8:16 Read 4\n8:16 Write 1\nTotal 4201\n",
	})
	v2 := tree(t, map[string]string{
		"cpu.stat":       "usage_usec 5000000\nuser_usec 1\nthrottled_usec 70\n",
		"memory.current": "1000000\n",
		"memory.stat":    "anon 600000\nfile 400000\nfile_mapped 9\ninactive_file 300000\n",
		"memory.peak":    "1500000\n",
		"io.stat":        "8:0 rbytes=4096 wbytes=100 rios=1 wios=1\n8:16 rbytes=4 wbytes=1 rios=1 wios=1\n",
	})
	p1 := paths{}
	for _, c := range []string{"cpuacct", "cpu", "memory", "blkio"} {
		p1[c] = filepath.Join(v1, c)
	}
	now := time.Unix(1000, 0)
	want := borglet.Stats{
		At: now, CPUNs: 5e9, ThrottledNs: 70_000, MemBytes: 700_000, RSSBytes: 600_000, CacheBytes: 400_000,
		MemPeakBytes: 1_500_000, ReadBytes: 4100, WriteBytes: 101,
	}
	buf := make([]byte, meterBuf)
	for name, p := range map[string]paths{"v1": p1, "v2": {"": v2}} {
		m := openMeter(proc{}, p)
		defer m.close()
		if got, gone := m.read(buf, now); got != want || gone {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	// A file that is missing says nothing, and does not stop the others.
	m := openMeter(proc{}, paths{"": tree(t, map[string]string{"memory.current": "5\n"})})
	defer m.close()
	if got, _ := m.read(buf, now); got != (borglet.Stats{At: now, MemBytes: 5}) {
		t.Errorf("with one file: %+v", got)
	}
}

// TestIOWeights: weights are not asked for where the kernel has none.
func TestIOWeights(t *testing.T) {
	for name, want := range map[string]bool{
		"blkio/blkio.bfq.io_service_bytes": true, "blkio/blkio.weight": true, "system.slice/io.weight": true, "borg/io.bfq.weight": true,
		"blkio/blkio.throttle.io_serviced": false, "system.slice/io.stat": false,
	} {
		if got := ioWeights(tree(t, map[string]string{name: ""})); got != want {
			t.Errorf("with %s: %v, want %v", name, got, want)
		}
	}
}

// TestMeterAgain: what changes is seen without opening the files again; peaks and
// disks each half minute.
func TestMeterAgain(t *testing.T) {
	dir := tree(t, map[string]string{"memory.current": "5\n", "memory.peak": "5\n"})
	m := openMeter(proc{}, paths{"": dir})
	defer m.close()
	now := time.Unix(1000, 0)
	buf := make([]byte, meterBuf)
	m.read(buf, now)
	for _, name := range []string{"memory.current", "memory.peak"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("12345\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := m.read(buf, now.Add(time.Second)); got.MemBytes != 12345 || got.MemPeakBytes != 5 {
		t.Errorf("a second later: %+v", got)
	}
	if got, _ := m.read(buf, now.Add(slowEvery)); got.MemPeakBytes != 12345 {
		t.Errorf("half a minute later: %+v", got)
	}
}
