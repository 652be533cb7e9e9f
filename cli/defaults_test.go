package cli

import (
	"bytes"
	"strings"
	"testing"

	ucli "github.com/urfave/cli/v2"
)

// TestHelpSaysDefaultsOnce: what a usage says of its default takes the place of the zero
// value, and a default that is a value is said as before.
func TestHelpSaysDefaultsOnce(t *testing.T) {
	app := &ucli.App{Name: "borgtest", Commands: []*ucli.Command{{Name: "up", Flags: []ucli.Flag{
		&ucli.Uint64Flag{Name: "moves", Usage: "at most `N` (default: 20)"},
		&ucli.DurationFlag{Name: "lasts", Usage: "`TIME` (default: for ever; see there)"},
		&ucli.IntFlag{Name: "tasks", Value: 3, Usage: "how many"},
	}}}}
	var out bytes.Buffer
	if code := Run(t.Context(), app, []string{"borgtest", "up", "--help"}, &out, &out); code != OK {
		t.Fatalf("exit code %d: %s", code, out.String())
	}
	for _, want := range []string{"at most N (default: 20)\n", "TIME (default: for ever; see there)\n", "how many (default: 3)\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help does not say %q:\n%s", want, out.String())
		}
	}
}
