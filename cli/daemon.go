package cli

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sort"

	ucli "github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
)

// DaemonFlags are the flags that all daemons have, with their defaults.
func DaemonFlags(dir, runDir, listen string) []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringFlag{Name: "dir", Value: dir, Usage: "`DIRECTORY` of what must survive a reboot"},
		&ucli.StringFlag{Name: "run-dir", Value: runDir, Usage: "`DIRECTORY` of sockets and run-time state"},
		&ucli.StringFlag{Name: "listen", Value: listen, Usage: "`ADDRESS` (host:port) to serve on"},
		HTTPFlag(),
		&ucli.StringFlag{Name: "log-level", Value: "info", Usage: "debug, info, warn or error"},
		&ucli.StringFlag{Name: "log-format", Usage: "text or json (default: text on a terminal, json elsewhere)"},
		&ucli.StringFlag{Name: "config", Usage: "YAML `FILE` with the same names as the flags; the command line wins"},
	}
}

// HTTPFlag says where a program shows its status page and metrics.
func HTTPFlag() ucli.Flag {
	return &ucli.StringFlag{Name: "http", Usage: "`ADDRESS` (host:port) of the status page and of metrics: in plain text on 127.0.0.1 or [::1], over TLS to who has a certificate of the cell elsewhere (default: nowhere)"}
}

// StateDir is where a program keeps what must survive a reboot: below
// /var/lib/borg for root, below the user's state directory otherwise.
func StateDir(elem ...string) string {
	if os.Getuid() == 0 {
		return filepath.Join(append([]string{"/var/lib/borg"}, elem...)...)
	}
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		base = filepath.Join(os.Getenv("HOME"), ".local", "state")
	}
	return filepath.Join(append([]string{base, "borg"}, elem...)...)
}

// RunDir is where a program keeps sockets and run-time state.
func RunDir(elem ...string) string {
	if os.Getuid() == 0 {
		return filepath.Join(append([]string{"/run/borg"}, elem...)...)
	}
	base := os.Getenv("XDG_RUNTIME_DIR")
	if base == "" {
		base = filepath.Join(os.TempDir(), fmt.Sprintf("borg-%d", os.Getuid()))
	}
	return filepath.Join(append([]string{base, "borg"}, elem...)...)
}

// ApplyConfig sets the flags of the running command that --config gives and
// the command line does not. It is a command's Before.
func ApplyConfig(ctx *ucli.Context) error {
	path := ctx.String("config")
	if path == "" {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Errorf(Invalid, "read configuration: %w", err)
	}
	var values map[string]yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&values); err != nil && err != io.EOF {
		return Errorf(Invalid, "read configuration %s: %w", path, err)
	}
	if err := decoder.Decode(new(yaml.Node)); err != io.EOF {
		return Errorf(Invalid, "read configuration %s: it holds more than one document", path).Hint("take out the line ---")
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if err := applyValue(ctx, path, name, values[name]); err != nil {
			return err
		}
	}
	return nil
}

func applyValue(ctx *ucli.Context, path, name string, node yaml.Node) error {
	at := fmt.Sprintf("%s:%d:%d", path, node.Line, node.Column)
	flag := findFlag(ctx.Command.Flags, name)
	if flag == nil || name == "config" {
		var known []string
		for _, f := range ctx.Command.Flags {
			known = append(known, f.Names()[0])
		}
		slices.Sort(known)
		e := Errorf(Invalid, "%s: unknown name %q", at, name)
		if near := Nearest(name, known); near != "" {
			return e.Hint("did you mean %q?", near)
		}
		return e.Hint("names: %v", known)
	}
	if ctx.IsSet(name) {
		return nil
	}
	items, wants := []*yaml.Node{&node}, "a plain value"
	if many, ok := flag.(ucli.DocGenerationSliceFlag); ok && many.IsSliceFlag() {
		wants += " or a list of them"
		if node.Kind == yaml.SequenceNode {
			items = node.Content
		}
	}
	for _, item := range items {
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			return Errorf(Invalid, "%s: %q wants %s", at, name, wants)
		}
		if err := ctx.Set(name, plainValue(flag, item.Value)); err != nil {
			return Errorf(Invalid, "%s: %q: %w", at, name, err)
		}
	}
	return nil
}

// NewLogger returns the logger that --log-level and --log-format ask for.
func NewLogger(ctx *ucli.Context) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(ctx.String("log-level"))); err != nil {
		return nil, Errorf(Usage, "--log-level %q: want debug, info, warn or error", ctx.String("log-level"))
	}
	w := ctx.App.ErrWriter
	format := ctx.String("log-format")
	if format == "" {
		format = "json"
		if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			format = "text"
		}
	}
	opts := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, Errorf(Usage, "--log-format %q: want text or json", format)
}

// version is what a release calls itself; set by the linker: make static VERSION=...
var version string

// Build says which build this is: the version that it was given, otherwise the
// revision of the source.
func Build() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+"
			}
		}
	}
	if revision == "" {
		return info.Main.Version
	}
	return revision + dirty
}
