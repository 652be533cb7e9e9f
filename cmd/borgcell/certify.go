package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"reflect"
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
			Hint("is the clock of this machine right? then: borgmaster authority renew --dir %s\ncopy its authority.pem to the other directories of %s", filepath.Dir(c.authorityFile()), filepath.Dir(c.masterDir(1)))
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

// beBelieved gives the user who runs the cell another certificate when the masters do not
// believe the present one any more: it may have been revoked while the cell ran.
func (c *Cell) beBelieved(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, believeWait)
	defer cancel()
	return until(ctx, "the masters believe who runs the cell", func(ctx context.Context) error {
		_, err := c.client.WhoAmI(ctx)
		var refused *client.NotAllowedError
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &refused) || !refused.Revoked:
			return &finalError{err}
		}
		// One of the very moment of the revocation is not believed either.
		if _, failed := c.source.RenewNow(ctx); failed != nil {
			return &finalError{failed}
		}
		return errors.Join(err, c.redial())
	})
}

// redial replaces the clients: a connection keeps the certificate that it began with.
func (c *Cell) redial() error {
	c.eachMu.Lock()
	each := c.each
	c.each = nil
	c.eachMu.Unlock()
	for _, one := range each {
		one.Close()
	}
	c.client.Close()
	return c.dial()
}

// certifyBorglet tells machine k where the masters are, and gives it a certificate unless it
// has a good one.
func (c *Cell) certifyBorglet(k int) error {
	path := filepath.Join(c.borgletDir(k), "identity.pem")
	place, file := filepath.Join(c.borgletDir(k), "cell.yaml"), &client.CellFile{
		Cell: c.Name, CellID: c.CellID, Masters: c.masterAddrs(), Identity: filepath.Base(path),
	}
	// A machine whose disk is full is started, too.
	if has, err := client.ReadCellFile(place); err != nil || !reflect.DeepEqual(has, file) {
		if err := client.WriteCellFile(place, file); err != nil {
			return err
		}
	}
	if has, err := identity.ReadCredential(path); err == nil && time.Now().Before(has.RenewAt()) {
		return nil
	}
	credential, err := c.authority.Certify(identity.Name{Cell: c.Name, Role: identity.Borglet, ID: c.machineName(k)}, time.Now(), identity.BorgletLife)
	if err != nil {
		return err
	}
	return identity.WriteCredential(path, credential)
}

// asMaster is what replica i shows to borglets.
func (c *Cell) asMaster(i int) (*identity.Source, error) {
	return c.authority.Source(identity.Name{Cell: c.Name, Role: identity.Master, ID: strconv.Itoa(i)}, time.Now(), identity.Life)
}
