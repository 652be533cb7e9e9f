package main

import (
	"encoding/pem"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"borg/identity"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"borgcfg": main})
}

// TestScripts runs testdata/script against a cell of real masters. Besides
// the usual commands of testscript there are:
//
//	cell N            start a cell of N masters; $BORG_CELL names it
//	cell N MACHINE... the same, restored with machines that no master has heard
//	machine NAME CPU  start a machine with so many cores; $NAME is its address
//	elect N           make master N the elected one; 0: nobody
//	exits CODE CMD    run borgcfg and expect this exit code
//	until CMD         run borgcfg until it prints something; with -says=TEXT
//	                  before CMD, until that is part of it
//	next TEXT         run the borgcfg that the last output names after TEXT, as it
//	                  stands there, and expect that it succeeds
//	metric VALUE      the server at $METRICS answers so from now on; gone: not at all
//	unchanged CMD     run borgcfg and expect that it writes nothing to the log
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("BORG_USER", "alice")
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/config")
			env.Values[cellKey{}] = new(testCell)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"cell": cellCommand, "machine": machineCommand, "elect": electCommand, "metric": metricCommand, "exits": exitsCommand, "unchanged": unchangedCommand, "until": untilCommand, "imports": importsCommand, "next": nextCommand, "newer": newerCommand,
		},
	})
}

type cellKey struct{}

func theCell(ts *testscript.TestScript) *testCell { return ts.Value(cellKey{}).(*testCell) }

func cellCommand(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	c := theCell(ts)
	ts.Check(c.start(n, "cell-of-"+ts.Name(), args[1:]))
	ts.Defer(c.stop)
	ts.Setenv("BORG_CELL", strings.Join(c.addrs, ","))
	ts.Setenv("CELL_ID", c.id)
	ts.Setenv("METRICS", c.metrics.URL)
	ts.Setenv("LONG", strings.Repeat("x", 1025))
	for _, name := range []string{"alice", "bob", "mallory", "root"} {
		who, err := c.source(identity.User, name)
		ts.Check(err)
		ts.Check(identity.WriteCredential(ts.MkAbs(name+".pem"), who.Current()))
	}
	task, err := c.source(identity.Task, "alice/web/0")
	ts.Check(err)
	ts.Check(identity.WriteCredential(ts.MkAbs("task.pem"), task.Current()))
	// Dave has his certificate from elsewhere.
	ts.Check(c.corp.write(ts.MkAbs("."), "dave"))
	var authority []byte
	for _, s := range c.ca.Signers(time.Now()) {
		authority = append(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate})...)
	}
	ts.Check(os.WriteFile(ts.MkAbs("authority.crt"), authority, 0o600))
	ts.Setenv("BORG_IDENTITY", ts.MkAbs("alice.pem"))
	for i, a := range c.addrs {
		ts.Setenv(fmt.Sprintf("MASTER%d", i+1), a)
	}
}

func machineCommand(ts *testscript.TestScript, neg bool, args []string) {
	cores, err := strconv.Atoi(args[1])
	ts.Check(err)
	addr, err := theCell(ts).addBorglet(args[0], int64(cores)*1000)
	ts.Check(err)
	ts.Setenv(args[0], addr)
}

// newerCommand has the masters answer as those of a later build, or not any more.
func newerCommand(ts *testscript.TestScript, neg bool, args []string) { theCell(ts).newer.Store(!neg) }

func electCommand(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	theCell(ts).group.Elect(uint64(n))
}

func exitsCommand(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec("borgcfg", args[1:]...)
	got := 0
	if exit, ok := err.(interface{ ExitCode() int }); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("borgcfg %s: exit code %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

func unchangedCommand(ts *testscript.TestScript, neg bool, args []string) {
	c := theCell(ts)
	before := c.mutated()
	ts.Check(ts.Exec("borgcfg", args...))
	if after := c.mutated(); after != before {
		ts.Fatalf("borgcfg %s made %d mutations", strings.Join(args, " "), after-before)
	}
}

func nextCommand(ts *testscript.TestScript, neg bool, args []string) {
	said := ts.ReadFile("stdout") + ts.ReadFile("stderr")
	m := regexp.MustCompile(regexp.QuoteMeta(args[0]) + ` borgcfg ([^;\n]+)`).FindStringSubmatch(said)
	if m == nil {
		ts.Fatalf("the output names no command after %q:\n%s", args[0], said)
	}
	ts.Check(ts.Exec("borgcfg", strings.Fields(m[1])...))
}

func untilCommand(ts *testscript.TestScript, neg bool, args []string) {
	says := func(string) bool { return true }
	want, ok := strings.CutPrefix(args[0], "-says=")
	if ok {
		says, args = func(out string) bool { return strings.Contains(out, want) }, args[1:]
	} else if want, ok = strings.CutPrefix(args[0], "-matches="); ok {
		says, args = regexp.MustCompile("(?m)"+want).MatchString, args[1:]
	}
	for range 200 {
		if err := ts.Exec("borgcfg", args...); err == nil && ts.ReadFile("stdout") != "" && says(ts.ReadFile("stdout")) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("borgcfg %s does not print what it should: %q", strings.Join(args, " "), want)
}
