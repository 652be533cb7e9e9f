package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// labels say which of a metric are meant: of each label those with one of its values.
type labels map[string][]string

// countedBy is how far a counter of one master is, what a gauge shows, or how often a
// histogram was told something, as its metrics say: the sum of those with the labels.
func (c *Cell) countedBy(ctx context.Context, master int, name string, with labels) (sum float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.masterPage(master)+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	asking := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := asking.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("metrics of master %d: %s", master, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return 0, fmt.Errorf("metrics of master %d: %w", master, err)
	}
	family := families[name]
	if family == nil {
		return 0, fmt.Errorf("metrics of master %d lack %s", master, name)
	}
	for _, metric := range family.Metric {
		meant := 0
		for _, l := range metric.Label {
			if slices.Contains(with[l.GetName()], l.GetValue()) {
				meant++
			}
		}
		if meant == len(with) {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return sum, nil
}

// counting begins to count, and returns what says how much each master has counted since,
// the first one first.
func (m *masterBench) counting(name string, with labels) (since func() []float64) {
	m.Helper()
	read := func() (all []float64) {
		m.Helper()
		for i := 1; i <= m.cell.Masters; i++ {
			m.every("a master shows its metrics", func(ctx context.Context) error {
				n, err := m.cell.countedBy(ctx, i, name, with)
				if err == nil {
					all = append(all, n)
				}
				return err
			})
		}
		return all
	}
	before := read()
	return func() []float64 {
		m.Helper()
		now := read()
		for i := range now {
			now[i] -= before[i]
		}
		return now
	}
}

func together(all []float64) (n float64) {
	for _, one := range all {
		n += one
	}
	return n
}
