package main

import (
	"bytes"
	"fmt"
	"html/template"
	"os"
	"time"

	"borg/cli"
	"borg/fauxmaster"
)

// page is a report that people look at: one file that needs no other, in light
// or dark as the reader's system is.
type page struct {
	Title string
	// Lead says the answer in a sentence.
	Lead string
	// Of is which cell, and when.
	Of       string
	Numbers  []pageNumber
	Sections []pageSection
	Made     string
}

// pageNumber is a figure that is seen first.
type pageNumber struct{ Value, Name string }

// pageSection is a chart or a table, with words.
type pageSection struct {
	Title string
	Words string
	Chart template.HTML
	Head  []string
	Rows  [][]string
	// More rows that are not shown.
	More int
}

// newPage begins a page about a checkpoint.
func newPage(p *fauxmaster.Picture, title, lead string) *page {
	h := p.Header
	return &page{
		Title: title, Lead: lead,
		Of: fmt.Sprintf("cell %s, simulated, as of index %d, %s", h.GetCellName(), h.GetIndex(), wall(h.GetWallTimeNs())),
	}
}

func (p *page) number(name, value string) {
	p.Numbers = append(p.Numbers, pageNumber{value, name})
}

func (p *page) chart(title, words, svg string) {
	// The charts escape every text that they are given.
	p.Sections = append(p.Sections, pageSection{Title: title, Words: words, Chart: template.HTML(svg)})
}

// maxPageRows keeps a page one that a browser opens at once.
const maxPageRows = 1000

func (p *page) table(title, words string, head []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	s := pageSection{Title: title, Words: words, Head: head, Rows: cut(rows, maxPageRows)}
	s.More = len(rows) - len(s.Rows)
	p.Sections = append(p.Sections, s)
}

func (p *page) write(path string) error {
	var b bytes.Buffer
	p.Made = fmt.Sprintf("fauxmaster %s, %s", cli.Build(), time.Now().UTC().Format(time.RFC3339))
	if err := pageTemplate.Execute(&b, p); err != nil {
		return cli.Errorf(cli.Failed, "make the page: %w", err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return cli.Errorf(cli.Failed, "write the page: %w", err)
	}
	return nil
}

var pageTemplate = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{.Title}}</title>
<style>
:root { color-scheme: light dark;
  --page: #f7f7f5; --card: #fff; --ink: #1d2126; --soft: #626a73; --line: #dfe1e4;
  --a: #2563c9; --b: #c2570c; --c: #0b8a6a; --bad: #b3261e; --fill: #2563c922; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171b; --card: #1c2026; --ink: #e6e8eb; --soft: #98a1ab; --line: #323841;
  --a: #7fb0ff; --b: #ffa45c; --c: #4fd1ac; --bad: #ff8a80; --fill: #7fb0ff22; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 0 0 2px; }
p { margin: 0 0 10px; } .of, .words, footer { color: var(--soft); font-size: 13.5px; }
.lead { font-size: 18px; margin: 14px 0 18px; }
.numbers { display: flex; flex-wrap: wrap; gap: 12px; margin-bottom: 20px; }
.numbers div, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.numbers div { padding: 10px 16px; min-width: 110px; }
.numbers b { display: block; font-size: 23px; font-variant-numeric: tabular-nums; line-height: 1.25; }
.numbers span { color: var(--soft); font-size: 13px; }
section { padding: 16px 18px; margin-bottom: 16px; overflow-x: auto; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .name { fill: var(--ink); } svg .axis { stroke: var(--line); } svg .bar { fill: var(--a); } svg .bar.bad { fill: var(--bad); }
svg .curve { fill: none; stroke: var(--a); stroke-width: 2.5; } svg .curve.b { stroke: var(--b); stroke-dasharray: 7 4; } svg .curve.c { stroke: var(--c); stroke-dasharray: 2 4; }
svg .dot { fill: var(--a); } svg .dot.b { fill: var(--b); } svg .dot.c { fill: var(--c); } svg .mark { stroke: var(--bad); stroke-dasharray: 3 4; }
svg .shade { fill: var(--bad); opacity: .08; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th { text-align: left; color: var(--soft); font-weight: 500; } th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:last-child, th:last-child { padding-right: 0; }
</style>
<main>
<h1>{{.Title}}</h1>
<p class="of">{{.Of}}</p>
<p class="lead">{{.Lead}}</p>
{{if .Numbers}}<div class="numbers">{{range .Numbers}}<div><b>{{.Value}}</b><span>{{.Name}}</span></div>{{end}}</div>{{end}}
{{range .Sections}}<section>
<h2>{{.Title}}</h2>
{{if .Words}}<p class="words">{{.Words}}</p>{{end}}
{{.Chart}}
{{if .Head}}<table><thead><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead><tbody>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</tbody></table>{{if .More}}<p class="words">and {{.More}} more</p>{{end}}{{end}}
</section>
{{end}}
<footer>{{.Made}}</footer>
</main>
</html>
`))
