// Bench runs the benchmarks of an area of the project, prints their figures as
// a table and merges them by name into a JSON file.
//
// A figure is what a Go benchmark reports with a dotted unit, such as
// b.ReportMetric(v, "cell.apply.ops_per_s"); the last part of the name says
// its unit.
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"

	"borg/bench/figures"
)

// areas are the packages whose benchmarks belong to an area.
var areas = map[string][]string{
	"cell":       {"./borgmaster/cell", "./borgmaster/replica"},
	"scheduler":  {"./scheduler"},
	"checkpoint": {"./checkpoint"},
	"linkshard":  {"./borgmaster/linkshard"},
	"tls":        {"./proto/door", "./borgmaster/replica"},
}

// tags are with which an area is measured once more. Area tls is what TLS costs: a
// build with the tag plaintext has none.
var tags = map[string]string{"tls": "plaintext"}

// only are the benchmarks of an area, where its packages have others too.
var only = map[string]string{"tls": "Handshakes|Connections|Calls|Slow|Writes"}

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
	bench := []string{"test", "-run", "^$", "-bench", cmp.Or(only[area], "."), "-benchtime", benchtime, "-count", "1", "-p", "1"}
	found, err := measure(append(bench, packages...))
	if err != nil {
		return err
	}
	if tag := tags[area]; tag != "" {
		more, err := measure(append(append(bench, "-tags", tag), packages...))
		if err != nil {
			return err
		}
		found = append(found, more...)
	}
	print(found)
	return figures.Merge(out, found)
}

// measure runs benchmarks and returns the figures that they report.
func measure(args []string) ([]figures.Figure, error) {
	fmt.Println("$ go", strings.Join(args, " "))
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	found, err := parse(io.TeeReader(stdout, os.Stderr))
	if err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("benchmarks: %w", err)
	}
	if len(found) == 0 {
		return nil, errors.New("no benchmark reported a figure with a dotted name")
	}
	return found, nil
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
	return slices.Compact(all), nil
}

// parse reads the output of go test -bench: a line is a name, a count, and
// pairs of value and unit.
func parse(r io.Reader) ([]figures.Figure, error) {
	var found []figures.Figure
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
			found = append(found, figures.New(name, value))
		}
	}
	return found, nil
}

func print(found []figures.Figure) {
	fmt.Printf("\n%s, %s, commit %s\n", found[0].Machine, found[0].Date, found[0].Commit)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tVALUE\tUNIT")
	for _, f := range found {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Name, strconv.FormatFloat(f.Value, 'f', -1, 64), f.Unit)
	}
	w.Flush()
}
