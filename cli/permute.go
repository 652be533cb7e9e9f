package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"borg/spelling"
)

// level is the program or one command on the way to the one that runs.
type level struct {
	name  string
	flags []ucli.Flag
	// Flag tokens that belong to it, in the order given.
	tokens []string
}

// permute moves flags before arguments, each to the command that runs or, if that does not
// know it, to the program. A command may have arguments and commands of its own: the name of one of
// these is that command. The library takes a flag after an argument as an argument, so that
// `up job.borg --dry-run` would run for real. Whatever still looks like a flag
// is refused; `--` ends the flags. `help COMMAND` is `COMMAND --help`, and whoever
// asks for help gets that and nothing else.
func permute(app *ucli.App, args []string) ([]string, error) {
	levels := []*level{{name: args[0], flags: app.Flags}}
	commands := app.Commands
	path := app.Name
	var positional []string
	// The command so far has arguments of its own besides commands: what is none of
	// these is one of those.
	takesArgs := false
	help := false
	rest := args[1:]
	for len(rest) > 0 {
		token := rest[0]
		rest = rest[1:]
		switch {
		case token == "--":
			positional = append(positional, rest...)
			rest = nil
		case isHelp(token), token == "help" && len(commands) > 0 && len(positional) == 0 && findCommand(commands, token) == nil:
			help = true
		case len(token) > 1 && token[0] == '-':
			used, err := takeFlag(levels, path, token, rest)
			if err != nil {
				return nil, err
			}
			rest = rest[used:]
		case len(commands) > 0 && len(positional) == 0:
			c := findCommand(commands, token)
			if c == nil && takesArgs {
				positional = append(positional, token)
				break
			}
			if c == nil {
				return nil, unknownCommand(path, commands, token)
			}
			if above := levels[len(levels)-1]; len(levels) > 1 && len(above.tokens) > 0 {
				return nil, Errorf(Usage, "flag %s stands before %q, which would ignore it", above.tokens[0], c.Name).Hint("put the flags of %s behind it; see: %s %s --help", c.Name, path, c.Name)
			}
			takesArgs = c.ArgsUsage != ""
			levels = append(levels, &level{name: token, flags: c.Flags})
			commands = c.Subcommands
			path += " " + c.Name
		default:
			positional = append(positional, token)
		}
	}
	if help {
		levels[len(levels)-1].tokens = []string{"--help"}
		positional = nil
	}
	var out []string
	for _, l := range levels {
		out = append(out, l.name)
		out = append(out, l.tokens...)
	}
	if len(positional) > 0 {
		out = append(append(out, "--"), positional...)
	}
	return out, nil
}

// takeFlag hands token, and its value where it takes one, to the level that
// knows it, and returns how many of rest it used.
func takeFlag(levels []*level, path, token string, rest []string) (used int, err error) {
	name, value, hasValue := strings.Cut(strings.TrimLeft(token, "-"), "=")
	for i := len(levels) - 1; i >= 0; i-- {
		if i > 0 && i < len(levels)-1 {
			// The flags of a command are not those of the commands below it.
			continue
		}
		f := findFlag(levels[i].flags, name)
		if f == nil && (i > 0 || (name != "version" && name != "v")) {
			continue
		}
		if f != nil && hasValue {
			token = strings.TrimSuffix(token, value) + plainValue(f, value)
		}
		levels[i].tokens = append(levels[i].tokens, token)
		if f == nil || hasValue || !takesValue(f) {
			return 0, nil
		}
		if len(rest) == 0 {
			return 0, Errorf(Usage, "flag %s needs a value", token).Hint("see: %s --help", path)
		}
		levels[i].tokens = append(levels[i].tokens, plainValue(f, rest[0]))
		return 1, nil
	}
	e := Errorf(Usage, "unknown flag %s for %q", token, path)
	var known []string
	for i, l := range levels {
		if i > 0 && i < len(levels)-1 {
			continue
		}
		for _, f := range l.flags {
			known = append(known, f.Names()...)
		}
	}
	if near := Nearest(name, known); near != "" {
		return 0, e.Hint("did you mean %s?", dashes(near))
	}
	if _, err := strconv.ParseFloat(token, 64); err == nil {
		return 0, e.Hint("a negative number goes after --; flags: %s --help", path)
	}
	return 0, e.Hint("an argument that begins with a dash goes after --; flags: %s --help", path)
}

func isHelp(token string) bool {
	return token == "--help" || token == "-help" || token == "-h" || token == "--h"
}

func dashes(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func findFlag(flags []ucli.Flag, name string) ucli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func takesValue(f ucli.Flag) bool {
	d, ok := f.(ucli.DocGenerationFlag)
	return !ok || d.TakesValue()
}

func findCommand(commands []*ucli.Command, name string) *ucli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// elsewhere maps commands of other cluster managers to those of borgcfg.
var elsewhere = map[string]string{
	"kill":     "borgcfg down JOB",
	"delete":   "borgcfg down JOB",
	"scale":    "borgcfg resize JOB N",
	"ps":       "borgcfg tasks JOB",
	"apply":    "borgcfg up FILE",
	"get":      "borgcfg status",
	"describe": "borgcfg status JOB, and borgcfg why JOB for what waits",
	"top":      "borgcfg status",
}

func unknownCommand(path string, commands []*ucli.Command, name string) error {
	var known []string
	for _, c := range commands {
		if !c.Hidden {
			known = append(known, c.Names()...)
		}
	}
	e := Errorf(Usage, "unknown command %q for %q", name, path)
	if here := elsewhere[name]; here != "" && path == "borgcfg" {
		return e.Hint("here it is: %s", here)
	}
	if near := Nearest(name, known); near != "" {
		return e.Hint("did you mean %q?", fmt.Sprintf("%s %s", path, near))
	}
	return e.Hint("commands: %s", strings.Join(known, ", "))
}

// Nearest returns the one of known that name was probably meant to be, or "".
func Nearest(name string, known []string) string {
	best, bestDistance := "", max(1, len(name)/3)+1
	for _, k := range known {
		if d := spelling.Distance(name, k); d < bestDistance && d < len(name) {
			best, bestDistance = k, d
		}
	}
	return best
}
