package main

import (
	"os"
	"path/filepath"
	"testing"

	"borg/borgmaster/client"
)

// TestMasterLogin: the way back names the directory of a master that is on this machine.
func TestMasterLogin(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	dir := t.TempDir()
	s := &session{place: &client.Place{CellFile: client.CellFile{Cell: "west"}, IdentityPath: filepath.Join(dir, "identity.pem")}}
	want := "borgmaster login --dir DIRECTORY --user root (DIRECTORY is that of the master, such as /var/lib/borg/west/1)"
	if got := s.masterLogin("root"); got != want {
		t.Errorf("without a master here: %q, want %q", got, want)
	}
	master := filepath.Join(dir, "masters", "1")
	if err := os.MkdirAll(master, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(master, "authority.pem"), filepath.Join(dir, "cell.yaml")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want = "borgmaster login --dir " + master + " --user root --out " + dir
	if got := s.masterLogin("root"); got != want {
		t.Errorf("beside a master: %q, want %q", got, want)
	}
}
