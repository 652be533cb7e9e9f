// Mutation measures how much the tests see: it writes small bugs into the
// source, one at a time, and counts how many of them make a test fail.
//
// The bugs are not chosen by hand. Package mutation/plant finds every place
// where one of its operators applies; a sample of them, drawn by -seed, goes
// into one build, and each run switches one on by its number. First every test
// runs once to see which mutants it reaches. A mutant is then run under the tests
// that reach it: those of its own package, then those of others, quickest first,
// then the simulator. It is killed by the first that fails or takes more than
// 10 s plus three times as long as without it.
//
// Results go to -state as they come, so an interrupted run goes on where it
// stopped. Mutants that change nothing anyone could see are listed, with the
// reason, in testdata/equivalent.txt and are not counted.
//
//	go run ./mutation -sample 400 -seed 1 ./...
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

func main() {
	r := &run{}
	flag.IntVar(&r.sample, "sample", 200, "how many mutants are tried; 0: all")
	flag.Uint64Var(&r.seed, "seed", 1, "by which the sample is drawn")
	flag.StringVar(&r.dir, "dir", "bin/mutation", "directory of builds")
	flag.StringVar(&r.state, "state", "bin/mutation.json", "file of results; one that exists is continued")
	flag.StringVar(&r.tags, "tags", "", "build tags")
	flag.StringVar(&r.bench, "bench", "", "file that the scores are merged into")
	flag.IntVar(&r.workers, "parallel", runtime.NumCPU(), "mutants tried at one time")
	flag.DurationVar(&r.others, "others", 2*time.Minute, "time of tests in other packages that are tried for one mutant, as measured without it")
	flag.IntVar(&r.seeds, "sim-seeds", 20, "seeds of the simulator, ten seconds each, that are tried for what is left")
	list := flag.Bool("list", false, "print the sample and try nothing")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: mutation [-sample 200] [-seed 1] [PACKAGES...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if r.patterns = flag.Args(); len(r.patterns) == 0 {
		r.patterns = []string{"./..."}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *list {
		err = r.list(ctx, os.Stdout)
	} else {
		err = r.measure(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}
