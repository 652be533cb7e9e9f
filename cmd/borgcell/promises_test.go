package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"borg/cli"
	"borg/docs/shown"
	"borg/identity"
)

// promised is what the table "What a task may do with it" of docs/identity.md promises, by
// the words that promise it, and a command that does it for the task alice/web/0. Each has
// to work, in this order.
var promised = []struct {
	words string
	args  []string
}{
	{"find where tasks run", []string{"resolve", "web"}},
	{"`ListTasks`", []string{"tasks", "web"}},
	{"read, write, delete and watch the small files of its user", []string{"file", "put", "conf/leader", "--from", "leader.txt"}},
	{"`borgcfg file`", []string{"file", "get", "conf/leader"}},
	{"`borgcfg file`", []string{"file", "ls", "conf"}},
	{"`borgcfg file`", []string{"file", "rm", "conf/leader"}},
	{"`borgcfg note TEXT --annotation KEY=VALUE`", []string{"note", "half done", "--annotation", "step=2"}},
	{"look at the jobs", []string{"status"}},
	{"look at the jobs", []string{"status", "web"}},
	{"look at the jobs", []string{"tasks"}},
	{"why a task waits", []string{"why", "web/0"}},
	{"alloc sets and quotas of its user", []string{"alloc", "list"}},
	{"alloc sets and quotas of its user", []string{"quota", "list"}},
	{"the cell's label policy", []string{"policy", "labels", "show"}},
	{"submit jobs of its user whose `parent` is its own job", []string{"diff", "child.borg"}},
	{"submit jobs of its user whose `parent` is its own job", []string{"up", "child.borg"}},
	{"and end them", []string{"down", "child"}},
}

// notAsked are the commands of the pages that never come to a cell here, and why.
var notAsked = map[string]string{
	"borgcfg exec -it ": "there is no terminal",
	"borgcfg exec -i ":  "its exit code is the program's",
	"borgcfg --cell ":   "it is another cell",
	"borgcfg login ":    "the tokens of the pages are none",
	"borgcfg eval ":     "it asks no cell",
}

// TestPromisedCommands does what the pages promise as whoever they promise it to: with the
// certificate of a task, of a user without any capability, and of an admin. Each command
// of borgcfg in a block of a page is run, and nobody is refused what is said to be his. A
// page says that a block is an admin's or a task's by <!-- as: admin --> before it, or in
// the comment of a line.
func TestPromisedCommands(t *testing.T) {
	alongside(t)
	p := newPromises(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "identity.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range promised {
		if !strings.Contains(string(page), one.words) {
			t.Errorf("docs/identity.md does not promise a task: %s", one.words)
		}
		out, code := p.run(t, shown.Task, one.args)
		if code != cli.OK && code != cli.Changes {
			t.Errorf("a task may %s: borgcfg %s: exit code %d: %s", one.words, strings.Join(one.args, " "), code, out)
		}
	}
	pages, err := shown.Pages(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	asked := map[shown.Role]int{}
	for _, page := range pages {
		for _, c := range page.Commands("borgcfg") {
			out, code := p.run(t, c.As, c.Words[1:])
			switch code {
			case cli.NotAllowed:
				t.Errorf("%s: %s is refused to the %s: %s", c.Where, c.Text, c.As, out)
			case cli.Usage, cli.Invalid, cli.Unreachable:
				if !isNotAsked(c.Text) {
					t.Errorf("%s: %s as the %s does not come to the cell: exit code %d: %s", c.Where, c.Text, c.As, code, out)
				}
				continue
			}
			asked[c.As]++
		}
	}
	for _, as := range []shown.Role{shown.User, shown.Admin, shown.Task} {
		if asked[as] == 0 {
			t.Errorf("the pages have no command of the %s", as)
		}
	}
	t.Logf("asked the cell: %v", asked)
}

func isNotAsked(text string) bool {
	for begins := range notAsked {
		if strings.HasPrefix(strings.TrimPrefix(text, "bin/"), begins) {
			return true
		}
	}
	return false
}

// promises is a cell with whom the pages promise something.
type promises struct {
	*Cell
	// Where the commands run, with what the pages have there.
	here string
	// Files with certificates.
	who map[shown.Role]string
}

func newPromises(t *testing.T) *promises {
	t.Helper()
	p := &promises{Cell: chaosCell(t, 1, 1), here: t.TempDir(), who: map[shown.Role]string{}}
	p.hasLatestFormat(t)
	for as, is := range map[shown.Role]struct {
		role identity.Role
		id   string
	}{shown.User: {identity.User, "alice"}, shown.Admin: {identity.User, p.user}, shown.Task: {identity.Task, "alice/web/0"}} {
		p.who[as] = filepath.Join(p.here, string(as)+".pem")
		credential, err := p.authority.Certify(identity.Name{Cell: p.Name, Role: is.role, ID: is.id}, time.Now(), identity.Life)
		if err == nil {
			err = identity.WriteCredential(p.who[as], credential)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"examples", "deploy"} {
		if err := os.Symlink(filepath.Join(root, dir), filepath.Join(p.here, dir)); err != nil {
			t.Fatal(err)
		}
	}
	const task = `task(args = ["/bin/sh", "-c", "exec sleep 1000000"], resources = resources(cpu = 0.01, mem = "16MiB"))`
	for name, text := range map[string]string{
		"web.borg":     `job(name = "web", tasks = 4, submit_children = True, task = ` + task + `)`,
		"child.borg":   `job(name = "child", parent = "web", task = ` + task + `)`,
		"leader.txt":   "web/0\n",
		"password.txt": "hunter2\n",
		"a":            "",
	} {
		if err := os.WriteFile(filepath.Join(p.here, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, code := p.run(t, shown.User, []string{"up", "web.borg", "--wait", "--timeout", "50s"}); code != cli.OK {
		t.Fatalf("alice's job does not run: exit code %d: %s", code, out)
	}
	return p
}

// run runs borgcfg as somebody, for some seconds at most: one that goes on was not refused.
func (p *promises) run(t *testing.T, as shown.Role, args []string) (string, int) {
	t.Helper()
	whole := []string{"--cell", p.cellFile(), "--identity", p.who[as]}
	if !slices.Contains(args, "--timeout") {
		whole = append(whole, "--timeout", "10s")
	}
	for _, arg := range args {
		// $n is what a loop of the page counts with.
		whole = append(whole, strings.NewReplacer("$PWD", p.here, "$n", "1").Replace(arg))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.bin("borgcfg"), whole...)
	cmd.Dir = p.here
	cmd.Stdin = strings.NewReader("content\n")
	// A task is told which copy it is.
	cmd.Env = append(os.Environ(), "HOME="+p.here, "BORG_ATTEMPT=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return string(out), exit.ExitCode()
	case err != nil:
		t.Fatalf("borgcfg %s: %v", strings.Join(args, " "), err)
	}
	return string(out), cli.OK
}
