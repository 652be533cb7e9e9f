// Bench runs the benchmarks of an area of the project, prints their figures as
// a table and merges them by name into a JSON file.
//
// A figure is what a Go benchmark reports with a dotted unit, such as
// b.ReportMetric(v, "cell.apply.ops_per_s"); the last part of the name says
// its unit.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// areas are the packages whose benchmarks belong to an area.
var areas = map[string][]string{
	"cell":       {"./borgmaster/cell", "./borgmaster/replica"},
	"scheduler":  {"./scheduler"},
	"checkpoint": {"./checkpoint"},
	"linkshard":  {"./borgmaster/linkshard"},
}

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
	{"_per_s", "1/s"}, {"_per_cpu_s", "1/s"}, {".seconds", "s"}, {"cpu_seconds", "s"}, {".ms", "ms"}, {".ratio", "ratio"}, {"bytes_per_task", "B"}, {"_bytes", "B"}, {"_ms", "ms"}, {"_us", "us"}, {"_s", "s"}, {"_ratio", "ratio"}, {"_percent", "%"},
}

func main() {
	out := flag.String("out", "bin/bench.json", "file to merge the figures into")
	benchtime := flag.String("benchtime", "3s", "how long each benchmark runs")
	flag.Parse()
	if err := run(flag.Arg(0), *out, *benchtime); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(area, out, benchtime string) error {
	packages, err := packagesOf(area)
	if err != nil {
		return err
	}
	args := append([]string{"test", "-run", "^$", "-bench", ".", "-benchtime", benchtime, "-count", "1", "-p", "1"}, packages...)
	fmt.Println("$ go", strings.Join(args, " "))
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	figures, err := parse(io.TeeReader(stdout, os.Stderr))
	if err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("benchmarks: %w", err)
	}
	if len(figures) == 0 {
		return errors.New("no benchmark reported a figure with a dotted name")
	}
	for i := range figures {
		figures[i].Date = time.Now().UTC().Format(time.DateOnly)
		figures[i].Machine = machine()
		figures[i].Commit = commit()
	}
	print(figures)
	return merge(out, figures)
}

func packagesOf(area string) ([]string, error) {
	if area != "" && area != "all" {
		p, ok := areas[area]
		if !ok {
			names := []string{"all"}
			for name := range areas {
				names = append(names, name)
			}
			sort.Strings(names)
			return nil, fmt.Errorf("unknown area %q; areas: %s", area, strings.Join(names, ", "))
		}
		return p, nil
	}
	var all []string
	for _, p := range areas {
		all = append(all, p...)
	}
	sort.Strings(all)
	return all, nil
}

// parse reads the output of go test -bench: a line is a name, a count, and
// pairs of value and unit.
func parse(r io.Reader) ([]Figure, error) {
	var figures []Figure
	for s := bufio.NewScanner(r); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			name := fields[i+1]
			if !strings.Contains(name, ".") {
				continue
			}
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("read %q: %w", s.Text(), err)
			}
			figures = append(figures, Figure{Name: name, Value: value, Unit: unitOf(name)})
		}
	}
	return figures, nil
}

func unitOf(name string) string {
	for _, u := range units {
		if strings.HasSuffix(name, u.suffix) {
			return u.unit
		}
	}
	return ""
}

func print(figures []Figure) {
	fmt.Printf("\n%s, %s, commit %s\n", figures[0].Machine, figures[0].Date, figures[0].Commit)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tVALUE\tUNIT")
	for _, f := range figures {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Name, strconv.FormatFloat(f.Value, 'f', -1, 64), f.Unit)
	}
	w.Flush()
}

// merge replaces the figures of the same names in the file and keeps the rest.
func merge(path string, figures []Figure) error {
	var all []Figure
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("read earlier figures: %w", err)
	default:
		if err := json.Unmarshal(data, &all); err != nil {
			return fmt.Errorf("read earlier figures in %s: %w", path, err)
		}
	}
	all = slices.DeleteFunc(all, func(old Figure) bool {
		return slices.ContainsFunc(figures, func(f Figure) bool { return f.Name == old.Name })
	})
	all = append(all, figures...)
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	data, err = json.MarshalIndent(all, "", "  ")
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
