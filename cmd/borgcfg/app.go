package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
)

// console is where the program reads its surroundings and writes.
type console struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            func(string) string
	// Standard output and standard error are terminals.
	terminal, errTerminal bool
	// The command line, with the program.
	args []string
	// So is standard input.
	inTerminal bool
}

// run runs one command line and returns the exit code.
func run(ctx context.Context, args []string, con *console) int {
	con.args = args
	return cli.Run(ctx, newApp(con), args, con.stdout, con.stderr)
}

func newApp(con *console) *ucli.App {
	return &ucli.App{
		Name:      "borgcfg",
		Usage:     "describe jobs to a Borg cell, and ask it what becomes of them",
		UsageText: "borgcfg [flags] COMMAND [flags] [arguments]",
		Description: "JOB is NAME (your own) or USER/NAME; TASK is NAME/INDEX or USER/NAME/INDEX.\n" +
			"The cell is found by --cell, $BORG_CELL, ./.borg/cell.yaml, or the user's\n" +
			"configuration, in that order; `borgcfg config view` tells which one it is.",
		// A parameter's value may have commas.
		DisableSliceFlagSeparator: true,
		HideVersion:               true,
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "cell", Usage: "`CELL`: path of a cell file, host:port[,host:port], or a name in the user's configuration"},
			&ucli.StringFlag{Name: "identity", Usage: "`FILE` with the certificate to show (default: $BORG_IDENTITY, then the one that the cell file names)"},
			&ucli.StringFlag{Name: "user", Usage: "`USER` whose jobs are meant where none is named (default: $BORG_USER, then the user in the certificate)"},
			&ucli.DurationFlag{DefaultText: "30s for a call, as long as it takes for --wait", Name: "timeout", Usage: "give up after `DURATION`"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "quiet", Aliases: []string{"q"}, Usage: "no progress and no hints"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "verbose", Aliases: []string{"v"}, Usage: "tell of each try to reach a master"},
			&ucli.StringFlag{Name: "color", Value: "auto", Usage: "auto, always or never; $NO_COLOR means never"},
		},
		Commands: commands(con),
		Action: func(ctx *ucli.Context) error {
			if ctx.NArg() > 0 {
				return cli.Errorf(cli.Usage, "unknown command %q", ctx.Args().First()).Hint("see: borgcfg --help")
			}
			return ucli.ShowAppHelp(ctx)
		},
	}
}

func outputFlag() ucli.Flag {
	return &ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: table, wide, json, yaml or name"}
}

// dryOutputFlag is of a command that shows a plan, but only with --dry-run.
func dryOutputFlag() ucli.Flag {
	return &ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "with --dry-run: `FORMAT`, as of diff"}
}

func selectorFlag(what string) ucli.Flag {
	return &ucli.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "only " + what + " with these labels: `SELECTOR` such as tier=front,!canary"}
}

func waitFlag(usage string) ucli.Flag {
	return &ucli.BoolFlag{DisableDefaultText: true, Name: "wait", Usage: usage}
}

// yesFlag is of commands that refuse what is mostly a mistake.
func yesFlag(usage string) ucli.Flag {
	return &ucli.BoolFlag{DisableDefaultText: true, Name: "yes", Usage: usage}
}

func reasonFlag() ucli.Flag {
	return &ucli.StringFlag{Name: "reason", Usage: "`WHY`, for the record"}
}

func fileFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringSliceFlag{Name: "set", Usage: "give the file's parameter a value: `NAME=VALUE`; may be repeated"},
		&ucli.StringFlag{Name: "root", Usage: "`DIRECTORY` that loaded files may come from (default: that of the file)"},
	}
}

// exactFlag is of the commands that compare files with the cell.
func exactFlag() ucli.Flag {
	return &ucli.BoolFlag{DisableDefaultText: true, Name: "exactly", Usage: "undo what was changed in the cell since the last up or update and is as it was in the file: resizes, labels, annotations"}
}

// pruneFlag is of the commands that make the cell be as the files say.
func pruneFlag() ucli.Flag {
	return &ucli.StringFlag{Name: "prune", Usage: "end what has these labels, is of a user of the files, and is not in them: `SELECTOR` such as app=shop"}
}

// command makes a command whose arguments are counted before it runs: least to
// most, most < 0: any number.
func command(con *console, name, usage, args string, least, most int, run func(*session) error, flags ...ucli.Flag) *ucli.Command {
	return &ucli.Command{
		Name: name, Usage: usage, ArgsUsage: args, Flags: flags,
		Action: func(ctx *ucli.Context) error {
			n := ctx.NArg()
			if n < least || (most >= 0 && n > most) {
				what := "needs " + args
				if n > 0 && most >= 0 && n > most {
					what = fmt.Sprintf("takes %s, and %q is too much", orNothing(args), ctx.Args().Get(most))
				}
				e := cli.Errorf(cli.Usage, "%s %s", ctx.Command.HelpName, what)
				if near := nearSub(ctx.Command, ctx.Args().First()); near != "" {
					return e.Hint("did you mean: %s %s?", ctx.Command.HelpName, near)
				}
				return e.Hint("see: %s --help", ctx.Command.HelpName)
			}
			s, err := newSession(ctx, con)
			if err != nil {
				return err
			}
			defer s.close()
			return s.typedError(s.explain(run(s)))
		},
	}
}

// nearSub is the command under another one whose name is like what was typed; empty: none.
func nearSub(c *ucli.Command, typed string) string {
	var names []string
	for _, sub := range c.Subcommands {
		names = append(names, sub.Name)
	}
	return cli.Nearest(typed, names)
}

func orNothing(args string) string {
	if args == "" {
		return "no arguments"
	}
	return args
}

func group(name, usage string, subs ...*ucli.Command) *ucli.Command {
	return &ucli.Command{Name: name, Usage: usage, Subcommands: subs, Action: func(ctx *ucli.Context) error {
		return cli.Errorf(cli.Usage, "%s needs a command", ctx.Command.HelpName).Hint("see: %s --help", ctx.Command.HelpName)
	}}
}

// commands are in the order of the help: the groups by the alphabet.
func commands(con *console) []*ucli.Command {
	return slices.Concat(
		category("Jobs", jobCommands(con)),
		category("Looking", lookCommands(con)),
		category("Machines", []*ucli.Command{machineCommands(con), outageCommands(con), packageCommands(con)}),
		category("The cell", cellCommands(con)),
		category("Users", userCommands(con)),
	)
}

// category puts commands below a heading of the help.
func category(name string, commands []*ucli.Command) []*ucli.Command {
	for _, c := range commands {
		c.Category = name
	}
	return commands
}

func jobCommands(con *console) []*ucli.Command {
	with := func(base []ucli.Flag, more ...ucli.Flag) []ucli.Flag { return append(base, more...) }
	return slices.Concat([]*ucli.Command{
		command(con, "eval", "evaluate a job file and print what it says", "FILE", 1, 1, evalFile, with(fileFlags(), outputFlag(),
			&ucli.StringFlag{Name: "explain", Usage: "tell where the value at `PATH` comes from, such as task.resources.mem"})...),
		command(con, "diff", "say what up would change; exit code 10 when there is something", "FILE...", 1, -1, diffFiles, with(fileFlags(), outputFlag(), exactFlag(), pruneFlag())...),
		command(con, "up", "make it so: create what is missing, update what differs", "FILE...", 1, -1, upFiles, with(fileFlags(),
			&ucli.BoolFlag{DisableDefaultText: true, Name: "dry-run", Usage: "say what would be done, and do nothing"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "again", Usage: "run batch jobs again that have finished or failed"},
			dryOutputFlag(), exactFlag(), pruneFlag(),
			reasonFlag(), waitFlag("wait until it runs; for batch jobs, until it has finished"))...),
		updateCommand(con, with(fileFlags(), exactFlag(), reasonFlag(), waitFlag("watch it roll until it is done (default on a terminal)"))),
		command(con, "resize", "change the number of tasks of a job, or of allocs of an alloc set", "JOB|ALLOCSET N", 2, 2, resizeJob, reasonFlag(), waitFlag("wait until it has that many")),
		command(con, "down", "end jobs and alloc sets", "FILE|JOB...", 1, -1, down, with(fileFlags(), reasonFlag(), waitFlag("wait until the last process is gone"),
			yesFlag("end alloc sets also when jobs run in them that are to go on"))...),
		cronCommands(con),
		command(con, "note", "(in a task) tell people what you are at; no text: nothing any more", "[TEXT]", 0, 1, setNote,
			&ucli.StringSliceFlag{Name: "annotation", Usage: "`KEY=VALUE` for programs; may be repeated"}),
	}, labelCommands(con), quarantineCommands(con))
}

func lookCommands(con *console) []*ucli.Command {
	return []*ucli.Command{
		command(con, "status", "tell how the cell is, or a job", "[JOB]", 0, 1, status, outputFlag(), selectorFlag("jobs"),
			&ucli.BoolFlag{DisableDefaultText: true, Name: "all", Aliases: []string{"a"}, Usage: "every dead job too"}),
		command(con, "tasks", "list tasks", "[JOB]", 0, 1, tasks, outputFlag(), selectorFlag("tasks of jobs"),
			&ucli.BoolFlag{DisableDefaultText: true, Name: "attempts", Usage: "earlier copies of each task too"},
			&ucli.StringFlag{Name: "machine", Usage: "only tasks on this `MACHINE`"}),
		group("alloc", "places held on machines", command(con, "list", "list alloc sets, or the allocs of one", "[ALLOCSET]", 0, 1, allocList, outputFlag(), selectorFlag("sets"))),
		command(con, "why", "say why a task, an alloc, or those of a job wait, or where one runs", "TASK|ALLOC|JOB|ALLOCSET", 1, 1, why, outputFlag()),
		command(con, "logs", "print what a task wrote, or all tasks of a job by time", "TASK|JOB", 1, 1, logs,
			&ucli.BoolFlag{DisableDefaultText: true, Name: "follow", Aliases: []string{"f"}, Usage: "go on as it writes"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "stderr", Usage: "its standard error instead of its standard output"},
			&ucli.Uint64Flag{Name: "attempt", Usage: "of an earlier copy of the task, by `NUMBER`"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "previous", Aliases: []string{"p"}, Usage: "of the run before the last one"},
			&ucli.StringFlag{Name: "since", Usage: "from `TIME` on, to a second: 10m, 2h, or 2026-11-21T22:00:00Z"},
			&ucli.IntFlag{Name: "max-tasks", Value: 50, Usage: "of a job with more than `N` tasks nothing is read"},
			&ucli.StringFlag{Name: "tail", Usage: "only the last `BYTES`, such as 4096 or 64KiB, from the start of a line"}),
		command(con, "exec", "run a program in a task that runs, beside its own; exit code as the program's", "TASK -- PROGRAM [ARGUMENT...]", 2, -1, execTask,
			&ucli.Uint64Flag{Name: "attempt", Usage: "in a copy in quarantine, by `NUMBER`"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "stdin", Aliases: []string{"i"}, Usage: "give it what comes in here"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "terminal", Aliases: []string{"t", "it"}, Usage: "give it this terminal"}),
		eventsCommand(con),
		command(con, "watch", "show what there is, and then every change of it as it comes", "jobs|tasks|machines|allocs|allocsets [JOB|SET|MACHINE]", 1, 2, watchObjects, outputFlag(),
			&ucli.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "only with these labels, of machines also attributes: `SELECTOR` such as tier=front,!canary"},
			&ucli.StringFlag{Name: "owner", Usage: "only of this `USER`"},
			&ucli.Uint64Flag{Name: "from", Usage: "not what there is, but only changes after this `INDEX` of the log"}),
		command(con, "resolve", "tell where a task is, or the tasks of a job: machine, address, ports", "JOB|TASK", 1, 1, resolveName, outputFlag()),
		command(con, "audit", "tell who did what, when, by which command, why, and what came of it", "[JOB|MACHINE|USER]", 0, 1, auditTrail, outputFlag(),
			&ucli.StringFlag{Name: "by", Usage: "only what this `USER` did"},
			&ucli.StringFlag{Name: "verb", Usage: "only what begins with `VERB`, such as submit-job or kill; one that there is not is answered with all that there are"},
			&ucli.StringFlag{Name: "since", Usage: "from `TIME` on: 2h, 3d, or 2026-11-21T22:00:00Z"},
			&ucli.StringFlag{Name: "until", Usage: "before `TIME`"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "refused", Usage: "only what was refused"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "all", Usage: "with what masters, schedulers and borglets asked for by themselves, which --verb shows as well"},
			&ucli.Uint64Flag{Name: "last", Usage: "at most `N` of the newest (default: 50; all with -o json, --since or --until)"}),
	}
}

func cellCommands(con *console) []*ucli.Command {
	return []*ucli.Command{
		checkpointCommands(con),
		restoreCommands(con),
		masterCommands(con),
		policyCommands(con),
		command(con, "doctor", "ask every master what is wrong with the cell, or soon will be", "", 0, 0, doctor, outputFlag()),
		group("config", "the cell that is meant", command(con, "view", "tell which cell is meant and where that was found", "", 0, 0, configView, outputFlag())),
		command(con, "version", "tell which build this is", "", 0, 0, version, outputFlag()),
	}
}

func userCommands(con *console) []*ucli.Command {
	return []*ucli.Command{
		command(con, "login", "become a user of a cell with a token that an admin made", "TOKEN|FILE|MASTERS", 1, 1, login,
			&ucli.StringFlag{Name: "certificate", Usage: "instead of with a token: `FILE` of a certificate that another authority issued, PEM; the argument is then host:port[,host:port] of masters"},
			&ucli.StringFlag{Name: "key", Usage: "`FILE` of its key"},
			&ucli.StringFlag{Name: "authority", Usage: "`FILE` of the cell's authority, by which the masters are believed: borgmaster authority certificates"}),
		command(con, "whoami", "tell who you are to the cell, and what you may do", "", 0, 0, whoami, outputFlag()),
		command(con, "can-i", "tell whether you may do something: yes, or no with exit code 8", "VERB [OBJECT]", 1, 2, canI, append(fileFlags(), outputFlag())...),
		command(con, "grant", "give a user a capability", "USER CAPABILITY", 2, 2, grant, reasonFlag()),
		command(con, "revoke", "take a capability from a user", "USER CAPABILITY", 2, 2, revoke, reasonFlag()),
		group("user", "the users of the cell",
			command(con, "add", "make a token with which somebody becomes a user, once", "USER", 1, 1, userAdd, reasonFlag()),
			command(con, "list", "list the users who were granted or revoked something", "", 0, 0, userList, outputFlag()),
			command(con, "revoke", "make all certificates that a user has worthless", "USER", 1, 1, userRevoke, reasonFlag(),
				yesFlag("also your own, which locks you out"))),
		quotaCommands(con),
		secretCommands(con),
		volumeCommands(con),
		fileCommands(con),
	}
}

func machineCommands(con *console) *ucli.Command {
	return group("machine", "the machines of the cell",
		command(con, "list", "list machines", "[MACHINE]", 0, 1, machineList, outputFlag(),
			&ucli.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "only those with these labels: `a=b,c!=d`"}),
		command(con, "add", "take the machine of the borglet at an address into the cell", "ADDRESS", 1, 1, machineAdd, reasonFlag(),
			&ucli.StringFlag{Name: "name", Usage: "`NAME` of the machine (default: what its borglet says)"},
			&ucli.StringSliceFlag{Name: "label", Usage: "`KEY=VALUE`; may be repeated"},
			&ucli.StringSliceFlag{Name: "attribute", Usage: "`KEY=VALUE` for constraints; may be repeated"}),
		command(con, "invite", "make a token with which the borglet of a machine joins the cell, once", "MACHINE", 1, 1, machineInvite, reasonFlag()),
		command(con, "remove", "take a machine out of the cell", "MACHINE", 1, 1, machineRemove, reasonFlag(),
			&ucli.BoolFlag{DisableDefaultText: true, Name: "force", Usage: "even if it still holds tasks"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "give-up-volumes", Usage: "even if there are volumes on it: what is in them is lost"}),
		command(con, "set", "change attributes: key=value sets, key- removes", "MACHINE KEY=VALUE|KEY-...", 2, -1, machineSet, reasonFlag()),
		command(con, "taint", "keep tasks away: key, key=value, with :evict or :prefer-not; key- removes", "MACHINE TAINT|KEY-...", 2, -1, machineTaint, reasonFlag()),
		command(con, "drain", "place nothing more on machines and move their tasks away, as disruption budgets allow", "MACHINE...", 0, -1, machineDrain, reasonFlag(),
			&ucli.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "instead of naming them, those with these labels or attributes: `rack=r1,c!=d`"},
			&ucli.DurationFlag{Name: "deadline", DefaultText: "none", Usage: "whatever budgets say, empty after `DURATION`"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "now", Usage: "whatever budgets say, at once"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "give-up-volumes", Usage: "volumes hold nothing back, and what is in them is lost"},
			waitFlag("wait until they are empty")),
		command(con, "drains", "tell how far drains have come, and which tasks wait for what", "[MACHINE]", 0, 1, machineDrains, outputFlag()),
		command(con, "safe-to-drain", "tell which machines can go now: budgets let all of their tasks go, and these have places elsewhere", "[MACHINE...]", 0, -1, safeToDrain, outputFlag(),
			&ucli.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "find some among those with these labels or attributes: `rack=r1,c!=d`"},
			&ucli.UintFlag{Name: "count", DefaultText: "20", Usage: "find at most `N`"}),
		command(con, "undrain", "place tasks on machines again", "MACHINE...", 1, -1, machineUndrain, reasonFlag()),
	)
}
