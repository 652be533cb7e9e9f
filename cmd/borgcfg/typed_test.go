package main

import (
	"flag"
	"regexp"
	"slices"
	"strings"
	"testing"

	ucli "github.com/urfave/cli/v2"
)

func TestTyped(t *testing.T) {
	flags := flag.NewFlagSet("", 0)
	for _, name := range []string{"cell", "identity", "user"} {
		flags.String(name, "", "")
		if err := flags.Set(name, name[:1]); err != nil {
			t.Fatal(err)
		}
	}
	app := &ucli.App{Commands: []*ucli.Command{{Name: "why"}, {Name: "quota"}, {Name: "grant"}, {Name: "login"}}}
	s := &session{flag: ucli.NewContext(app, flags, nil)}
	const all, others = "borgcfg --cell c --identity i --user u ", "borgcfg --cell c "
	for text, want := range map[string]string{
		"borgcfg why x": all + "why x",
		"job bob/admin-web waits: borgcfg why admin-web":                                        "job bob/admin-web waits: " + all + "why admin-web",
		"the admin of bob/admin: borgcfg why x":                                                 "the admin of bob/admin: " + all + "why x",
		"an admin sees bob/admin-web: borgcfg why x":                                            "an admin sees bob/admin-web: " + all + "why x",
		"have an admin raise it: borgcfg quota set x. See borgcfg quota show x":                 "have an admin raise it: " + others + "quota set x. See " + all + "quota show x",
		"It waits. An admin lets it in: borgcfg grant x":                                        "It waits. An admin lets it in: " + others + "grant x",
		"which can be granted by root: borgcfg grant a admin":                                   "which can be granted by root: " + others + "grant a admin",
		"which can be granted by a, b, c, d, e, ...: borgcfg grant a admin":                     "which can be granted by a, b, c, d, e, ...: " + others + "grant a admin",
		"an admin makes a token: borgcfg grant x\nwith it: borgcfg login T\nthen borgcfg why x": "an admin makes a token: " + others + "grant x\nwith it: borgcfg login T\nthen " + all + "why x",
	} {
		if got := s.typed(text); got != want {
			t.Errorf("typed(%q)\n got %q\nwant %q", text, got, want)
		}
	}
}

// TestAdminCommandsAreMarked: a text of the sources that speaks of an admin and then names a
// command marks the command as one for admins. What is not meant so is listed.
func TestAdminCommandsAreMarked(t *testing.T) {
	admin := regexp.MustCompile(`\b[Aa]n?( other)? admin\b|\badmins\b|granted by`)
	marked := 0
	eachText(t, func(path, text string) {
		if strings.HasSuffix(path, ".pb.go") {
			return
		}
		for line := range strings.SplitSeq(text, "\n") {
			before, command, found := strings.Cut(line, "borgcfg ")
			if !found || !admin.MatchString(before) {
				continue
			}
			if slices.ContainsFunc(splitsAtCommand(line), forAdmins) {
				marked++
			} else {
				t.Errorf("%s: %q names an admin before %q, but does not mark a command for admins", path, line, command)
			}
		}
	})
	if marked < 10 {
		t.Errorf("found %d commands for admins", marked)
	}
}

// splitsAtCommand returns what a line begins with up to each of its commands.
func splitsAtCommand(line string) (heads []string) {
	for at := 0; ; {
		n := strings.Index(line[at:], "borgcfg ")
		if n < 0 {
			return heads
		}
		heads = append(heads, line[:at+n])
		at += n + len("borgcfg ")
	}
}
