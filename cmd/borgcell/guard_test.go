package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// guardEnv makes a process of this test program the guard of another.
const guardEnv = "BORG_TEST_GUARD"

// guard is a process that ends what is left of cells and mounts when this one is killed, or
// ended from the terminal: nothing of ours runs then that could.
var guard struct {
	once sync.Once
	in   io.Writer
	err  error
}

// guardLine is what the guard is told: a mount, a cell, or a cell that is gone.
type guardLine struct {
	Mount  string `json:"mount,omitempty"`
	Cell   string `json:"cell,omitempty"`
	Bin    string `json:"bin,omitempty"`
	Gone   bool   `json:"gone,omitempty"`
	Layout layout `json:"layout"`
}

func tellGuard(t testing.TB, line guardLine) {
	t.Helper()
	guard.once.Do(func() { guard.in, guard.err = startGuard() })
	data, err := json.Marshal(line)
	if err == nil && guard.err == nil {
		_, err = fmt.Fprintf(guard.in, "%s\n", data)
	}
	if guard.err != nil || err != nil {
		t.Fatalf("tell the guard: %v, %v", guard.err, err)
	}
}

func startGuard() (io.Writer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), guardEnv+"=1")
	// What ends this process from the terminal does not end it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	return in, err
}

// guardMain reads until whoever writes to us has ended, and sweeps what it has not.
func guardMain() {
	var points []string
	cells := map[string]layout{}
	for lines := bufio.NewReader(os.Stdin); ; {
		data, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var line guardLine
		if json.Unmarshal(data, &line) != nil {
			continue
		}
		switch l := line.Layout; {
		case line.Mount != "":
			points = append(points, line.Mount)
		case line.Gone:
			delete(cells, line.Cell)
		default:
			l.dir, l.binDir = line.Cell, line.Bin
			cells[line.Cell] = l
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for dir, l := range cells {
		if l.sweep(ctx) == nil {
			os.RemoveAll(filepath.Dir(dir))
		}
	}
	for _, point := range slices.Backward(points) {
		// It is most likely unmounted.
		_ = syscall.Unmount(point, syscall.MNT_DETACH)
	}
}

// guarded has the guard sweep a cell, unless the test comes to its end.
func (l layout) guarded(t testing.TB) {
	t.Helper()
	tellGuard(t, guardLine{Cell: l.dir, Bin: l.binDir, Layout: l})
	t.Cleanup(func() { tellGuard(t, guardLine{Cell: l.dir, Gone: true}) })
}

// A test that is killed leaves nothing: neither processes nor the directory of its cell.
func TestKilledTestIsSwept(t *testing.T) {
	alongside(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: its paths are too long for sockets.
	dir, err := os.MkdirTemp("", "killed-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command(self, "-test.run", "^TestCanary$")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "BORG_BIN="+programsDir(t))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The cell's directories are not known before.
	cells := func() (found []layout) {
		made, _ := filepath.Glob(filepath.Join(dir, "borgcell-*"))
		for _, one := range made {
			found = append(found, layout{dir: filepath.Join(one, "cell"), RunDir: filepath.Join(one, "run")})
		}
		return found
	}
	waitFor(t, "its cell runs", func() string {
		made := cells()
		if len(made) == 0 {
			return "no cell was made"
		}
		if found, err := made[0].marks().find(); err != nil || len(found) < 3 {
			return fmt.Sprintf("%d processes, %v", len(found), err)
		}
		return ""
	})
	was := cells()
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	waitFor(t, "nothing is left of it", func() string {
		for _, l := range was {
			if found, err := l.marks().find(); err != nil || len(found) > 0 {
				return fmt.Sprintf("%d processes, %v", len(found), err)
			}
		}
		if left := cells(); len(left) > 0 {
			return fmt.Sprintf("left: %v", left[0].dir)
		}
		return ""
	})
}
