package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// cellFile is where a borglet keeps which cell it belongs to, and where its
// masters are; beside it lies its certificate.
func (s *serve) cellFile() string { return filepath.Join(s.dir, "cell.yaml") }

const identityFile = "identity.pem"

// identify finds out who this borglet is: by the certificate that it has, or by
// a token that it may join the cell with.
func (s *serve) identify(ctx context.Context, spec *borgpb.MachineSpec) error {
	stranger := s.remember()
	if stranger == nil && s.join != "" {
		s.log.Info("--join is not looked at: this machine has a certificate that is valid", "machine", s.name, "until", s.source.Current().Expires())
	}
	if stranger == nil || s.join == "" {
		return stranger
	}
	if err := s.joinCell(ctx, spec); err != nil {
		return err
	}
	return s.remember()
}

// remember reads the certificate that an earlier start was given.
func (s *serve) remember() error {
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
	s.issuer = &issuer{masters: slices.Clone(file.Masters)}
	s.source = client.NewSource(c, file.Masters, func(c *identity.Credential, masters []string) error {
		file.Masters = masters
		s.issuer.know(masters)
		return errors.Join(identity.WriteCredential(path, c), client.WriteCellFile(s.cellFile(), file))
	})
	s.source.OnRenew = cli.LogRenewal(s.log, s.source, rejoin(s.name))
	s.issuer.source = s.source
	return nil
}

// stranger is the error of a machine that must join anew.
func (s *serve) stranger(format string, args ...any) error {
	return cli.Errorf(cli.NotAllowed, format, args...).
		Hint("%s", rejoin(s.name))
}

// rejoin is what to do for a machine whose certificate nobody believes.
func rejoin(machine string) string {
	return "an admin makes a token: borgcfg machine invite " + machine + "\nwith it: borglet serve --join TOKEN ..."
}

// joinCell shows the token to a master, and with it what this machine is: that
// makes it a machine of the cell. The key never leaves this machine.
func (s *serve) joinCell(ctx context.Context, spec *borgpb.MachineSpec) error {
	token, err := client.ReadToken(s.join)
	if err != nil {
		return cli.Errorf(cli.Usage, "--join: %w", err)
	}
	name := token.Credential.Name
	if becomes := name.Becomes(); becomes.Role != identity.Borglet || becomes.ID != s.name {
		return cli.Errorf(cli.NotAllowed, "the token is for %s, and this is machine %s", becomes.Words(), s.name).
			Hint("an admin makes one for it: borgcfg machine invite %s", s.name)
	}
	masters := token.Masters
	if s.masters != "" {
		masters = strings.Split(s.masters, ",")
	}
	c, masters, err := client.Certify(ctx, identity.NewSource(token.Credential, nil, nil), masters,
		func(ctx context.Context, c borgrpc.IdentityServiceClient, public ed25519.PublicKey) (*borgrpc.Certificate, error) {
			resp, err := c.Join(ctx, &borgrpc.JoinRequest{PublicKey: public, Spec: spec})
			return resp.GetCertificate(), err
		})
	if err != nil {
		return cli.Errorf(cli.NotAllowed, "join cell %s as machine %s: %w", name.Cell, s.name, err)
	}
	file := &client.CellFile{Cell: name.Cell, Masters: masters, Identity: identityFile}
	if err := errors.Join(client.WriteCellFile(s.cellFile(), file), identity.WriteCredential(filepath.Join(s.dir, identityFile), c)); err != nil {
		return cli.Errorf(cli.Failed, "%w", err)
	}
	s.log.Info("machine joined the cell", "cell", name.Cell, "machine", s.name, "addr", spec.GetAddr())
	return nil
}
