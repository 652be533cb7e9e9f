package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/identity"
)

// certify makes the certificate of the user who runs the cell, anew with each
// start: the last one may have run out long ago. It is renewed until unlock.
func (c *Cell) certify() error {
	var err error
	if c.authority, err = c.readAuthority(); err != nil {
		return err
	}
	name := identity.Name{Cell: c.Name, Role: identity.User, ID: c.user}
	first, err := c.authority.Certify(name, time.Now(), identity.UserLife)
	var ended *identity.EndedError
	if errors.As(err, &ended) {
		return cli.Errorf(cli.NotAllowed, "%w", err).
			Hint("is the clock of this machine right? then: borgmaster authority renew --dir %s\ncopy its authority.pem to the other directories of %s", c.masterDir(1), filepath.Dir(c.masterDir(1)))
	}
	if err != nil {
		return err
	}
	save := func(c2 *identity.Credential) error { return identity.WriteCredential(c.identityFile(), c2) }
	c.source = identity.NewSource(first, func(_ context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
		return c.authority.Issue(public, name, time.Now(), identity.UserLife)
	}, save)
	ctx, cancel := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	renewing.Go(func() { c.source.Run(ctx) })
	c.endRenewal = func() { cancel(); renewing.Wait() }
	return save(first)
}

// certifyBorglet gives machine k a certificate unless it has a good one.
func (c *Cell) certifyBorglet(k int) error {
	path := filepath.Join(c.borgletDir(k), "identity.pem")
	if has, err := identity.ReadCredential(path); err == nil && time.Now().Before(has.RenewAt()) {
		return nil
	}
	credential, err := c.authority.Certify(identity.Name{Cell: c.Name, Role: identity.Borglet, ID: c.machineName(k)}, time.Now(), identity.BorgletLife)
	if err != nil {
		return err
	}
	if err := identity.WriteCredential(path, credential); err != nil {
		return err
	}
	return client.WriteCellFile(filepath.Join(c.borgletDir(k), "cell.yaml"), &client.CellFile{
		Cell: c.Name, CellID: c.CellID, Masters: c.masterAddrs(), Identity: filepath.Base(path),
	})
}

// asMaster is what replica i shows to borglets.
func (c *Cell) asMaster(i int) (*identity.Source, error) {
	return c.authority.Source(identity.Name{Cell: c.Name, Role: identity.Master, ID: strconv.Itoa(i)}, time.Now(), identity.Life)
}
