package cli

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ucli "github.com/urfave/cli/v2"
)

func TestParseDuration(t *testing.T) {
	for _, tt := range []struct {
		text string
		want time.Duration
		ok   bool
	}{
		{"2d", 48 * time.Hour, true}, {"1d12h", 36 * time.Hour, true}, {"1.5d", 36 * time.Hour, true}, {"-1d", -24 * time.Hour, true},
		{"0d", 0, true}, {"90m", 90 * time.Minute, true}, {"0", 0, true}, {"d", 0, false}, {"2", 0, false}, {"2day", 0, false},
	} {
		if got, err := ParseDuration(tt.text); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", tt.text, got, err, tt.want)
		}
	}
}

// TestDaysEverywhere: a flag that takes a time takes days, on the command line, after a
// command, and in a configuration file; the complaint about a wrong one names what was typed.
func TestDaysEverywhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("for: 4d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, want string }{
		{"serve --for 2d", "48h0m0s"}, {"serve --for=2d", "48h0m0s"}, {"--wait 1d serve --for 3h", "3h0m0s"},
		{"serve --config " + path, "96h0m0s"},
		{"serve --for 2dd", "borgtest: --for cannot be \"2dd\"\n  a time span is such as 90s, 5m, 1h30m or 2d\n  see: borgtest serve --help\n"},
		{"serve --for 90", "borgtest: --for cannot be \"90\"\n  a unit is missing: write --for 90s for seconds, or 90m, 90h, 90d\n  see: borgtest serve --help\n"},
	} {
		var got string
		var out bytes.Buffer
		app := &ucli.App{Name: "borgtest", Flags: []ucli.Flag{&ucli.DurationFlag{Name: "wait"}}, Commands: []*ucli.Command{{
			Name: "serve", Before: ApplyConfig,
			Flags: append(DaemonFlags("/d", "/r", "l:1"), &ucli.DurationFlag{Name: "for"}),
			Action: func(ctx *ucli.Context) error {
				got = ctx.Duration("for").String()
				return nil
			},
		}}}
		if code := Run(context.Background(), app, append([]string{"borgtest"}, strings.Fields(tt.args)...), &out, &out); code != OK {
			got = out.String()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.args, got, tt.want)
		}
	}
}

// TestProgramsReadTimesHere: no program has a reader of times of its own, which would know
// no days.
func TestProgramsReadTimesHere(t *testing.T) {
	err := filepath.WalkDir("../cmd", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte("time.ParseDuration(")) {
			t.Errorf("%s: use cli.ParseDuration", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
