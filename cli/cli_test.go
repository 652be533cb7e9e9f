package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ucli "github.com/urfave/cli/v2"
)

// testApp prints what it understood, so that a test can tell an argument from
// a flag.
func testApp(t *testing.T, got *string) *ucli.App {
	t.Helper()
	show := func(ctx *ucli.Context) error {
		var b strings.Builder
		b.WriteString(ctx.Command.Name)
		for _, f := range []string{"cell", "dry-run", "set", "n"} {
			if ctx.IsSet(f) {
				b.WriteString(" " + f + "=" + ctx.String(f))
			}
		}
		b.WriteString(" args=" + strings.Join(ctx.Args().Slice(), ","))
		*got = b.String()
		return nil
	}
	return &ucli.App{
		Name:  "borgtest",
		Flags: []ucli.Flag{&ucli.StringFlag{Name: "cell"}},
		Commands: []*ucli.Command{
			{Name: "up", Action: show, Flags: []ucli.Flag{
				&ucli.BoolFlag{Name: "dry-run"}, &ucli.StringFlag{Name: "set"}, &ucli.StringFlag{Name: "n", Aliases: []string{"number"}}, &ucli.IntFlag{Name: "times"},
			}},
			{Name: "machine", Subcommands: []*ucli.Command{{Name: "add", Action: show, Flags: []ucli.Flag{&ucli.StringFlag{Name: "set"}}}}},
			{Name: "turn", ArgsUsage: "FILE", Action: show, Flags: []ucli.Flag{&ucli.StringFlag{Name: "set"}}, Subcommands: []*ucli.Command{{Name: "back", ArgsUsage: "JOB", Action: show}}},
		},
	}
}

func TestFlagsMayStandAnywhere(t *testing.T) {
	tests := []struct {
		args string
		want string
		code int
	}{
		{"up job.borg --dry-run", "up dry-run=true args=job.borg", OK},
		{"up --dry-run job.borg", "up dry-run=true args=job.borg", OK},
		{"up a b --set x=1 c --cell=k", "up cell=k set=x=1 args=a,b,c", OK},
		{"--cell k up a", "up cell=k args=a", OK},
		{"up a -n 3", "up n=3 args=a", OK},
		{"machine add h:1 --set a=b", "add set=a=b args=h:1", OK},
		{"turn a --set x", "turn set=x args=a", OK},
		{"turn back a", "back args=a", OK},
		{"up a -- --dry-run", "up args=a,--dry-run", OK},
		{"up a --dryrun", "borgtest: unknown flag --dryrun for \"borgtest up\"\n  did you mean --dry-run?\n", Usage},
		{"up a -5", "borgtest: unknown flag -5 for \"borgtest up\"\n  a negative number goes after --; flags: borgtest up --help\n", Usage},
		{"up a --set", "borgtest: flag --set needs a value\n  see: borgtest up --help\n", Usage},
		{"machine ad x", "borgtest: unknown command \"ad\" for \"borgtest machine\"\n  did you mean \"borgtest machine add\"?\n", Usage},
		{"up a --help --dryrun", "borgtest: unknown flag --dryrun for \"borgtest up\"\n  did you mean --dry-run?\n", Usage},
		{"up a --times x", "borgtest: --times cannot be \"x\"\n  it is a whole number\n  see: borgtest up --help\n", Usage},
		{"fly", "borgtest: unknown command \"fly\" for \"borgtest\"\n  commands: up, machine, turn\n", Usage},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var got string
			var stdout, stderr bytes.Buffer
			code := Run(context.Background(), testApp(t, &got), append([]string{"borgtest"}, strings.Fields(tt.args)...), &stdout, &stderr)
			if got == "" {
				got = stderr.String()
			}
			if got != tt.want || code != tt.code {
				t.Errorf("Run(%q) = %q, code %d, want %q, code %d", tt.args, got, code, tt.want, tt.code)
			}
		})
	}
}

// TestHelp: whoever asks for help gets it, whatever else is on the line.
func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"help":              "borgtest [global options] command",
		"help up":           "borgtest up [command options]",
		"up --help extra":   "borgtest up [command options]",
		"up -h --dry-run x": "borgtest up [command options]",
		"help machine add":  "borgtest machine add [command options]",
		"machine --help":    "borgtest machine [command options]",
	} {
		var got string
		var stdout, stderr bytes.Buffer
		code := Run(context.Background(), testApp(t, &got), append([]string{"borgtest"}, strings.Fields(args)...), &stdout, &stderr)
		if code != OK || got != "" || stderr.Len() > 0 || !strings.Contains(stdout.String(), want) {
			t.Errorf("Run(%q): code %d, ran %q, %s%s, want help with %q", args, code, got, &stdout, &stderr, want)
		}
	}
}

func TestConfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "borglet.yaml")
	run := func(config string, args ...string) (string, int) {
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		var got string
		var stderr bytes.Buffer
		app := &ucli.App{Name: "borgtest", Commands: []*ucli.Command{{
			Name: "serve", Flags: append(DaemonFlags("/d", "/r", "l:1"), &ucli.StringSliceFlag{Name: "attr"}), Before: ApplyConfig,
			Action: func(ctx *ucli.Context) error {
				got = ctx.String("dir") + " " + ctx.String("listen") + " " + strings.Join(ctx.StringSlice("attr"), ",")
				return nil
			},
		}}}
		code := Run(context.Background(), app, append([]string{"borgtest", "serve", "--config", path}, args...), &stderr, &stderr)
		if code != OK {
			got = strings.ReplaceAll(stderr.String(), path, "FILE")
		}
		return got, code
	}
	tests := []struct {
		name, config string
		args         []string
		want         string
		code         int
	}{
		{"file over default", "dir: /x\nattr: [a=b, c=d]\n", nil, "/x l:1 a=b,c=d", OK},
		{"command line over file", "dir: /x\nlisten: h:2\n", []string{"--dir", "/y"}, "/y h:2 ", OK},
		{"empty file", "", nil, "/d l:1 ", OK},
		{"unknown name", "dir: /x\nlistn: h:2\n", nil, "borgtest: FILE:2:8: unknown name \"listn\"\n  did you mean \"listen\"?\n", Invalid},
		{"wrong shape", "dir: {a: b}\n", nil, "borgtest: FILE:1:6: \"dir\" wants a plain value\n", Invalid},
		{"wrong shape in a list", "attr: [a=b, {c: d}]\n", nil, "borgtest: FILE:1:7: \"attr\" wants a plain value or a list of them\n", Invalid},
		{"list for one value", "dir: [/x, /y]\n", nil, "borgtest: FILE:1:6: \"dir\" wants a plain value\n", Invalid},
		{"nothing for a value", "dir: ~\n", nil, "borgtest: FILE:1:6: \"dir\" wants a plain value\n", Invalid},
		{"two documents", "dir: /x\n---\ndir: /y\n", nil, "borgtest: read configuration FILE: it holds more than one document\n  take out the line ---\n", Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, code := run(tt.config, tt.args...)
			if got != tt.want || code != tt.code {
				t.Errorf("got %q, code %d, want %q, code %d", got, code, tt.want, tt.code)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	known := []string{"status", "tasks", "logs", "dry-run"}
	tests := []struct{ name, want string }{
		{"statsu", "status"}, {"log", "logs"}, {"dryrun", "dry-run"}, {"fly", ""}, {"task", "tasks"},
	}
	for _, tt := range tests {
		if got := Nearest(tt.name, known); got != tt.want {
			t.Errorf("Nearest(%q) = %q, want %q", tt.name, got, tt.want)
		}
	}
}
