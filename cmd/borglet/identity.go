package main

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/identity"
)

// cellFile is where a borglet keeps which cell it belongs to, and where its
// masters are; beside it lies its certificate.
func (s *serve) cellFile() string { return filepath.Join(s.dir, "cell.yaml") }

const identityFile = "identity.pem"

// identify reads who this borglet is. Masters may be called, to renew it, before
// any of them has polled.
func (s *serve) identify() error {
	path := filepath.Join(s.dir, identityFile)
	c, err := identity.ReadCredential(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return s.stranger("machine %s has no certificate: %s is not there", s.name, path)
		}
		return cli.Errorf(cli.Invalid, "%w", err)
	}
	if want := (identity.Name{Cell: c.Name.Cell, Role: identity.Borglet, ID: s.name}); c.Name != want {
		return s.stranger("the certificate in %s is that of %s, and this is machine %s", path, c.Name, s.name)
	}
	if c.Expired(time.Now()) {
		return s.stranger("the certificate of machine %s expired at %s", s.name, c.Expires().UTC().Format(time.RFC3339))
	}
	file, err := client.ReadCellFile(s.cellFile())
	if err != nil {
		return cli.Errorf(cli.Invalid, "%w", err)
	}
	s.source = client.NewSource(c, file.Masters, func(c *identity.Credential, masters []string) error {
		file.Masters = masters
		return errors.Join(identity.WriteCredential(path, c), client.WriteCellFile(s.cellFile(), file))
	})
	s.source.OnRenew = cli.LogRenewal(s.log)
	return nil
}

// stranger is the error of a machine that must join anew.
func (s *serve) stranger(format string, args ...any) error {
	return cli.Errorf(cli.NotAllowed, format, args...).
		Hint("an admin makes a token: borgcfg machine invite %s\nwith it: borglet serve --join TOKEN ...", s.name)
}
