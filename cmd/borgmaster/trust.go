package main

import (
	"bytes"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"borg/cli"
	"borg/identity"
)

// trusted is one authority in the file of --trust.
type trusted struct {
	// File of its certificates, PEM, beside this one.
	Certificate string `yaml:"certificate"`
	// URI in the certificates of its users, with * where the name is.
	Users string `yaml:"users"`
	// Users who may be named; none: all.
	Only []string `yaml:"only"`
}

// readTrust reads which other authorities may say who a user is. Without a file
// there are none.
func readTrust(path, cell string) (*identity.Foreign, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "--trust: %w", err)
	}
	var list []trusted
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&list); err != nil || len(list) == 0 {
		return nil, cli.Errorf(cli.Invalid, "--trust %s: want a list of authorities: %v", path, err).
			Hint("- certificate: corp.pem\n  users: spiffe://corp.example/people/*\n  only: [alice, bob]")
	}
	var rules []identity.ForeignRule
	for _, t := range list {
		file := t.Certificate
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(path), file)
		}
		certificates, err := os.ReadFile(file)
		if err != nil {
			return nil, cli.Errorf(cli.Invalid, "--trust %s: %w", path, err)
		}
		rules = append(rules, identity.ForeignRule{Certificates: certificates, Users: t.Users, Only: t.Only})
	}
	foreign, err := identity.NewForeign(cell, rules)
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "--trust %s: %w", path, err)
	}
	return foreign, nil
}
