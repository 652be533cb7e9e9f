package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/fauxmaster"
	"borg/fauxmaster/diff"
)

const diffUsage = "diff A B, or diff ARCHIVE --at MOMENT --to MOMENT"

func diffCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "diff",
		Usage:     "say what is different between two moments of a cell",
		ArgsUsage: "CHECKPOINT|ARCHIVE [CHECKPOINT|ARCHIVE]",
		Flags: append([]ucli.Flag{
			&ucli.StringFlag{Name: "at", Usage: "earlier `MOMENT`, of an archive: an index, EPOCH:INDEX, or a time such as 2026-11-21T22:00:00Z"},
			&ucli.StringFlag{Name: "to", Usage: "later `MOMENT`, of an archive (default: its last checkpoint)"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "all", Usage: "list all of them, not only the first of each kind"},
		}, reportFlags()...),
		Action: diffCells,
	}
}

func diffCells(ctx *ucli.Context) error {
	a, b, err := diffPictures(ctx)
	if err != nil {
		return err
	}
	d := diff.Of(a.Cell, b.Cell)
	err = report{
		value: d,
		table: func(w io.Writer) error { return diffTable(w, a, b, d, ctx.Bool("all")) },
		page:  func() *page { return diffPage(b, d) },
	}.write(ctx)
	if err == nil && !d.Empty() {
		return cli.Errorf(cli.Changes, "there are changes")
	}
	return err
}

// diffPictures opens the two moments.
func diffPictures(ctx *ucli.Context) (a, b *fauxmaster.Picture, err error) {
	paths := ctx.Args().Slice()
	if len(paths) < 1 || len(paths) > 2 || len(paths) == 1 && !ctx.IsSet("at") {
		return nil, nil, cli.Errorf(cli.Usage, "want two checkpoints, or an archive and two moments").Hint("fauxmaster %s", diffUsage)
	}
	open := func(path, flag string) (*fauxmaster.Picture, error) {
		m, err := fauxmaster.ParseMoment(ctx.String(flag))
		if err != nil {
			return nil, cli.Errorf(cli.Usage, "--%s: %w", flag, err)
		}
		p, err := fauxmaster.OpenAt(path, m)
		if err != nil {
			return nil, pastError(path, err)
		}
		return p, nil
	}
	if a, err = open(paths[0], "at"); err != nil {
		return nil, nil, err
	}
	if b, err = open(paths[len(paths)-1], "to"); err != nil {
		return nil, nil, err
	}
	return a, b, nil
}

// diffShown is how many of each kind are listed without --all.
const diffShown = 20

func diffTable(w io.Writer, a, b *fauxmaster.Picture, d *diff.Diff, all bool) error {
	fmt.Fprintf(w, "%s\n%s\n", momentWords("from", a), momentWords("to  ", b))
	if d.OtherCell {
		fmt.Fprintln(w, "These are not moments of one cell: objects are compared by their names alone.")
	}
	if d.Empty() {
		fmt.Fprintln(w, "Nothing is different.")
		return nil
	}
	fmt.Fprintln(w)
	c := newColumns(w)
	for _, r := range diffSums(d) {
		c.row(r[0], r[1], r[2])
	}
	if err := c.end(); err != nil {
		return err
	}
	shown := func(n int) int {
		if all {
			return n
		}
		return min(n, diffShown)
	}
	if len(d.Counts) > 0 {
		fmt.Fprintln(w)
		c := newColumns(w)
		for _, n := range d.Counts {
			c.row(thousands(n.Count), fateWords(n.Fate, n.Why))
		}
		if err := c.end(); err != nil {
			return err
		}
	}
	for _, group := range diffGroups(d) {
		if len(group.objects) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", group.title)
		for _, o := range group.objects[:shown(len(group.objects))] {
			fmt.Fprintf(w, "  %s %s%s\n", diffMarks[o.Kind], cli.Visible(o.Name), map[bool]string{true: " (another one)"}[o.Kind == diff.Replaced])
			for _, f := range o.Fields {
				fmt.Fprintf(w, "      %s\n", cli.Visible(fieldWords(f)))
			}
		}
		more(w, len(group.objects), shown(len(group.objects)))
	}
	if len(d.Tasks) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	c = newColumns(w)
	c.row("TASK", "BECAME", "WHY", "FROM", "TO", "COPIES SINCE")
	for _, t := range d.Tasks[:shown(len(d.Tasks))] {
		c.row(t.Task, t.Fate, t.Why, t.From, t.To, t.Attempts)
	}
	if err := c.end(); err != nil {
		return err
	}
	more(w, len(d.Tasks), shown(len(d.Tasks)))
	return nil
}

var diffMarks = map[diff.Kind]string{diff.Added: "+", diff.Removed: "-", diff.Replaced: "!", diff.Changed: "~"}

func more(w io.Writer, all, shown int) {
	if all > shown {
		fmt.Fprintf(w, "  and %s more; --all lists them\n", thousands(all-shown))
	}
}

func momentWords(word string, p *fauxmaster.Picture) string {
	return cli.Visible(fmt.Sprintf("%s cell %s, epoch %d, index %d, %s", word, p.Header.GetCellName(), p.Header.GetEpoch(), p.Header.GetIndex(), wall(p.Header.GetWallTimeNs())))
}

func fateWords(f diff.Fate, why string) string {
	if why == "" {
		return string(f)
	}
	return fmt.Sprintf("%s: %s", f, why)
}

func fieldWords(f diff.Field) string {
	none := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	return fmt.Sprintf("%s: %s → %s", f.Path, none(f.Before), none(f.After))
}

// diffSums are the rows that sum up.
func diffSums(d *diff.Diff) (rows [][3]string) {
	row := func(name string, a, b int) {
		change := ""
		if b != a {
			change = fmt.Sprintf("%+d", b-a)
		}
		rows = append(rows, [3]string{name, thousands(a) + " → " + thousands(b), change})
	}
	row("machines", d.A.Machines, d.B.Machines)
	row("machines up", d.A.Up, d.B.Up)
	row("jobs", d.A.Jobs, d.B.Jobs)
	row("tasks running", d.A.Running, d.B.Running)
	row("tasks pending", d.A.Pending, d.B.Pending)
	row("tasks dead", d.A.Dead, d.B.Dead)
	return rows
}

// diffGroup is what is listed under one title.
type diffGroup struct {
	title   string
	objects []diff.Object
}

func diffGroups(d *diff.Diff) []diffGroup {
	var others []diff.Object
	for _, o := range d.Others {
		others = append(others, diff.Object{Name: o.Of + " " + o.Name, Kind: o.Kind})
	}
	return []diffGroup{
		{"Machines", d.Machines}, {"Jobs", d.Jobs}, {"Alloc sets", d.AllocSets}, {"Users", d.Users}, {"Secrets, files and bans", others},
	}
}

func diffPage(of *fauxmaster.Picture, d *diff.Diff) *page {
	lead := "Nothing is different."
	if !d.Empty() {
		lead = fmt.Sprintf("Something happened to %s; %s, %s are not as they were.", numberOf(len(d.Tasks), "task"),
			numberOf(len(d.Jobs), "job"), numberOf(len(d.Machines), "machine"))
	}
	title := "What changed in " + time.Duration(d.B.WallNs-d.A.WallNs).Round(time.Second).String()
	if d.OtherCell {
		title = "Two cells side by side"
	}
	p := newPage(of, title, lead)
	for _, r := range diffSums(d) {
		p.number(r[0], r[1])
	}
	var names []string
	var counts []int
	for _, n := range d.Counts {
		names, counts = append(names, fateWords(n.Fate, n.Why)), append(counts, n.Count)
	}
	if len(names) > 0 {
		p.chart("Tasks by what became of them", "", barChart("tasks", names, counts, func(i int) bool {
			f := d.Counts[i].Fate
			return f == diff.Evicted || f == diff.Lost || f == diff.Gone
		}))
	}
	for _, group := range diffGroups(d) {
		var rows [][]string
		for _, o := range group.objects {
			var words []string
			for _, f := range o.Fields {
				words = append(words, fieldWords(f))
			}
			rows = append(rows, []string{string(o.Kind), o.Name, strings.Join(words, "; ")})
		}
		p.table(group.title, "", []string{"", "name", "fields"}, rows)
	}
	var rows [][]string
	for _, t := range d.Tasks {
		rows = append(rows, []string{t.Task, string(t.Fate), t.Why, t.From, t.To})
	}
	p.table("Tasks", "", []string{"task", "became", "why", "from", "to"}, rows)
	return p
}
