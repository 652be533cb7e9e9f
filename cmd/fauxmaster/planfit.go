package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/cfg"
	"borg/cli"
	"borg/fauxmaster/plan"
)

const fitUsage = "fit CHECKPOINT --job FILE|JOB"

func fitCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "fit",
		Usage:     "how many more of a job fit into a cell",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Flags: slices.Concat(
			jobFlags("job `FILE`, or NAME (your own) or USER/NAME of a job in the cell; several are fitted in together, as sets"),
			[]ucli.Flag{
				&ucli.StringFlag{Name: "only", Usage: "of the file, the job `USER/NAME` alone"},
				&ucli.BoolFlag{Name: "no-preemption", Usage: "count only what fits without evictions"},
				&ucli.StringFlag{Name: "count-per", Usage: "count the places by the machines' `ATTRIBUTE`, such as rack, or by machine"},
				&ucli.StringFlag{Name: "largest", Value: "1,10,100,1000", Usage: "the largest task of that shape that fits so many `TIMES`; empty: do not ask"},
			}, liveFlags(), reportFlags()),
		Action: fitCell,
	}
}

func fitCell(ctx *ucli.Context) error {
	files, named := namesOfJobs(ctx.StringSlice("job"), ownerOf(ctx))
	q, err := fitQuestion(ctx, files, len(named))
	if err != nil {
		return err
	}
	search, err := liveConfig(ctx)
	if err != nil {
		return err
	}
	p, err := openCell(ctx, fitUsage)
	if err != nil {
		return err
	}
	for _, name := range named {
		key, _ := cell.ParseJobKey(name)
		j := p.Cell.Job(key)
		if j == nil {
			return cli.Errorf(cli.NotFound, "%s is no file, and the cell has no job of that name", name).Hint("its jobs: fauxmaster show %s", ctx.Args().First())
		}
		spec := proto.CloneOf(j.Spec())
		spec.Tasks = max(j.Size(), 1)
		q.Jobs = append(q.Jobs, plan.Wanted{User: key.User, Name: key.Name, Spec: spec})
	}
	if err := checkAttribute(p.Cell, q.CountPer); err != nil {
		return err
	}
	a, err := plan.Fit(p.Cell, search, q)
	if err != nil {
		return modelError("fit the job in", err)
	}
	return report{
		value: a,
		table: func(w io.Writer) error { return fitTable(w, q, a) },
		page:  func() *page { return fitPage(p, q, a) },
	}.write(ctx)
}

// checkAttribute refuses to count by an attribute that no machine has.
func checkAttribute(c *cell.Cell, name string) error {
	known := []string{"machine"}
	for m := range c.Machines() {
		for key := range m.Attributes() {
			if !slices.Contains(known, key) {
				known = append(known, key)
			}
		}
	}
	if name == "" || slices.Contains(known, name) {
		return nil
	}
	slices.Sort(known)
	e := cli.Errorf(cli.NotFound, "--count-per %s: no machine has that attribute", name)
	if near := cli.Nearest(name, known); near != "" {
		return e.Hint("did you mean %q?", near)
	}
	return e.Hint("there are: %s", strings.Join(known, ", "))
}

// ownerOf is the user whose job a NAME alone means, found as borgcfg finds it where no
// certificate says it: --user, $BORG_USER, or who runs the program.
func ownerOf(ctx *ucli.Context) string {
	if ctx.IsSet("user") {
		return ctx.String("user")
	}
	name, err := opener(os.Getenv("BORG_USER"))
	if err != nil {
		return ""
	}
	return name
}

// namesOfJobs tells files from names of jobs: USER/NAME, or NAME of the owner, that is no file.
func namesOfJobs(args []string, owner string) (files, names []string) {
	for _, arg := range args {
		_, missing := os.Stat(arg)
		if _, err := cell.ParseJobKey(arg); err == nil && missing != nil {
			names = append(names, arg)
		} else if own := owner + "/" + arg; missing != nil && cfg.DNSLabel(arg) == arg && owner != "" {
			names = append(names, own)
		} else {
			files = append(files, arg)
		}
	}
	return files, names
}

// fitQuestion is what the files and flags ask, beside so many jobs that are named.
func fitQuestion(ctx *ucli.Context, files []string, named int) (q plan.FitQuestion, err error) {
	if len(files)+named == 0 {
		return q, cli.Errorf(cli.Usage, "there is no job to fit in").Hint("fauxmaster %s", fitUsage)
	}
	objects, err := readObjects(ctx, files)
	if err != nil {
		return q, err
	}
	for _, o := range objects {
		if only := ctx.String("only"); only != "" && o.Key() != only {
			continue
		}
		if o.Kind != cfg.KindJob {
			return q, cli.Errorf(cli.Invalid, "%s: %s is an alloc set; fit takes jobs", o.Pos(), o.Key()).Hint("choose one with --only USER/NAME, or use whatif --submit")
		}
		q.Jobs = append(q.Jobs, plan.Wanted{User: o.User, Name: o.Name, Spec: o.Job})
	}
	if len(q.Jobs)+named == 0 {
		return q, cli.Errorf(cli.NotFound, "the files have no job %s", ctx.String("only"))
	}
	q.NoPreemption, q.CountPer = ctx.Bool("no-preemption"), ctx.String("count-per")
	for text := range strings.SplitSeq(ctx.String("largest"), ",") {
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 {
			return q, cli.Errorf(cli.Usage, "--largest: %q is not a number of times", text)
		}
		q.Scales = append(q.Scales, n)
	}
	return q, nil
}

func fitTable(w io.Writer, q plan.FitQuestion, a *plan.FitAnswer) error {
	fmt.Fprintln(w, fitSentence(q, a))
	switch {
	case q.NoPreemption:
	case a.Evicted == 0:
		fmt.Fprintln(w, "No task that runs now is evicted for them.")
	default:
		fmt.Fprintf(w, "For them the cell evicts %s of lower priority; %s of these then wait, as there is no other place for them.\n", numberOf(a.Evicted, "task"), thousands(a.Displaced))
	}
	if a.Moved > 0 {
		fmt.Fprintf(w, "The rescheduler makes room for them with %s of running tasks.\n", numberOf(a.Moved, "move"))
	}
	if words := restedWords(a.Rested); words != "" {
		fmt.Fprintln(w, words)
	}
	if a.Why != "" {
		fmt.Fprintf(w, "One more does not fit: %s.\n", cli.Visible(strings.TrimPrefix(a.Why, "it waits: ")))
	}
	if len(a.Per) > 0 {
		fmt.Fprintln(w)
		c := newColumns(w)
		c.row(strings.ToUpper(q.CountPer), "PLACES")
		for _, n := range a.Per {
			c.row(n.Name, n.Count)
		}
		if err := c.end(); err != nil {
			return err
		}
	}
	if len(a.Largest) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\nThe largest task with the same ratio of CPU to memory of which so many fit into free room, without evictions:\n")
	c := newColumns(w)
	c.row("TASKS", "CPU OF EACH", "MEMORY OF EACH", "SIZE, OF THE ONE ASKED ABOUT")
	for _, l := range a.Largest {
		if l.CPUMilli == 0 && l.MemBytes == 0 || l.CPUMilli == 0 && l.Permille == 0 {
			c.row(l.Copies, "-", "-", "no free room for so many")
			continue
		}
		c.row(l.Copies, cpuWords(l.CPUMilli), bytesWords(l.MemBytes), fmt.Sprintf("%.1f %%", float64(l.Permille)/10))
	}
	return c.end()
}

func fitSentence(q plan.FitQuestion, a *plan.FitAnswer) string {
	var names []string
	for _, j := range q.Jobs {
		names = append(names, j.User+"/"+j.Name)
	}
	count := thousands(a.Count)
	if a.AtLeast {
		count = "at least " + count
	}
	one, many, of := "task", "tasks", names[0]
	if a.Unit == "sets" {
		one, many, of = "set", "sets", strings.Join(names, " and ")
	}
	text := fmt.Sprintf("%s more %s of %s fit", count, many, of)
	if a.Count == 1 {
		text = fmt.Sprintf("%s more %s of %s fits", count, one, of)
	}
	if q.NoPreemption {
		text += " without evictions"
	}
	return text + "."
}

// restedWords says what the cell does by itself before anything is asked of it; empty:
// nothing.
func restedWords(r plan.Rested) string {
	if r.Waited == 0 && r.Moved == 0 {
		return ""
	}
	text := fmt.Sprintf("Before that, %s of the %s that wait in the cell and may be placed now would be placed", thousands(r.Placed), numberOf(r.Waited, "task"))
	if r.Displaced > 0 {
		text += fmt.Sprintf(", and %s that run would lose their places to them", numberOf(r.Displaced, "task"))
	}
	if r.Moved > 0 {
		text += fmt.Sprintf(", with %s of the rescheduler", numberOf(r.Moved, "move"))
	}
	return text + fmt.Sprintf("; then %s wait.", thousands(r.Waiting))
}
