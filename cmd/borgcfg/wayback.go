package main

import (
	"os"
	"path/filepath"

	"borg/cli"
)

// wayBack is what gets a user a certificate again whose certificates are revoked or have
// ended: a token of an admin, or the directory of a replica, which needs nobody.
func (s *session) wayBack(user string) string {
	return "an admin makes a token: borgcfg user add " + user + "\nwith it: borgcfg login TOKEN\non the machine of a master: " + s.masterLogin(user)
}

// masterLogin is what makes a certificate for a user on the machine of a master, with the
// master's directory if it is on this one.
func (s *session) masterLogin(user string) string {
	if s.place == nil {
		return "borgmaster login --dir DIRECTORY --user " + user
	}
	beside := filepath.Dir(s.place.IdentityPath)
	for _, below := range []string{filepath.Join(beside, "masters"), cli.StateDir(s.place.Cell)} {
		// A master that was taken out of the cell has no authority any more.
		found, err := filepath.Glob(filepath.Join(below, "*", "authority.pem"))
		if err != nil || len(found) == 0 {
			continue
		}
		line := "borgmaster login --dir " + cli.Quote(filepath.Dir(found[0])) + " --user " + user
		if _, err := os.Stat(filepath.Join(beside, "cell.yaml")); err == nil {
			// The certificate takes the place of the one that is of no use any more.
			line += " --out " + cli.Quote(beside)
		}
		return line
	}
	return "borgmaster login --dir DIRECTORY --user " + user + " (DIRECTORY is that of the master, such as /var/lib/borg/" + s.place.Cell + "/1)"
}
