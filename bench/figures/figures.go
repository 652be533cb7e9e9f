// Package figures is the file in which measured numbers are kept: each once, by
// name, with the day, the machine and the commit that it was measured on.
// Whoever measures merges his own and leaves the rest.
package figures

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"time"
)

// Figure is one measured number.
type Figure struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Date    string  `json:"date"`
	Machine string  `json:"machine"`
	Commit  string  `json:"commit"`
}

// units tells the unit from how a name ends; the first that matches counts.
var units = []struct{ suffix, unit string }{
	{"bytes_per_s", "B/s"}, {"_per_s", "1/s"}, {".per_s", "1/s"}, {"_per_cpu_s", "1/s"}, {".seconds", "s"}, {"cpu_seconds", "s"}, {".ms", "ms"}, {".ratio", "ratio"},
	{"bytes_per_task", "B"}, {"_bytes", "B"}, {".bytes", "B"}, {"_ms", "ms"}, {"_us", "us"}, {"_s", "s"}, {"_ratio", "ratio"}, {"_percent", "%"}, {"_percent_of_full", "%"}, {"_percent_of_states", "%"}, {"_pct", "%"},
	{"_seconds", "s"}, {"_cores", "cores"}, {".cores", "cores"}, {"_mib", "MiB"}, {"_entries", "entries"},
}

// New is a figure measured now, here. The last part of the name says its unit.
func New(name string, value float64) Figure {
	return Figure{
		Name: name, Value: value, Unit: unitOf(name),
		Date: time.Now().UTC().Format(time.DateOnly), Machine: machine(), Commit: commit(),
	}
}

func unitOf(name string) string {
	for _, u := range units {
		if strings.HasSuffix(name, u.suffix) {
			return u.unit
		}
	}
	return ""
}

// Read returns the figures of a file: none, if there is no file.
func Read(path string) (all []Figure, err error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read earlier figures: %w", err)
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("read earlier figures in %s: %w", path, err)
	}
	return all, nil
}

// Merge replaces the figures of the same names in the file and keeps the rest.
func Merge(path string, figures []Figure) error {
	all, err := Read(path)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(old Figure) bool {
		return slices.ContainsFunc(figures, func(f Figure) bool { return f.Name == old.Name })
	})
	all = append(all, figures...)
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write figures: %w", err)
	}
	return os.Rename(path+".new", path)
}

// machine says what was measured on: processor, cores, memory, kernel.
func machine() string {
	model := runtime.GOARCH
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(name), ":"))
				break
			}
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%s, %d cores, Linux %s, %s", model, runtime.NumCPU(), strings.TrimSpace(string(kernel)), runtime.Version())
}

func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
