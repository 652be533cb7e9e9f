package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"borg/cli"
)

// try runs the program with arguments.
func try(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = run(t.Context(), append([]string{"borgcell"}, args...), &out, &errOut)
	return code, out.String(), errOut.String()
}

// Wrong command lines are refused with words on what to type, before anything
// is started or written.
func TestCommandLinesAreChecked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cell")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"rum", cli.Usage, `did you mean "borgcell run"`},
		{"run --machine 3", cli.Usage, "did you mean --machines"},
		{"run --masters 2", cli.Usage, "want 1, 3, 5, 7 or 9"},
		{"run --masters many", cli.Usage, "--masters cannot be \"many\""},
		{"run --machines=-1", cli.Usage, "--machines"},
		{"run extra", cli.Usage, "takes no arguments"},
		{"run --cell a/b", cli.Usage, "want a name"},
		{"run --runtime podman", cli.Usage, "auto, container or process"},
		{"run --log-level loud", cli.Usage, "debug, info"},
		{"demo --port-base 70000", cli.Usage, "--port-base"},
		{"doctor -x", cli.Usage, "unknown flag"},
		{"run --bin " + dir + "/nothing", cli.Failed, "fix: make"},
		{"demo --bin " + dir + "/nothing", cli.Failed, "a machine that can run a cell"},
		{"doctor --bin " + dir + "/nothing", cli.Failed, "fix: make"},
	} {
		args := strings.Fields(c.args)
		if args[0] == "run" {
			args = append(args, "--dir", dir)
		}
		code, stdout, stderr := try(t, args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("borgcell %s: exit %d, want %d with %q:\n%s%s", c.args, code, c.code, c.want, stdout, stderr)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("a refused command left %s: %v", dir, err)
	}
}

// A port in use is found before anything starts, with the port and what to
// type.
func TestPortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	l := goodLayout()
	l.PortBase = port - 2
	err = (&Cell{layout: l}).checkPorts()
	e, ok := err.(*cli.Error)
	if !ok || !strings.Contains(e.What, strconv.Itoa(port)) || !strings.Contains(e.Next, "--port-base") {
		t.Errorf("checkPorts = %v, want an error that names port %d and --port-base", err, port)
	}
}
