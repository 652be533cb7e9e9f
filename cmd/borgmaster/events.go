package main

import (
	"path/filepath"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/journal"
	"borg/cli"
)

// leastEventsBytes is room for files of some size.
const leastEventsBytes = 16 << 20

// eventsBytes reads how much of what happened is kept.
func eventsBytes(ctx *ucli.Context) (int64, error) {
	if keep := ctx.Duration("events-keep"); keep <= 0 {
		return 0, cli.Errorf(cli.Usage, "--events-keep %s: want more than zero, such as 720h", keep)
	}
	bytes, err := cli.ParseBytes(ctx.String("events-bytes"))
	if err != nil {
		return 0, cli.Errorf(cli.Usage, "--events-bytes %w", err)
	}
	if bytes < leastEventsBytes {
		return 0, cli.Errorf(cli.Usage, "--events-bytes %s: want at least 16MiB", ctx.String("events-bytes"))
	}
	return bytes, nil
}

// openEvents opens what keeps them.
func (s *server) openEvents() (err error) {
	s.journal, err = journal.Open(journal.Config{
		Dir: filepath.Join(s.dir, "events"), Replica: s.identity.Replica, Keep: s.flags.Duration("events-keep"), Bytes: s.eventsBytes, Logger: s.logger,
	})
	return err
}
