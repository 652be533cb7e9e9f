// Package cli is what the command lines of all programs share: flags that may
// stand anywhere, errors that say what to type next, exit codes, a daemon's
// flags that may also come from a YAML file, and the logger.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	ucli "github.com/urfave/cli/v2"
)

// Exit codes of all programs.
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	Invalid     = 3 // job file or configuration
	Conflict    = 4 // the object changed meanwhile
	NotFound    = 5
	Refused     = 6 // quota, policy, limits
	Unreachable = 7 // nobody answers, or nobody is elected
	NotAllowed  = 8
	TimedOut    = 9  // still going on
	Changes     = 10 // diff: there are some
	NeedsYou    = 11 // an update waits until somebody promotes or resumes it
	CannotFit   = 12 // accepted, but no machine can hold it
	WentWrong   = 13 // an update failed, was aborted or was rolled back
	Warnings    = 14 // doctor: everything works, and something should be looked at
	Interrupted = 130
)

// Error is an error for people.
type Error struct {
	Code int
	// What went wrong, where and why. May have several lines. Empty: somebody has said
	// it already, and only the code is left to tell.
	What string
	// Next is what to type or do now; may be empty.
	Next string
	// Err is the cause, for errors.Is and errors.As; its text is not printed.
	Err error
}

func (e *Error) Error() string { return e.What }

func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error with an exit code.
func Errorf(code int, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, What: err.Error(), Err: errors.Unwrap(err)}
}

// Hint adds what to do next.
func (e *Error) Hint(format string, args ...any) *Error {
	e.Next = fmt.Sprintf(format, args...)
	return e
}

// Run runs app with args (args[0] is the program), prints an error to stderr,
// and returns the exit code.
func Run(ctx context.Context, app *ucli.App, args []string, stdout, stderr io.Writer) int {
	app.Writer, app.ErrWriter = stdout, stderr
	// Errors come back to here; the library would print and exit by itself.
	app.ExitErrHandler = func(*ucli.Context, error) {}
	app.HideHelpCommand = true
	app.UseShortOptionHandling = false
	refuseUnknown(app)
	args, err := permute(app, args)
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	if err == nil {
		return OK
	}
	return report(app.Name, err, stderr)
}

func report(program string, err error, stderr io.Writer) int {
	var e *Error
	if errors.As(err, &e) {
		if e.What != "" {
			fmt.Fprintf(stderr, "%s: %s\n", program, VisibleLines(e.What))
		}
		if e.Next != "" {
			fmt.Fprintf(stderr, "  %s\n", VisibleLines(strings.ReplaceAll(e.Next, "\n", "\n  ")))
		}
		return e.Code
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintf(stderr, "%s: interrupted\n", program)
		return Interrupted
	}
	fmt.Fprintf(stderr, "%s: %s\n", program, VisibleLines(err.Error()))
	var exit ucli.ExitCoder
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return Failed
}

// refuseUnknown makes unknown commands and wrong flag values usage errors; the
// library would print the whole help, or exit with 3. It tidies the help as well.
func refuseUnknown(app *ucli.App) {
	usage := func(_ *ucli.Context, err error, _ bool) error {
		return (&Error{Code: Usage, What: usageText(err)}).Hint("%ssee: %s --help", valueHint(err, app.Flags), app.Name)
	}
	app.OnUsageError = usage
	sayDefaultOnce(app.Flags)
	var walk func(path string, cmds []*ucli.Command)
	walk = func(path string, cmds []*ucli.Command) {
		for _, c := range cmds {
			c.HideHelpCommand = true
			sayDefaultOnce(c.Flags)
			c.OnUsageError = func(_ *ucli.Context, err error, _ bool) error {
				return (&Error{Code: Usage, What: usageText(err)}).Hint("%ssee: %s %s --help", valueHint(err, c.Flags), path, c.Name)
			}
			walk(path+" "+c.Name, c.Subcommands)
		}
	}
	walk(app.Name, app.Commands)
}

// wrongValue is how the library says that a flag's value cannot be read.
var wrongValue = regexp.MustCompile(`^invalid value ("(?:[^"\\]|\\.)*") for flag -(\S+): (.*)$`)

func usageText(err error) string {
	m := wrongValue.FindStringSubmatch(err.Error())
	if m == nil {
		return err.Error()
	}
	text := fmt.Sprintf("%s cannot be %s", dashes(m[2]), m[1])
	if m[3] != "parse error" {
		text += ": " + m[3]
	}
	return text
}

// valueHint is a line that says how a flag's value is written, or "" if it is not known.
func valueHint(err error, flags []ucli.Flag) string {
	m := wrongValue.FindStringSubmatch(err.Error())
	if m == nil {
		return ""
	}
	at := slices.IndexFunc(flags, func(f ucli.Flag) bool { return slices.Contains(f.Names(), m[2]) })
	value, bad := strconv.Unquote(m[1])
	if at < 0 || bad != nil {
		return ""
	}
	switch flags[at].(type) {
	case *ucli.DurationFlag:
		if n, err := strconv.ParseFloat(value, 64); err == nil && n >= 0 {
			return fmt.Sprintf("a unit is missing: write %s %ss for seconds, or %sm, %sh, %sd\n", dashes(m[2]), value, value, value, value)
		}
		return "a time span is such as 90s, 5m, 1h30m or 2d\n"
	case *ucli.IntFlag, *ucli.Int64Flag:
		return "it is a whole number\n"
	case *ucli.UintFlag, *ucli.Uint64Flag:
		return "it is a whole number, 0 or more\n"
	case *ucli.Float64Flag:
		return "it is a number\n"
	case *ucli.BoolFlag:
		return fmt.Sprintf("write %s alone, or %s=false\n", dashes(m[2]), dashes(m[2]))
	}
	return ""
}
