package main

import (
	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/watch"
	"borg/cli"
)

// watchFlags say how much a replica keeps for watches.
func watchFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.Uint64Flag{Name: "watch-changes", Value: watch.DefaultChanges, Usage: "keep the last `N` changes for watches that are resumed"},
		&ucli.Uint64Flag{Name: "watch-mib", Value: watch.DefaultBytes >> 20, Usage: "keep of them at most `N` MiB"},
		&ucli.DurationFlag{Name: "watch-keep", Usage: "keep no changes that are older than this `TIME`; 0: of any age"},
		&ucli.Uint64Flag{Name: "watch-queue", Value: watch.DefaultQueueChanges, Usage: "cut off a watch for which more than `N` changes wait"},
	}
}

// watchConfig reads them.
func watchConfig(ctx *ucli.Context) (c watch.Config, err error) {
	const maxChanges, maxMiB = 100_000_000, 1 << 20
	changes, mib, keep := ctx.Uint64("watch-changes"), ctx.Uint64("watch-mib"), ctx.Duration("watch-keep")
	queue := ctx.Uint64("watch-queue")
	switch {
	case changes == 0 || changes > maxChanges:
		return c, cli.Errorf(cli.Usage, "--watch-changes %d: want 1 to %d", changes, maxChanges)
	case mib == 0 || mib > maxMiB:
		return c, cli.Errorf(cli.Usage, "--watch-mib %d: want 1 to %d", mib, maxMiB)
	case queue == 0 || queue > maxChanges:
		return c, cli.Errorf(cli.Usage, "--watch-queue %d: want 1 to %d", queue, maxChanges)
	case keep < 0:
		return c, cli.Errorf(cli.Usage, "--watch-keep %s: want zero or more", keep)
	}
	return watch.Config{Changes: int(changes), Bytes: int(mib) << 20, KeepNs: int64(keep), QueueChanges: int(queue)}, nil
}
