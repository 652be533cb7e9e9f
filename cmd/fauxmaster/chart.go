package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Charts are SVG in a coordinate system of their own; the page's style gives the
// colours.
const (
	chartWidth  = 780.0
	chartHeight = 312.0
	marginLeft  = 64.0
	marginRight = 18.0
	marginTop   = 28.0
	marginBelow = 44.0
)

// point of a chart, in the units of its axes.
type point struct {
	X, Y float64
	// Words are shown when it is pointed at.
	Words string
}

// series is a line or a cloud of points with a name.
type series struct {
	Name   string
	Points []point
}

// axis maps values onto the chart.
type axis struct {
	low, high float64
	log       bool
	name      string
	// text writes a tick; nil: as a number.
	text func(float64) string
}

func (a *axis) at(v float64) float64 {
	if a.log {
		return math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return (v - a.low) / (a.high - a.low)
}

// widen makes room around the only value.
func (a *axis) widen() {
	switch {
	case a.log && a.low >= a.high:
		a.low, a.high = a.low/2, a.low*2
	case a.low >= a.high:
		a.low, a.high = a.low-1, a.low+1
	}
}

// ticks are round values.
func (a *axis) ticks() (all []float64) {
	if a.log {
		for v := math.Pow(10, math.Floor(math.Log10(a.low))); v <= a.high*1.0001; v *= 10 {
			if v >= a.low*0.9999 {
				all = append(all, v)
			}
		}
		return all
	}
	raw := (a.high - a.low) / 5
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if step*m >= raw {
			step *= m
			break
		}
	}
	for v := math.Ceil(a.low/step) * step; v <= a.high+step/1e6; v += step {
		all = append(all, v)
	}
	return all
}

func (a *axis) words(v float64) string {
	if a.text != nil {
		return a.text(v)
	}
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return thousands(int(v))
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// chart is one being drawn.
type chart struct {
	b    strings.Builder
	x, y axis
}

func newChart(title string, x, y axis) *chart {
	x.widen()
	y.widen()
	c := &chart{x: x, y: y}
	fmt.Fprintf(&c.b, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, chartWidth, chartHeight, html.EscapeString(title))
	for _, v := range c.y.ticks() {
		py := c.py(v)
		c.line("axis", marginLeft, py, chartWidth-marginRight, py)
		c.text(marginLeft-8, py+4, "end", "", c.y.words(v))
	}
	for _, v := range c.x.ticks() {
		px := c.px(v)
		c.line("axis", px, chartHeight-marginBelow, px, chartHeight-marginBelow+5)
		c.text(px, chartHeight-marginBelow+19, "middle", "", c.x.words(v))
	}
	c.text(chartWidth-marginRight, chartHeight-6, "end", "", c.x.name)
	c.text(4, marginTop-14, "start", "", c.y.name)
	return c
}

func (c *chart) px(v float64) float64 {
	return marginLeft + c.x.at(v)*(chartWidth-marginLeft-marginRight)
}

func (c *chart) py(v float64) float64 {
	return chartHeight - marginBelow - c.y.at(v)*(chartHeight-marginTop-marginBelow)
}

func (c *chart) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&c.b, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

func (c *chart) text(x, y float64, anchor, class, words string) {
	fmt.Fprintf(&c.b, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`, x, y, anchor, class, html.EscapeString(words))
}

func (c *chart) dot(p point, class string, radius float64) {
	fmt.Fprintf(&c.b, `<circle class="dot %s" cx="%.1f" cy="%.1f" r="%.1f"><title>%s</title></circle>`, class, c.px(p.X), c.py(p.Y), radius, html.EscapeString(p.Words))
}

func (c *chart) end() string {
	c.b.WriteString(`</svg>`)
	return c.b.String()
}

// seriesClass tells series apart; there are three looks.
func seriesClass(i int) string { return []string{"", "b", "c"}[i%3] }

// legend names the series when there are several, below on the right: a curve that
// rises has left that corner.
func (c *chart) legend(all []series) {
	if len(all) < 2 {
		return
	}
	for i, s := range all {
		y := chartHeight - marginBelow - 12 - 18*float64(len(all)-1-i)
		c.line("curve "+seriesClass(i), chartWidth-270, y-4, chartWidth-240, y-4)
		c.text(chartWidth-232, y, "start", "name", s.Name)
	}
}

// cdfChart shows what part of the trials needs at most so many machines, and where
// the 90th percentile is.
func cdfChart(title string, all []series) string {
	return trialsChart(title, axis{name: "machines"}, 1, all, func(v float64) string { return thousands(int(v)) + " machines" })
}

// overheadChart is cdfChart of percents.
func overheadChart(title string, all []series) string {
	return trialsChart(title, axis{name: "% more machines", text: func(v float64) string { return fmt.Sprintf("%.0f", v) }}, 0.5, all, percentWords)
}

// trialsChart shows what part of the trials comes to at most so much. Beside the
// curves there is so much room at least; words say a value.
func trialsChart(title string, x axis, beside float64, all []series, words func(float64) string) string {
	x.low, x.high = math.Inf(1), math.Inf(-1)
	for _, s := range all {
		for _, p := range s.Points {
			x.low, x.high = min(x.low, p.X), max(x.high, p.X)
		}
	}
	room := max((x.high-x.low)*0.06, beside)
	x.low, x.high = x.low-room, x.high+room
	c := newChart(title, x, axis{high: 100, name: "% of the trials", text: func(v float64) string { return fmt.Sprintf("%.0f", v) }})
	c.line("mark", marginLeft, c.py(90), chartWidth-marginRight, c.py(90))
	for i, s := range all {
		points := slices.SortedFunc(slices.Values(s.Points), func(a, b point) int { return cmp.Compare(a.X, b.X) })
		var path strings.Builder
		fmt.Fprintf(&path, "M%.1f %.1f", c.px(x.low), c.py(0))
		for k, p := range points {
			fmt.Fprintf(&path, "H%.1fV%.1f", c.px(p.X), c.py(100*float64(k+1)/float64(len(points))))
		}
		fmt.Fprintf(&path, "H%.1f", c.px(x.high))
		fmt.Fprintf(&c.b, `<path class="curve %s" d="%s"/>`, seriesClass(i), path.String())
		for k, p := range points {
			p.Y = 100 * float64(k+1) / float64(len(points))
			p.Words = fmt.Sprintf("%s or fewer in %.0f %% of the trials", words(p.X), p.Y)
			c.dot(p, seriesClass(i), 3.5)
		}
	}
	c.legend(all)
	return c.end()
}

// curveChart is a line through points; x is logarithmic.
func curveChart(title, xName, yName string, points []point, text func(float64) string) string {
	if len(points) == 0 {
		return ""
	}
	x, y := axis{low: math.Inf(1), high: math.Inf(-1), log: true, name: xName}, axis{name: yName, text: text}
	for _, p := range points {
		x.low, x.high, y.high = min(x.low, p.X), max(x.high, p.X), max(y.high, p.Y)
	}
	y.high *= 1.08
	c := newChart(title, x, y)
	var path strings.Builder
	for i, p := range points {
		fmt.Fprintf(&path, "%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[i == 0], c.px(p.X), c.py(p.Y))
	}
	fmt.Fprintf(&c.b, `<path class="curve" d="%s"/>`, path.String())
	for _, p := range points {
		c.dot(p, "", 4)
	}
	return c.end()
}

// timeChart is one line or several over hours.
func timeChart(title, yName string, all []series, text func(float64) string) string {
	x, y := axis{name: "hours"}, axis{name: yName, text: text}
	for _, s := range all {
		for _, p := range s.Points {
			x.high, y.high = max(x.high, p.X), max(y.high, p.Y)
		}
	}
	y.high *= 1.08
	c := newChart(title, x, y)
	for i, s := range all {
		var path strings.Builder
		for k, p := range s.Points {
			fmt.Fprintf(&path, "%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[k == 0], c.px(p.X), c.py(p.Y))
		}
		fmt.Fprintf(&c.b, `<path class="curve %s" d="%s"/>`, seriesClass(i), path.String())
		for _, p := range s.Points {
			c.dot(p, seriesClass(i), 1.5)
		}
	}
	c.legend(all)
	return c.end()
}

// Above so many points a cloud is drawn as squares that are the darker, the more
// points are in them: a page has to stay one that a browser opens at once.
const (
	maxDots = 1500
	squares = 48
)

// scatterChart is free CPU against free memory, in percent of each machine. What
// lies at an axis is stranded: one of the two has run out.
func scatterChart(title string, points []point) string {
	percent := func(name string) axis {
		return axis{high: 100, name: name, text: func(v float64) string { return fmt.Sprintf("%.0f", v) }}
	}
	c := newChart(title, percent("% of the CPU free"), percent("% of the memory free"))
	const edge = 5
	fmt.Fprintf(&c.b, `<rect class="shade" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, c.px(0), c.py(100), c.px(edge)-c.px(0), c.py(0)-c.py(100))
	fmt.Fprintf(&c.b, `<rect class="shade" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, c.px(0), c.py(edge), c.px(100)-c.px(0), c.py(0)-c.py(edge))
	if len(points) <= maxDots {
		for _, p := range points {
			c.dot(p, "", 3)
		}
		return c.end()
	}
	var count [squares][squares]int
	most := 0
	for _, p := range points {
		i, k := min(int(p.X*squares/100), squares-1), min(int(p.Y*squares/100), squares-1)
		count[i][k]++
		most = max(most, count[i][k])
	}
	const side = 100.0 / squares
	for i := range squares {
		for k := range squares {
			n := count[i][k]
			if n == 0 {
				continue
			}
			x, y := float64(i)*side, float64(k)*side
			fmt.Fprintf(&c.b, `<rect class="bar" x="%.1f" y="%.1f" width="%.1f" height="%.1f" opacity="%.2f"><title>%s</title></rect>`,
				c.px(x), c.py(y+side), c.px(side)-c.px(0), c.py(0)-c.py(side), 0.12+0.88*math.Sqrt(float64(n)/float64(most)),
				html.EscapeString(numberOf(n, "machine")))
		}
	}
	return c.end()
}

// barChart is one horizontal bar for each name.
func barChart(title string, names []string, counts []int, bad func(i int) bool) string {
	const most, row = 40, 26.0
	names, counts = cut(names, most), cut(counts, most)
	longest, highest := 0, 1
	for i, n := range names {
		longest, highest = max(longest, len([]rune(n))), max(highest, counts[i])
	}
	left := min(20+7.2*float64(longest), chartWidth/2)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, chartWidth, row*float64(len(names))+8, html.EscapeString(title))
	for i, n := range names {
		y := row * float64(i)
		width := max((chartWidth-left-90)*float64(counts[i])/float64(highest), 1)
		class := "bar"
		if bad != nil && bad(i) {
			class = "bar bad"
		}
		fmt.Fprintf(&b, `<text class="name" x="%.1f" y="%.1f" text-anchor="end">%s</text>`, left-8, y+18, html.EscapeString(n))
		fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2"/>`, class, left, y+5, width, row-8)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f">%s</text>`, left+width+8, y+18, thousands(counts[i]))
	}
	b.WriteString(`</svg>`)
	return b.String()
}
