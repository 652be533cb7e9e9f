package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"borg/bench/figures"
)

const (
	// In each round a cell of each build is killed, so that what else the machine is
	// at falls on both.
	failOverRounds = 3
	// How often the elected master is killed in a round: 30 times in all for a build.
	failOverKills = 10
	// What the test writes before each time that it has measured, microseconds.
	failOverMark = "failover_us "
)

// failOverBuild is a build that is measured: its programs, and the test that kills
// them, which speaks to them.
type failOverBuild struct {
	name, tags, bin, test string
	gapsUs                []int64
}

// measureFailOver builds the programs with TLS and, for this alone, without, kills
// the elected master of whole cells of both, by turns, and says how long nothing
// was acknowledged.
func measureFailOver(bin string) ([]figures.Figure, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(bin, "failover-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for builds: %w", err)
	}
	defer os.RemoveAll(dir)
	builds := []*failOverBuild{{name: "tls"}, {name: "plaintext", tags: "plaintext"}}
	for _, b := range builds {
		b.bin, b.test = filepath.Join(dir, b.name), filepath.Join(dir, b.name+".test")
		if err := os.Mkdir(b.bin, 0o755); err != nil {
			return nil, err
		}
		for _, args := range [][]string{
			{"build", "-tags", b.tags, "-o", b.bin + "/", "./cmd/...", "./examples/..."},
			{"test", "-tags", b.tags, "-c", "-o", b.test, "./cmd/borgcell"},
		} {
			fmt.Println("$ go", strings.Join(args, " "))
			cmd := exec.Command("go", args...)
			cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
			if err := cmd.Run(); err != nil {
				return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
			}
		}
	}
	for round := range failOverRounds {
		for i := range builds {
			// The one that comes first changes.
			if err := builds[(i+round)%len(builds)].measure(); err != nil {
				return nil, err
			}
		}
	}
	var found []figures.Figure
	for _, b := range builds {
		found = append(found, b.figures()...)
	}
	return found, nil
}

// measure runs the test of one build once.
func (b *failOverBuild) measure() error {
	cmd := exec.Command(b.test, "-test.run", "^TestFailOver$", "-test.timeout", "9m")
	cmd.Dir = filepath.Join("cmd", "borgcell")
	cmd.Env = append(os.Environ(), "BORG_BIN="+b.bin, "BORG_FAILOVER_KILLS="+strconv.Itoa(failOverKills))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	fmt.Println("$ BORG_FAILOVER_KILLS="+strconv.Itoa(failOverKills), filepath.Base(b.test), "-test.run ^TestFailOver$")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fail-over of the build %s: %w\n%s", b.name, err, said.Bytes())
	}
	gaps, err := failOverGaps(said.Bytes())
	if err != nil || len(gaps) != failOverKills {
		return fmt.Errorf("fail-over of the build %s: %d times were measured, want %d: %w\n%s", b.name, len(gaps), failOverKills, err, said.Bytes())
	}
	fmt.Printf("%s: %d us\n", b.name, gaps)
	b.gapsUs = append(b.gapsUs, gaps...)
	return nil
}

// failOverGaps reads what the test has measured.
func failOverGaps(out []byte) (gaps []int64, err error) {
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), failOverMark); ok {
			us, failed := strconv.ParseInt(text, 10, 64)
			gaps, err = append(gaps, us), errors.Join(err, failed)
		}
	}
	return gaps, err
}

// figures are the median and the time within which 99 of 100 were: of 30, the
// longest.
func (b *failOverBuild) figures() []figures.Figure {
	slices.Sort(b.gapsUs)
	n := len(b.gapsUs)
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return []figures.Figure{
		figures.New("master.failover."+b.name+".p50_ms", ms(b.gapsUs[n/2])),
		figures.New("master.failover."+b.name+".p99_ms", ms(b.gapsUs[min(n*99/100, n-1)])),
	}
}
