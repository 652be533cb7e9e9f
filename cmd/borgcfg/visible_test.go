package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/tell"
)

// FuzzOutput prints a text that somebody else wrote in all the ways in which
// borgcfg prints one: each stays on its line, and none does anything to a terminal.
func FuzzOutput(f *testing.F) {
	for _, text := range []string{"web", "a\x1b[2Jb", "one\ntwo", "\u202eback", "c1 \u009b31m", "nul\x00", "tab\tand\rback", "\xff\xfe", "\U000e0001"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		valid := strings.ToValidUTF8(text, "?")
		lines := make(map[string]int)
		var out bytes.Buffer
		o := output{format: "table", w: &out}
		var rows table
		rows.head("JOB", "REASON")
		rows.add(text, cell{text, good})
		if err := rows.write(o, "  "); err != nil {
			t.Fatal(err)
		}
		lines[out.String()] = 2
		out.Reset()
		if err := o.names([]string{text}); err != nil {
			t.Fatal(err)
		}
		lines[out.String()] = 1
		s := &session{console: &console{stdout: &out}, out: o, now: time.Now}
		lines[tell.Event(&borgpb.Event{Object: text, Machine: text, Reason: text, User: text, Exit: &borgpb.Exit{Error: text}})+"\n"] = 1
		lines[s.auditLine(&borgpb.AuditRecord{Who: text, Verb: text, Object: text, Command: text, ConfigHash: text, Reason: text,
			Refusal: &borgpb.Refusal{Message: text}})+"\n"] = 1
		lines[s.auditLine(&borgpb.AuditRecord{Hole: &borgpb.AuditHole{Why: text}})+"\n"] = 1
		out.Reset()
		s.say("%s", strings.ReplaceAll(text, "\n", ""))
		lines[strings.ReplaceAll(out.String(), "\t", "")] = 1
		for shown, want := range lines {
			if strings.Count(shown, "\n") != want || strings.ContainsFunc(strings.ReplaceAll(shown, "\n", ""), func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q is shown as %q, want %d lines that can be seen", text, shown, want)
			}
		}
		event := &borgpb.Event{Object: valid, Reason: valid}
		b, err := messageJSON(event)
		if err != nil {
			t.Fatal(err)
		}
		shown := visibleJSON(b)
		var back struct{ Object, Reason string }
		if err := json.Unmarshal(shown, &back); err != nil || back.Object != valid || back.Reason != valid {
			t.Errorf("%q is %s in JSON, which reads as %q, %v", valid, shown, back, err)
		}
		if strings.ContainsFunc(string(shown), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is %q in JSON", valid, shown)
		}
		if text, err := yamlOf(shown); err != nil || bytes.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Errorf("%q is %q in YAML, %v", valid, text, err)
		} else if err := yaml.Unmarshal(text, &back); err != nil || back.Object != valid || back.Reason != valid {
			t.Errorf("%q is %q in YAML, which reads as %q, %v", valid, text, back, err)
		}
	})
}

func TestCommandsAreQuoted(t *testing.T) {
	for _, tt := range []struct{ word, want string }{
		{"web.borg", "web.borg"}, {"--set", "--set"}, {"a=b,c", "a=b,c"}, {"", "''"}, {"two words", "'two words'"},
		{"it's", `'it'\''s'`}, {"$HOME", "'$HOME'"}, {"a\nb", "'a\nb'"}, {"\xff", "'\ufffd'"},
	} {
		if got := cli.Quote(tt.word); got != tt.want {
			t.Errorf("cli.Quote(%q) = %q, want %q", tt.word, got, tt.want)
		}
	}
	s := &session{console: &console{args: []string{"/usr/bin/borgcfg", "down", strings.Repeat("ü", 2000)}}}
	if got := s.command(); len(got) > maxCommandBytes || !strings.HasPrefix(got, "borgcfg down ü") || !strings.HasSuffix(got, "ü...") {
		t.Errorf("a long command line is %d bytes: %q", len(got), got)
	}
}
