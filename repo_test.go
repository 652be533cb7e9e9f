package borg_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
)

// imports is who may import whom of ours, and who must never (directly) import
// what of others. It is policy: read it before you add an edge, and do not
// relax it to mend a build. A package that is not listed may not exist.
var imports = map[string]struct {
	ours  []string
	never []string
}{
	// Who is who: whoever dials, listens or issues needs it, and it needs nobody.
	"identity": {nil, []string{"google.golang.org/grpc"}},

	"proto/borgpb":  {nil, []string{"google.golang.org/grpc"}},
	"proto/borgrpc": {[]string{"proto/borgpb"}, nil},
	"proto/door":    {[]string{"identity", "mutant", "proto/borgpb", "proto/door/entrance", "proto/weight", "tell/hostpath", "tell/repeat"}, nil},
	// What an encoded message takes in memory, for the budgets of the cell and for the door.
	"proto/weight": {nil, []string{"google.golang.org/grpc", "time", "os", "net", "sync"}},
	// Connections that have not yet said who they are: who is dropped, who computes.
	"proto/door/entrance": {nil, []string{"google.golang.org/grpc", "os", "crypto/tls"}},
	// What a later build may say, for the tests of who must bear it.
	"proto/newer": {[]string{"proto/borgpb"}, []string{"google.golang.org/grpc"}},

	"borgmaster/cell": {[]string{"borgmaster/selector", "mutant", "proto/borgpb", "proto/weight"}, []string{"time", "os", "net", "sync", "context", "math/rand", "math/rand/v2", "log", "log/slog"}},
	// mutant: bugs that the simulator must find.
	"scheduler": {[]string{"borgmaster/cell", "mutant", "proto/borgpb"}, []string{"google.golang.org/grpc", "github.com/cockroachdb/pebble/v2", "go.etcd.io/raft/v3", "time", "sync", "context"}},
	// What tasks will use of what they asked for; imports nobody, so that master and scheduler can share it.
	"scheduler/reservation": {nil, []string{"google.golang.org/grpc", "time", "sync", "context", "os", "net"}},
	// The process around the search: follows a master, answers Explain.
	"scheduler/process": {[]string{"identity", "scheduler", "borgmaster/cell", "pages", "proto/borgpb", "proto/borgrpc", "proto/door"}, nil},

	// How a scheduler searches, as flags: masters and the Fauxmaster take the same.
	"scheduler/flags": {[]string{"cli", "scheduler"}, []string{"google.golang.org/grpc"}},

	// What programs show of themselves, as data and as pages; knows nobody.
	"pages": {nil, []string{"os", "google.golang.org/grpc/peer"}},

	"checkpoint": {[]string{"mutant", "proto/borgpb"}, []string{"google.golang.org/grpc"}},
	// borgmaster for the interfaces that it implements (log.go), nothing else.
	"borgmaster/replica": {[]string{"identity", "borgmaster", "borgmaster/cell", "borgmaster/late", "checkpoint", "mutant", "pages", "proto/borgpb", "proto/borgrpc", "proto/door", "tell/hostpath"}, nil},
	"borgmaster": {[]string{"identity", "borgmaster/admission", "borgmaster/audit", "borgmaster/cell", "borgmaster/cellkey", "borgmaster/cron", "borgmaster/duty", "borgmaster/journal", "borgmaster/late", "borgmaster/linkshard", "borgmaster/metric", "borgmaster/reclaim", "borgmaster/selector", "borgmaster/sight", "borgmaster/verbs", "borgmaster/watch", "mutant", "pages", "proto/borgpb", "proto/borgrpc", "proto/door", "proto/door/entrance", "tell/hostpath", "tell/repeat"},
		[]string{"github.com/cockroachdb/pebble/v2", "go.etcd.io/raft/v3"}},
	// Who did what, in files of the replica; reads the log and knows no cell.
	"borgmaster/audit": {[]string{"borgmaster/cell", "proto/borgpb", "tell/hostpath"}, []string{"google.golang.org/grpc"}},
	// Who is served when too many ask; the simulator has it too. Of time it knows the
	// words for people alone.
	"borgmaster/admission": {[]string{"mutant"}, []string{"google.golang.org/grpc", "sync", "context"}},
	// What happened, for weeks, in files of the replica.
	"borgmaster/journal": {[]string{"borgmaster/audit", "borgmaster/cell", "proto/borgpb", "proto/borgrpc", "tell/hostpath"}, []string{"google.golang.org/grpc/peer"}},
	// What the elected master does on its own.
	"borgmaster/duty": {[]string{"borgmaster/cell", "borgmaster/late", "borgmaster/linkshard", "mutant", "proto/borgpb", "proto/borgrpc"}, []string{"google.golang.org/grpc", "time", "sync", "context"}},
	// How late a process is.
	"borgmaster/late": {nil, []string{"google.golang.org/grpc", "time", "sync", "context"}},
	// What tasks reserve of what they asked for: estimates from what they use.
	"borgmaster/reclaim": {[]string{"borgmaster/cell", "mutant", "proto/borgpb", "proto/borgrpc", "scheduler/reservation"}, []string{"google.golang.org/grpc", "time", "sync", "context"}},
	// Selectors over labels, for lists and watches alike.
	"borgmaster/selector": {nil, []string{"google.golang.org/grpc", "time", "sync", "context", "os", "net"}},
	// What people may ask can-i about.
	"borgmaster/verbs": {nil, []string{"google.golang.org/grpc", "time", "sync", "context", "os", "net"}},
	// What a reader may be shown of a cell whose policy of visibility is private.
	"borgmaster/sight": {[]string{"borgmaster/cell", "mutant", "proto/borgpb", "proto/borgrpc"}, []string{"google.golang.org/grpc", "time", "context", "os", "net"}},
	// Who is told of which change of the cell.
	"borgmaster/watch": {[]string{"borgmaster/cell", "borgmaster/selector", "mutant", "proto/borgpb", "proto/borgrpc", "proto/weight"}, []string{"google.golang.org/grpc", "time", "sync", "context", "os", "net", "math/rand", "math/rand/v2"}},
	// When cron jobs run; it knows time zones, and no cell.
	"borgmaster/cron": {nil, []string{"google.golang.org/grpc", "sync", "context", "net"}},
	// What a metric says that an update has for its gate; it asks, and decides nothing.
	"borgmaster/metric": {[]string{"proto/borgpb"}, []string{"google.golang.org/grpc", "sync", "os"}},
	// Which machines a replica polls, and what it makes of the answers.
	"borgmaster/linkshard": {[]string{"borgmaster/cell", "borgmaster/late", "borgmaster/sight", "mutant", "pages", "proto/borgpb", "proto/borgrpc", "proto/door"}, nil},
	// What is next on the way from the replicas that a cell has to those that it is to have.
	"borgmaster/roster": {nil, []string{"time", "sync", "context", "os", "net"}},
	// The keys of secrets, which are in no log: the cell must not have them.
	"borgmaster/cellkey": {nil, []string{"google.golang.org/grpc", "os", "net"}},
	// The Log in memory: tests now, the Fauxmaster later.
	"borgmaster/memlog": {[]string{"borgmaster", "borgmaster/cell", "proto/borgpb"}, nil},
	"borgmaster/client": {[]string{"identity", "proto/borgpb", "proto/borgrpc", "proto/door"}, nil},

	"borglet":           {[]string{"borglet/beneath", "borglet/sockets", "identity", "mutant", "pages", "proto/borgpb", "proto/borgrpc", "proto/door", "tell/hostpath", "tell/repeat"}, []string{"github.com/opencontainers/runc/libcontainer"}},
	"borglet/container": {[]string{"borglet", "borglet/beneath", "borglet/diskquota", "borglet/network", "borglet/sockets", "mutant", "proto/borgpb"}, nil},
	// Files in directories where somebody else may be at work.
	"borglet/beneath": {nil, []string{"google.golang.org/grpc", "time", "context"}},
	// Limits of directories that the file system enforces, behind an interface of the borglet's.
	"borglet/diskquota": {nil, []string{"google.golang.org/grpc", "context"}},
	// Networks of tasks' own, behind an interface of the borglet's; containers join them, and a sweep ends them.
	"borglet/network": {[]string{"borglet"}, []string{"google.golang.org/grpc", "github.com/opencontainers/runc/libcontainer"}},
	// What tasks hold of what the sockets of a machine share, from the text of the kernel's tables.
	"borglet/sockets": {nil, []string{"os", "time", "net"}},
	// The packages of a machine, behind an interface of the borglet's.
	"borglet/packages": {[]string{"borglet"}, []string{"google.golang.org/grpc", "github.com/opencontainers/runc/libcontainer"}},

	// The past of a cell: checkpoints opened, and the production master over them.
	"fauxmaster": {[]string{"borgmaster", "borgmaster/audit", "borgmaster/cell", "borgmaster/client", "borgmaster/linkshard", "borgmaster/memlog", "borglet", "checkpoint",
		"fauxmaster/pretend", "identity", "proto/borgpb", "proto/borgrpc", "proto/door", "scheduler", "scheduler/process", "tell"}, nil},
	// The whole cell on one thread: every core, and what lies between them.
	"fauxmaster/sim": {[]string{"borgmaster", "borgmaster/admission", "borgmaster/cell", "borgmaster/duty", "borgmaster/linkshard", "borgmaster/reclaim", "borgmaster/replica", "borgmaster/roster", "borgmaster/selector", "borgmaster/watch", "scheduler", "scheduler/reservation", "checkpoint", "borglet", "fauxmaster/pretend", "history", "history/told", "identity", "proto/borgpb", "proto/borgrpc", "proto/door"},
		[]string{"google.golang.org/grpc", "net"}},
	// Machines without processes, for the simulator and for opened checkpoints alike.
	"fauxmaster/pretend": {[]string{"borglet", "mutant", "proto/borgpb", "proto/borgrpc"}, []string{"google.golang.org/grpc", "net", "os", "time", "sync"}},

	// Those machines on the wire, by the thousand: whole cells of real masters.
	"fauxmaster/fleet": {[]string{"borglet", "fauxmaster", "fauxmaster/pretend", "identity", "proto/borgpb", "proto/borgrpc", "proto/door"}, nil},

	// Questions to a cell that is written down: the cell and the scheduler, and nothing that has a clock.
	"fauxmaster/plan": {[]string{"borgmaster/cell", "scheduler", "fauxmaster/trace", "proto/borgpb"},
		[]string{"google.golang.org/grpc", "net", "os", "time", "context", "sync", "math/rand", "math/rand/v2"}},

	// Two moments of a cell, side by side.
	"fauxmaster/diff": {[]string{"borgmaster/cell", "proto/borgpb"}, []string{"google.golang.org/grpc", "net", "os"}},

	// A cell, and what happened to it, as tables for other programs.
	"fauxmaster/export": {[]string{"borgmaster/cell", "proto/borgpb"}, []string{"google.golang.org/grpc", "net", "time"}},
	// What arrives at a cell and ends there, at virtual time. It reads a clock to say how long that took.
	"fauxmaster/workload": {[]string{"borgmaster/cell", "checkpoint", "fauxmaster", "fauxmaster/trace", "proto/borgpb", "scheduler", "scheduler/reservation", "tell"},
		[]string{"google.golang.org/grpc", "net", "sync"}},

	// What other cells have recorded, as objects of ours.
	"fauxmaster/trace": {[]string{"proto/borgpb"}, []string{"google.golang.org/grpc", "net"}},

	// Bugs that can be planted in a build of its own; in all others it is false.
	"mutant": {nil, []string{"os", "sync", "time"}},

	// borgmaster/cron: a schedule is read as the masters read it.
	"cfg": {[]string{"borgmaster/cron", "borgmaster/selector", "proto/borgpb", "spelling"}, nil},
	// How fast the machine is at the moment, by a program that does not change.
	"bench/calibration": {nil, []string{"google.golang.org/grpc"}},
	// Measured numbers in a file: bench and the simulate command keep them alike.
	"bench/figures": {nil, []string{"google.golang.org/grpc", "net"}},
	// What all command lines share: flags, exit codes, errors, logger.
	"cli": {[]string{"identity", "spelling"}, []string{"google.golang.org/grpc"}},
	// What clients were told, and whether it is linearizable; knows no cell on purpose.
	"history": {[]string{"proto/borgpb"}, []string{"google.golang.org/grpc", "os", "net"}},
	// The same of watches, in the words of the wire.
	"history/told": {[]string{"borgmaster/cell", "borgmaster/watch", "history", "proto/borgpb", "proto/borgrpc"}, []string{"google.golang.org/grpc", "os", "net"}},
	// What a cell says, in words for people; all programs print alike.
	"tell": {[]string{"cli", "proto/borgpb", "proto/borgrpc"}, nil},
	// The command lines that the pages show, for tests that hold the programs to them.
	"docs/shown": {nil, []string{"google.golang.org/grpc", "net", "time"}},
	// Errors without the paths of the machine that they come from.
	"tell/hostpath": {nil, []string{"google.golang.org/grpc", "net"}},
	// Who has a port on which a program cannot listen.
	"tell/portholder": {nil, []string{"google.golang.org/grpc", "net", "time"}},
	// One line of a log for many of the same kind.
	"tell/repeat": {nil, []string{"google.golang.org/grpc", "net", "os"}},
	// Small bugs written into source; knows nothing of this module.
	"mutation/plant": {nil, []string{"google.golang.org/grpc", "net", "time"}},
	// "Did you mean": job files and command lines guess alike.
	"spelling": {nil, nil},
}

// mayImportAll are programs; nobody imports them.
var mayImportAll = []string{"cmd/", "examples/", "bench", "mutation", "suite"}

type goPackage struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
}

func goList(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles", "./...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var pkgs []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); err == io.EOF {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func isProgram(rel string) bool {
	return slices.ContainsFunc(mayImportAll, func(program string) bool {
		return rel == program || strings.HasSuffix(program, "/") && strings.HasPrefix(rel, program)
	})
}

func TestImportTable(t *testing.T) {
	for _, p := range goList(t) {
		rel := strings.TrimPrefix(p.ImportPath, "borg/")
		if len(p.GoFiles) == 0 {
			continue
		}
		rule, ok := imports[rel]
		if !ok && !isProgram(rel) {
			t.Errorf("package %s is not in the import table of repo_test.go: add it with one line of why", rel)
			continue
		}
		for _, imp := range p.Imports {
			if slices.ContainsFunc(rule.never, func(n string) bool { return imp == n || strings.HasPrefix(imp, n+"/") }) {
				t.Errorf("%s imports %s, which its line in the import table forbids", rel, imp)
			}
			of, isOurs := strings.CutPrefix(imp, "borg/")
			switch {
			case !isOurs:
			case isProgram(of):
				t.Errorf("%s imports the program %s", rel, of)
			case isProgram(rel):
			case !slices.Contains(rule.ours, of):
				t.Errorf("%s imports %s, which is not on its line in the import table", rel, of)
			}
		}
	}
}

// TestPackageComments wants exactly one package comment for every package, so
// that a reader finds what it is, what it guarantees, and what it must not do.
func TestPackageComments(t *testing.T) {
	for _, p := range goList(t) {
		var documented []string
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil && !ast.IsGenerated(f) {
				documented = append(documented, name)
			}
		}
		if len(p.GoFiles) > 0 && len(documented) != 1 {
			t.Errorf("package %s has %d package comments, want 1 %v", p.ImportPath, len(documented), documented)
		}
	}
}

// TestCellIsPure holds what the import table cannot: no goroutines and no
// floating point in the cell.
func TestCellIsPure(t *testing.T) {
	files, err := filepath.Glob("borgmaster/cell/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of the cell: %v", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a go statement in the cell", fset.Position(n.Pos()))
			case *ast.SelectStmt, *ast.SendStmt:
				t.Errorf("%s: a channel in the cell", fset.Position(n.Pos()))
			case *ast.BasicLit:
				if n.Kind == token.FLOAT {
					t.Errorf("%s: floating point in the cell", fset.Position(n.Pos()))
				}
			case *ast.Ident:
				if n.Name == "float64" || n.Name == "float32" {
					t.Errorf("%s: floating point in the cell", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// TestGeneratedCodeIsCurrent compares the .proto files with the hashes that
// `make proto` recorded when it made the Go code.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	recorded, err := os.ReadFile("proto/generated.sha256")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("proto/borg*/*.proto")
	if err != nil || len(files) == 0 {
		t.Fatalf("no .proto files: %v", err)
	}
	sort.Strings(files)
	var want strings.Builder
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&want, "%s  %s\n", hex.EncodeToString(sum[:]), strings.TrimPrefix(name, "proto/"))
	}
	if string(recorded) != want.String() {
		t.Errorf("the generated code is older than the .proto files: run make proto")
	}
}

// TestNoReplace holds that what we build is what go.mod names.
func TestNoReplace(t *testing.T) {
	data, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(strings.TrimSpace(line), "replace") {
			t.Errorf("go.mod has a replace directive: %s", strings.TrimSpace(line))
		}
	}
}
