package main

import (
	"fmt"
	"os"
	"os/user"
	"regexp"
	"strings"
	"testing"
)

var (
	numbers = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
	spaces  = regexp.MustCompile(` +`)
	// As containers, or as plain processes.
	runtimes = regexp.MustCompile(`\(tasks are [^)]*\)`)
)

// same makes lines of two runs alike: figures, the name of the user, and how
// tasks are kept differ from machine to machine.
func same(line, userName string) string {
	line = runtimes.ReplaceAllString(line, "(tasks)")
	line = strings.NewReplacer(userName+"/", "USER/", "root/", "USER/").Replace(line)
	return strings.TrimSpace(spaces.ReplaceAllString(numbers.ReplaceAllString(line, "N"), " "))
}

// TestDemo runs the whole demo and holds the session that the README shows
// against what it prints: each line, in that order.
func TestDemo(t *testing.T) {
	alongside(t)
	session, err := os.ReadFile("../testdata/readme.txt")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), string(session)) {
		t.Error("README.md does not show the session in cmd/testdata/readme.txt as it stands there")
	}

	l := chaosLayout(t, 5, 3)
	code, stdout, stderr := try(t, "demo", "--cell", l.Name, "--dir", l.dir, "--run-dir", l.RunDir, "--bin", l.binDir,
		"--port-base", fmt.Sprint(l.PortBase), "--task-port-base", fmt.Sprint(l.TaskPortBase), "--examples", "../../examples")
	if code != 0 || strings.Contains(stdout, "FAILED") {
		t.Fatalf("demo: exit %d\n%s%s", code, stdout, stderr)
	}
	who, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	printed := strings.Split(strings.ReplaceAll(stdout, "../../examples", "examples"), "\n")
	for line := range strings.Lines(string(session)) {
		want := same(line, who.Username)
		if want == "$ make demo" {
			continue
		}
		for len(printed) > 0 && same(printed[0], who.Username) != want {
			printed = printed[1:]
		}
		if len(printed) == 0 {
			t.Fatalf("the demo does not print, at this place, the README's line\n%s(compared as %q)\nbut\n%s", line, want, stdout)
		}
		printed = printed[1:]
	}
	if left, err := l.leftovers(); err != nil || len(left) > 0 {
		t.Errorf("left after the demo: %v, %v", left, err)
	}
}
