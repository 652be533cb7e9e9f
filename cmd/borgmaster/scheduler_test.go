package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/cli"
	"borg/identity"
)

// TestASchedulerThatExpired: a scheduler process that slept until its certificate ran out
// can renew it no more. It ends and says so, and its master starts one with another.
func TestASchedulerThatExpired(t *testing.T) {
	a, err := identity.NewAuthority("test", time.Now().Add(-3*time.Hour), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	was, err := a.Certify(identity.Name{Cell: "test", Role: identity.Scheduler, ID: "1"}, time.Now().Add(-2*time.Hour), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "scheduler.pem")
	if err := identity.WriteCredential(file, was); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Nobody is there, as far as it can tell: it would try for ever.
	cmd := exec.CommandContext(t.Context(), program, "scheduler", "--master", "127.0.0.1:1", "--identity", file)
	var said bytes.Buffer
	cmd.Stderr = &said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != cli.Failed {
		t.Errorf("it ends with %v, want exit code %d:\n%s", err, cli.Failed, said.String())
	}
	for _, want := range []string{"certificate expired", "the master starts another scheduler"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, said.String())
		}
	}
}
