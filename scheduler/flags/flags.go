// Package flags is the command-line flags that say how a scheduler searches, for
// all programs that run one: what a program is given, another can be given to
// make the same decisions.
package flags

import (
	"runtime"
	"strconv"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/scheduler"
)

// All are the flags.
func All() []ucli.Flag { return append(append(searchFlags(), Rescheduling()...), churnFlags()...) }

// Config reads them.
func Config(ctx *ucli.Context) (scheduler.Config, error) {
	cfg, err := searchConfig(ctx)
	if err == nil {
		err = Reschedule(ctx, &cfg)
	}
	if err == nil {
		err = churn(ctx, &cfg)
	}
	return cfg, err
}

// Args are the flags as they were given, for another program.
func Args(ctx *ucli.Context) []string {
	return append(append(searchArgs(ctx), rescheduleArgs(ctx)...), churnArgs(ctx)...)
}

// Scoring are the flags that say which place is the best one, alone: for programs
// that only ask a scheduler.
func Scoring() []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringFlag{Name: "policy", Usage: "how the scheduler packs: " + scheduler.PolicyWords() + " (default: hybrid)"},
		&ucli.StringSliceFlag{Name: "weight", Usage: "`PART=POINTS` of the scheduler's score, may be repeated: " + scheduler.WeightWords()},
	}
}

// Score reads Scoring into the configuration of a search.
func Score(ctx *ucli.Context, cfg *scheduler.Config) error {
	return SetScore(cfg, ctx.String("policy"), ctx.StringSlice("weight"))
}

// SetScore is Score of a policy and weights that were given in another way.
func SetScore(cfg *scheduler.Config, policy string, weights []string) error {
	var ok bool
	if cfg.Policy, ok = scheduler.ParsePolicy(policy); !ok {
		return cli.Errorf(cli.Usage, "there is no policy %q; policies: %s", policy, scheduler.PolicyWords())
	}
	cfg.Weights = scheduler.DefaultWeights()
	for _, text := range weights {
		if err := cfg.Weights.Set(text); err != nil {
			return cli.Errorf(cli.Usage, "--weight: %w", err)
		}
	}
	return nil
}

// searchFlags say how places are looked for.
func searchFlags() []ucli.Flag {
	return append(Scoring(),
		&ucli.IntFlag{Name: "threads", Value: runtime.NumCPU(), Usage: "`NUMBER` of threads that share the scheduler's long walks; the choices are the same for any"},
		&ucli.StringFlag{Name: "prefer", Usage: "`KEY=VALUE` of machines that the scheduler prefers, as those already upgraded in a campaign"},
	)
}

// searchConfig reads searchFlags.
func searchConfig(ctx *ucli.Context) (cfg scheduler.Config, err error) {
	if err := Score(ctx, &cfg); err != nil {
		return cfg, err
	}
	if cfg.Threads = ctx.Int("threads"); cfg.Threads < 1 {
		return cfg, cli.Errorf(cli.Usage, "--threads %d: want 1 or more", cfg.Threads)
	}
	if text := ctx.String("prefer"); text != "" {
		if cfg.Prefer, err = scheduler.ParseAttribute(text); err != nil {
			return cfg, cli.Errorf(cli.Usage, "--prefer: %w", err)
		}
	}
	return cfg, nil
}

// searchArgs are searchFlags as they were given.
func searchArgs(ctx *ucli.Context) (args []string) {
	for _, name := range []string{"policy", "prefer"} {
		if text := ctx.String(name); text != "" {
			args = append(args, "--"+name, text)
		}
	}
	for _, text := range ctx.StringSlice("weight") {
		args = append(args, "--weight", text)
	}
	return append(args, "--threads", strconv.Itoa(ctx.Int("threads")))
}

// Rescheduling are the flags that say for what running tasks are moved.
func Rescheduling() []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringFlag{Name: "reschedule", Usage: "for what running tasks are moved, `REASONS` of " + scheduler.RescheduleWords() + ", with commas between them (default: pending)"},
		&ucli.IntFlag{Name: "moves", Usage: "move at most `N` tasks in a minute (default: 20)"},
	}
}

// Reschedule reads Rescheduling into the configuration of a search.
func Reschedule(ctx *ucli.Context, search *scheduler.Config) error {
	var ok bool
	if search.Reschedule, ok = scheduler.ParseReschedule(ctx.String("reschedule")); !ok {
		return cli.Errorf(cli.Usage, "--reschedule %q: want off, or some of %s with commas between them", ctx.String("reschedule"), scheduler.RescheduleWords())
	}
	if search.Moves = ctx.Int("moves"); search.Moves < 0 || search.Moves == 0 && ctx.IsSet("moves") {
		return cli.Errorf(cli.Usage, "--moves %d: want 1 or more; --reschedule off moves none", search.Moves)
	}
	return nil
}

// rescheduleArgs are Rescheduling as the scheduler command takes them.
func rescheduleArgs(ctx *ucli.Context) (args []string) {
	if reasons := ctx.String("reschedule"); reasons != "" {
		args = append(args, "--reschedule", reasons)
	}
	if n := ctx.Int("moves"); n > 0 {
		args = append(args, "--moves", strconv.Itoa(n))
	}
	return args
}
