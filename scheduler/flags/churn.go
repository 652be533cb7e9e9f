package flags

import (
	"strconv"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/scheduler"
)

// churnFlags say how often tasks of one job may be made to give way.
func churnFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.IntFlag{Name: "churn", Usage: "have at most `N` tasks of one job give way within the churn window, as long as others can, or who wants their place is not production (default: any number)"},
		&ucli.DurationFlag{Name: "churn-window", Usage: "`DURATION` of cell time over which --churn counts (default: 1h)"},
	}
}

// churn reads them into the configuration of a search.
func churn(ctx *ucli.Context, search *scheduler.Config) error {
	search.Churn, search.ChurnWindowNs = ctx.Int("churn"), int64(ctx.Duration("churn-window"))
	switch {
	case search.Churn < 0:
		return cli.Errorf(cli.Usage, "--churn %d: want 1 or more, or 0 for any number", search.Churn)
	case ctx.IsSet("churn-window") && (search.Churn == 0 || search.ChurnWindowNs <= 0):
		return cli.Errorf(cli.Usage, "--churn-window %v: want a time over which --churn N counts", ctx.Duration("churn-window"))
	}
	return nil
}

// churnArgs are the flags as the scheduler command takes them.
func churnArgs(ctx *ucli.Context) (args []string) {
	if n := ctx.Int("churn"); n > 0 {
		args = append(args, "--churn", strconv.Itoa(n))
	}
	if d := ctx.Duration("churn-window"); d > 0 {
		args = append(args, "--churn-window", d.String())
	}
	return args
}
