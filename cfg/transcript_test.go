package cfg

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
)

// TestTranscripts evaluates the files of testdata and compares what they give,
// or what is said to be wrong with them. Commands:
//
//	file name=lib.borg     writes a file beside the next ones
//	eval [name=x.yaml] [set=(a=1,b=2)] [as=explain path=...]
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		dir := t.TempDir()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			name := "job.borg"
			d.MaybeScanArgs(t, "name", &name)
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			// A line of "." stands for an empty one.
			text := strings.ReplaceAll("\n"+d.Input+"\n", "\n.\n", "\n\n")[1:]
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			switch d.Cmd {
			case "file":
				return ""
			case "eval":
				text := strings.ReplaceAll(evalText(t, d, file), dir+"/", "")
				return strings.ReplaceAll(text, dir, "DIR")
			}
			d.Fatalf(t, "unknown command")
			return ""
		})
	})
}

func evalText(t *testing.T, d *datadriven.TestData, file string) string {
	opts := Options{User: "alice", Params: make(map[string]string)}
	var sets []string
	if d.HasArg("set") {
		for _, a := range d.CmdArgs {
			if a.Key == "set" {
				sets = append(sets, a.Vals...)
			}
		}
	}
	for _, s := range sets {
		k, v, _ := strings.Cut(s, "=")
		opts.Params[k] = v
	}
	var printed strings.Builder
	opts.Print = func(pos Position, text string) { fmt.Fprintf(&printed, "print %s: %s\n", pos, text) }
	f, err := Evaluate(file, opts)
	if err != nil {
		return printed.String() + err.Error() + "\n"
	}
	for _, w := range f.Warnings {
		fmt.Fprintf(&printed, "warning: %s\n", w)
	}
	for _, o := range f.Objects {
		if fault := o.Lacks(); fault != nil {
			fmt.Fprintf(&printed, "unless the cell fills it in: %s\n", fault)
		}
	}
	if d.HasArg("explain") {
		var path string
		d.ScanArgs(t, "explain", &path)
		found, err := f.Explain(path)
		if err != nil {
			return err.Error() + "\n"
		}
		for _, e := range found {
			fmt.Fprintf(&printed, "%s = %s  [%s]\n", e.Path, e.Value, e.Origin)
		}
		return printed.String()
	}
	b, err := f.JSON()
	if err != nil {
		t.Fatal(err)
	}
	reread(t, f, b)
	for _, p := range f.Params {
		fmt.Fprintf(&printed, "param %s = %s\n", p.Name, p.Value)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", " "); err != nil {
		t.Fatal(err)
	}
	return printed.String() + out.String() + "\n"
}

// escaped is JSON that YAML can take: without bare control characters.
func escaped(b []byte) []byte {
	var out []byte
	for _, r := range string(b) {
		if r >= 0x7f && r <= 0x9f {
			out = fmt.Appendf(out, "\\u%04x", r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// reread evaluates what was printed and expects the same specs, bit for bit,
// and the same from YAML.
func reread(t *testing.T, f *File, b []byte) {
	t.Helper()
	for _, name := range []string{"again.json", "again.yaml"} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, escaped(b), 0o644); err != nil {
			t.Fatal(err)
		}
		again, err := Evaluate(path, Options{User: "nobody"})
		if err != nil {
			t.Errorf("%s: what was printed is not accepted: %v", name, err)
			return
		}
		byKey := make(map[string]*Object)
		for _, o := range again.Objects {
			byKey[o.Key()] = o
		}
		for _, o := range f.Objects {
			want, err := o.SpecBytes()
			if err != nil {
				t.Fatal(err)
			}
			got, err := byKey[o.Key()].SpecBytes()
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("%s: %s came back as another spec:\n%v\n%v", name, o.Key(), byKey[o.Key()].Spec(), o.Spec())
			}
		}
	}
}
