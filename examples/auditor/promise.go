package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// promise is something that the documentation says of every cell and that can
// be seen to be kept or broken from outside.
type promise struct {
	name string
	says string
	page string // file, from the root of the tree
	at   string // heading of the page, or words of the .proto file
}

// promises is the table that is printed, and that docs/auditor.md shows.
var promises = []promise{
	{"acknowledged", "what was acknowledged is done, and stays", "README.md", "What works, and what shows it"},
	{"once", "a request is done once, and a retry is answered alike", "docs/borgcfg.md", "Which cell, and who asks"},
	{"refused", "a refusal has its kind and changes nothing", "docs/master.md", "Who answers what"},
	{"errors", "an error has a code that the page names", "docs/master.md", "Who answers what"},
	{"fresh", "an answer has all that was committed when it was asked for", "docs/master.md", "Who answers what"},
	{"order", "what is asked later is later in the log", "proto/borgpb/op.proto", "Log index at which it was applied"},
	{"uid", "a uid tells where it was made and is never used again", "proto/borgpb/meta.proto", "never used again"},
	{"version", "a version counts the changes of a spec, and never goes back", "proto/borgpb/meta.proto", "Counts the changes of the spec"},
	{"dead", "what is dead stays dead", "proto/borgpb/job.proto", "tasks that will not run again"},
	{"ended", "in the end nothing runs of a job that was killed", "proto/borgpb/op.proto", "ends all tasks of a job"},
	{"counts", "the figures of a job add up to its tasks", "proto/borgpb/job.proto", "JobStatus sums up the tasks"},
	{"lists", "lists are whole, ordered and hold what was asked for", "proto/borgrpc/master.proto", "all that is given must hold"},
	{"same-log", "at one log index every replica says the same", "README.md", "What works, and what shows it"},
	{"figures", "the figures of the cell are those of the index that it says", "proto/borgrpc/master.proto", "Log index up to which it has applied"},
	{"elected", "one replica at most is elected in a term", "docs/master.md", "The borgmaster"},
	{"time", "cell time never goes back", "proto/borgpb/op.proto", "Never goes back"},
	{"attempts", "attempts of a task are counted from 1 and only grow", "proto/borgpb/job.proto", "Counted by the log from 1"},
	{"one-place", "a task has one machine while it runs, and none while it waits", "proto/borgpb/job.proto", "Empty while pending"},
	{"copy", "a copy keeps its machine, its ports, and its process until it is started again", "docs/borglet.md", "What may die"},
	{"undisturbed", "what runs for ever is never ended by a failure of ours", "docs/run-a-real-cell.md", "No failure of the masters ends a task"},
	{"cause", "a copy is stopped only for a cause, and that cause was given", "proto/borgpb/job.proto", "nothing else stops a task"},
	{"capacity", "the limits on a machine are within its capacity", "proto/borgpb/machine.proto", "What tasks may use in all"},
	{"sums", "a machine's limits are the sum of the copies on it", "proto/borgpb/machine.proto", "Sum of what is placed on it"},
	{"ports", "granted ports are as many as asked for, in range, and of one copy only", "proto/borgpb/job.proto", "each is granted at placement"},
	{"constraints", "a task is where its hard constraints hold", "proto/borgpb/meta.proto", "A hard constraint must hold"},
	{"spread", "max_per_machine and max_running hold", "proto/borgpb/job.proto", "At most so many tasks"},
	{"drain", "nothing is placed on a machine that drains or is down", "proto/borgpb/machine.proto", "Takes no new tasks"},
	{"unfit", "what fits nowhere waits, and why counts every machine once", "docs/scheduling.md", "Why does it wait?"},
	{"settles", "in the end what is wanted runs, as it was last asked for", "docs/borgcfg.md", "Run something"},
	{"exits", "a batch task ends with its own exit code, after max_failures more tries", "proto/borgpb/job.proto", "how many times one task may fail"},
	{"output", "what a task wrote is what logs shows", "docs/borgcfg.md", "Look at it"},
	{"events", "events come in order, once, none left out", "proto/borgrpc/master.proto", "In the order in which they happened"},
	{"told", "every submit, kill and drain is told as an event at its index", "proto/borgpb/op.proto", "Log index of the entry that brought it about"},
	{"permission", "who may not is refused, and nothing changes", "docs/run-a-real-cell.md", "Masters"},
	{"limits", "up to a limit is taken, beyond it refused", "docs/limits.md", "The cell"},
}

// maxDetails bounds what is printed of the violations of one promise.
const maxDetails = 10

type verdict struct {
	checks, violations int
	details            []string // of the first maxDetails violations
}

// verdicts counts what was checked, by the name of the promise.
type verdicts map[string]*verdict

func newVerdicts() verdicts {
	v := make(verdicts)
	for _, p := range promises {
		v[p.name] = &verdict{}
	}
	return v
}

// check counts one check of a promise, and a violation unless ok.
func (v verdicts) check(name string, ok bool, format string, args ...any) {
	of, known := v[name]
	if !known {
		panic("no promise is called " + name)
	}
	of.checks++
	if ok {
		return
	}
	of.violations++
	if len(of.details) < maxDetails {
		of.details = append(of.details, fmt.Sprintf(format, args...))
	}
}

func (v verdicts) violations() (n int) {
	for _, of := range v {
		n += of.violations
	}
	return n
}

// print writes the table, then what is known of each violation.
func (v verdicts) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROMISE\tCHECKS\tVIOLATIONS\tMADE BY\tSAYS")
	for _, p := range promises {
		of := v[p.name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%s: %s\t%s\n", p.name, of.checks, of.violations, p.page, p.at, p.says)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, p := range promises {
		of := v[p.name]
		for _, text := range of.details {
			fmt.Fprintf(out, "violation of %s: %s\n", p.name, text)
		}
		if more := of.violations - len(of.details); more > 0 {
			fmt.Fprintf(out, "violation of %s: %d more\n", p.name, more)
		}
	}
	return nil
}
