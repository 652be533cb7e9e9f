package main

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	// An elected replica starts this very program as its scheduler.
	if len(os.Args) > 1 && os.Args[1] == "scheduler" {
		main()
		return
	}
	testscript.Main(m, map[string]func(){"borgmaster": main})
}

// TestScripts runs the program as people do. $A1 to $A4 are free addresses.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			for i := 1; i <= 4; i++ {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					return err
				}
				// Held until all are chosen, so that they differ.
				defer l.Close()
				env.Setenv(fmt.Sprintf("A%d", i), l.Addr().String())
			}
			env.Setenv("XDG_RUNTIME_DIR", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"until": until},
	})
}

// until PATTERN COMMAND... runs a command again and again until its output
// matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN COMMAND...")
	}
	pattern := regexp.MustCompile("(?m)" + args[0])
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if err == nil && pattern.MatchString(out) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%q was never seen; last: %v\n%s%s", args[0], err, out, ts.ReadFile("stderr"))
		}
	}
}
