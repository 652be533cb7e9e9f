package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"borg/cli"
)

// output is how an answer is printed.
type output struct {
	format string
	w      io.Writer
	color  bool
}

func newOutput(ctx *ucli.Context, con *console) (output, error) {
	o := output{format: ctx.String("output"), w: con.stdout}
	switch o.format {
	case "":
		o.format = "table"
	case "table", "wide", "json", "yaml", "name":
	default:
		e := cli.Errorf(cli.Usage, "-o %q: want table, wide, json, yaml or name", o.format)
		if near := cli.Nearest(o.format, []string{"table", "wide", "json", "yaml", "name"}); near != "" {
			return o, e.Hint("did you mean -o %s?", near)
		}
		return o, e
	}
	switch mode := ctx.String("color"); mode {
	case "always":
		o.color = true
	case "auto", "":
		o.color = con.terminal && con.env("NO_COLOR") == "" && con.env("TERM") != "dumb"
	case "never":
	default:
		return o, cli.Errorf(cli.Usage, "--color %q: want auto, always or never", mode)
	}
	return o, nil
}

// machine tells whether programs read the answer.
func (o output) machine() bool { return o.format == "json" || o.format == "yaml" }

func (o output) wide() bool { return o.format == "wide" }

// list prints messages as one list; none at all is "[]".
func list[M proto.Message](o output, items []M) error {
	raw := make([]json.RawMessage, len(items))
	for i, m := range items {
		b, err := messageJSON(m)
		if err != nil {
			return err
		}
		raw[i] = b
	}
	b, err := json.Marshal(raw)
	if err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	return o.raw(b)
}

// one prints a message.
func (o output) one(m proto.Message) error {
	b, err := messageJSON(m)
	if err != nil {
		return err
	}
	return o.raw(b)
}

// printMessage prints one message of those that come one by one, if they are wanted
// for programs; done says that they are.
func (s *session) printMessage(m proto.Message) (done bool, err error) {
	if s.out.format != "json" && s.out.format != "yaml" {
		return false, nil
	}
	b, err := messageJSON(m)
	if err != nil {
		return true, err
	}
	if s.out.format == "json" {
		_, err = fmt.Fprintf(s.stdout, "%s\n", visibleJSON(b))
		return true, err
	}
	text, err := yamlOf(b)
	if err != nil {
		return true, err
	}
	_, err = fmt.Fprintf(s.stdout, "---\n%s", text)
	return true, err
}

// messageJSON is the JSON of a message with the names of the .proto files. Zero
// values are there, so that a reader need not know what is left out.
func messageJSON(m proto.Message) ([]byte, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("print as JSON: %w", err)
	}
	// The library puts spaces at random, so that nobody relies on its bytes.
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return nil, fmt.Errorf("print as JSON: %w", err)
	}
	return out.Bytes(), nil
}

// value prints what is no message of the cell.
func (o output) value(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	return o.raw(b)
}

// raw prints JSON, or YAML of the same.
func (o output) raw(b []byte) error {
	if o.format == "yaml" {
		text, err := yamlOf(b)
		if err != nil {
			return err
		}
		_, err = o.w.Write(text)
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	out.WriteByte('\n')
	_, err := o.w.Write(visibleJSON(out.Bytes()))
	return err
}

// visibleJSON escapes what would move the cursor or turn the direction of writing
// and is no control character of ASCII, which JSON has escaped already. It occurs
// in strings alone.
func visibleJSON(b []byte) []byte {
	if bytes.IndexFunc(b, unseen) < 0 {
		return b
	}
	var out []byte
	for _, r := range string(b) {
		switch {
		case !unseen(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

func unseen(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }

// names prints one name a line.
func (o output) names(names []string) error {
	for _, n := range names {
		if _, err := fmt.Fprintln(o.w, cli.Visible(n)); err != nil {
			return err
		}
	}
	return nil
}
