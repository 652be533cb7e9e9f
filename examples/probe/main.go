//go:build linux

// Probe is a task that looks around: it prints what it can see and do, each as a
// line of JSON. It judges nothing; `borgcell demo --probe` compares what it says
// with what a task should be able to see and do (docs/probe.md).
//
// What it names it really tries: a call that is refused was made. Each try is such
// that it harms nobody where it is let through.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// fact is one thing that was tried or looked at.
type fact struct {
	Name string `json:"name"`
	Got  string `json:"got"`
}

// outside is what the task is told of the machine around it: what it must not
// reach can only be tried by name.
type outside struct {
	// namespaces are the machine's own, as /proc/self/ns shows them there.
	namespaces map[string]string
	// hidden are paths of the machine by a name for each.
	hidden map[string]string
	// pid is a process of the machine that is another task's.
	pid int
	// agent is where the borglet listens.
	agent string
	// devices are those of the machine's network, and socket is the name of a local one
	// there that is no file.
	devices, socket string
}

// probe collects facts.
type probe struct {
	out   outside
	facts []fact
}

func (p *probe) tell(name, gotFormat string, args ...any) {
	p.facts = append(p.facts, fact{name, fmt.Sprintf(gotFormat, args...)})
}

// try tells what came of a call.
func (p *probe) try(name string, err error) { p.tell(name, "%s", outcome(err)) }

// outcome is the name of the kernel's error, or that there was none.
func outcome(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// pairs is a flag KEY=VALUE that may be repeated.
type pairs map[string]string

func (p pairs) String() string { return "" }

func (p pairs) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return fmt.Errorf("%q: want NAME=VALUE", text)
	}
	p[key] = value
	return nil
}

func main() {
	// Before anything else has opened files of its own.
	fds := openFiles()
	if len(os.Args) == 2 && os.Args[1] == otherKind {
		tryOtherKind()
		return
	}
	p := &probe{out: outside{namespaces: pairs{}, hidden: pairs{}}}
	flag.Var(pairs(p.out.namespaces), "ns", "`KIND=LINK` of a name space of the machine, as in /proc/self/ns; repeated")
	flag.Var(pairs(p.out.hidden), "hidden", "`NAME=PATH` on the machine that is not to be seen; repeated")
	flag.IntVar(&p.out.pid, "pid", 0, "`PROCESS` of another task")
	flag.StringVar(&p.out.agent, "agent", "", "`ADDRESS` of the borglet")
	flag.StringVar(&p.out.devices, "devices", "", "`NAMES` of the machine's network devices")
	flag.StringVar(&p.out.socket, "socket", "", "`NAME` of a local socket of the machine that is no file")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "probe: %q: it takes flags alone; see probe -h\n", flag.Arg(0))
		os.Exit(2)
	}
	p.tell("files.open", "%s", fds)
	p.self()
	p.kinds()
	p.processes()
	p.mounts()
	p.files()
	p.calls()
	p.sockets()
	p.network()
	p.papers()
	p.doors()
	if err := p.print(); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func (p *probe) print() error {
	slices.SortFunc(p.facts, func(a, b fact) int { return strings.Compare(a.Name, b.Name) })
	lines := json.NewEncoder(os.Stdout)
	for _, f := range p.facts {
		if err := lines.Encode(f); err != nil {
			return err
		}
	}
	return nil
}
