package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The auditor knows of the cell what its pages say and nothing else: a workload
// and checks that whoever wrote this cell did not write. Whatever dies meanwhile,
// it finds no promise broken.
func TestAuditorFindsNothing(t *testing.T) {
	alongside(t)
	c, w := wiredCell(t, 5, 3)
	s := &storm{c: c, w: w, random: chance(t), did: make(map[string]int)}
	howLong := time.Duration(size(12, 180)) * time.Second
	dir := t.TempDir()
	journal, table := filepath.Join(dir, "journal"), filepath.Join(dir, "table")
	out, err := os.Create(table)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	audit := exec.CommandContext(t.Context(), c.bin("auditor"),
		"--authority", filepath.Join(c.dir, "masters", "1", "authority.pem"),
		"--cell", c.Name, "--cell-id", c.CellID, "--operator", c.user, "--masters", strings.Join(c.masterAddrs(), ","),
		"--journal", journal, "--duration", howLong.String(), "--settle", "1m")
	audit.Stdout, audit.Stderr = out, out
	if err := audit.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- audit.Wait() }()
	// It asks for the machines once, and takes no answer for an answer.
	err = until(shortly(t), "the auditor was told something", func(context.Context) error {
		said, err := os.ReadFile(journal)
		if err == nil && bytes.Count(said, []byte("\n")) < 10 {
			err = fmt.Errorf("the journal has %d bytes", len(said))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(howLong); time.Now().Before(end); {
		if s.random.IntN(4) == 0 {
			s.did["borglet killed"]++
			k := 1 + s.random.IntN(c.Machines)
			if err := c.again(t.Context(), c.machineName(k), func(ctx context.Context) error { return c.StartBorglet(ctx, k) }); err != nil {
				t.Fatal(err)
			}
		} else {
			c.disturb(t, s)
		}
		<-time.After(time.Duration(500+s.random.IntN(1500)) * time.Millisecond)
	}
	err = <-ended
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	said, _ := os.ReadFile(table)
	t.Logf("faults: %v\n%s", s.did, said)
	if err != nil {
		t.Errorf("the auditor ends with %v", err)
	}
}
