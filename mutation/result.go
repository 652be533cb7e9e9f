package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"borg/bench/figures"
	"borg/mutation/plant"
)

// result is what became of one mutant.
type result struct {
	ID       string  `json:"id"`
	Place    string  `json:"place"`
	Package  string  `json:"package"`
	Operator string  `json:"operator"`
	Reached  bool    `json:"reached"`
	Killer   string  `json:"killer,omitempty"`
	Error    string  `json:"error,omitempty"`
	Seconds  float64 `json:"seconds"`
}

func (r *result) String() string {
	switch {
	case r.Error != "":
		return "error   " + r.Place + ": " + r.Error
	case r.Killer != "":
		return "killed  " + r.Place + "  by " + r.Killer
	case !r.Reached:
		return "LIVES   " + r.Place + "  (no test passes it)"
	}
	return "LIVES   " + r.Place
}

// results is the state file: a line for each mutant that was tried.
type results struct {
	file *os.File
	byID map[string]*result
}

// openResults reads the file, if there is one, and opens it to go on.
func openResults(name string) (*results, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	rs := &results{file: f, byID: map[string]*result{}}
	if err := rs.read(); err != nil {
		f.Close()
		return nil, err
	}
	return rs, nil
}

// read reads what earlier runs wrote. A crash may have cut off their last line: the next
// result must not be appended to it.
func (rs *results) read() error {
	data, err := io.ReadAll(rs.file)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(data) {
		r := &result{}
		if json.Unmarshal(line, r) == nil {
			rs.byID[r.ID] = r
		}
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		_, err = rs.file.WriteString("\n")
	}
	return err
}

func (rs *results) close()             { rs.file.Close() }
func (rs *results) has(id string) bool { return rs.byID[id] != nil }

func (rs *results) add(r *result) error {
	if r.Error != "" {
		return nil // tried again next time
	}
	rs.byID[r.ID] = r
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = rs.file.Write(append(line, '\n'))
	return err
}

// score counts mutants of one kind.
type score struct{ tried, killed, reached int }

func (s score) percent() float64 {
	if s.tried == 0 {
		return 0
	}
	return 100 * float64(s.killed) / float64(s.tried)
}

// scores adds the sample up by what key returns.
func scores(drawn []*plant.Mutant, rs *results, key func(*result) string) map[string]score {
	sums := map[string]score{}
	for _, m := range drawn {
		r := rs.byID[m.ID()]
		if r == nil {
			continue
		}
		s := sums[key(r)]
		s.tried++
		if r.Killer != "" {
			s.killed++
		}
		if r.Reached {
			s.reached++
		}
		sums[key(r)] = s
	}
	return sums
}

func all(*result) string          { return "all" }
func byPackage(r *result) string  { return r.Package }
func byOperator(r *result) string { return r.Operator }

// report prints the scores and the mutants that live.
func report(w io.Writer, t *tree, drawn []*plant.Mutant, rs *results) error {
	fmt.Fprintln(w)
	for _, m := range drawn {
		if r := rs.byID[m.ID()]; r != nil && r.Killer == "" {
			fmt.Fprintln(w, r)
		}
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, key := range []func(*result) string{byPackage, byOperator, all} {
		fmt.Fprintln(tw, "\n\ttried\tkilled\tnever passed\tscore")
		sums := scores(drawn, rs, key)
		for _, name := range slices.Sorted(maps.Keys(sums)) {
			s := sums[name]
			fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%.0f %%\n", name, s.tried, s.killed, s.tried-s.reached, s.percent())
		}
	}
	return tw.Flush()
}

// writeFigures merges the scores into the file of measured numbers.
func writeFigures(name string, t *tree, drawn []*plant.Mutant, rs *results) error {
	figs := []figures.Figure{figures.New("mutation.score_percent", scores(drawn, rs, all)["all"].percent())}
	sums := scores(drawn, rs, byPackage)
	for _, pkg := range slices.Sorted(maps.Keys(sums)) {
		figs = append(figs, figures.New("mutation."+strings.ReplaceAll(pkg, "/", ".")+".score_percent", sums[pkg].percent()))
	}
	return figures.Merge(name, figs)
}
